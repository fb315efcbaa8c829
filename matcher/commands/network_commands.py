"""Which commands has an owner of a network, beside those that every program has?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.networks import commands as shared
from core.runtime.commands.cli import CommandGroup, Run

if TYPE_CHECKING:
    from core.chain.rpc import RpcChain
    from core.runtime.commands.results import Results
    from matcher.commands.administer import AdminPlan

HELP = "Networks: known ones, and your own to deploy, sign and administer."
_Account = Annotated[str, typer.Argument(help="An address.")]
_Calldata = Annotated[
    bool, typer.Option("--calldata", help="Print the calls, for a multisig or a timelock.")
]


def mount(group: CommandGroup) -> None:
    """Add the shared commands and the owner's to the program's group."""
    shared.mount(group)
    group.command("deploy")(deploy)
    group.command("sign")(sign)
    group.command("propose-arbitrator")(propose_arbitrator)
    group.command("add-arbitrator")(add_arbitrator)
    group.command("remove-arbitrator")(remove_arbitrator)
    group.command("fees")(fees)
    group.command("guardian")(guardian)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("set-owner")(set_owner)
    group.command("accept-owner")(accept_owner)


def printed() -> Results:
    """Command → types of what it prints with --json."""
    from matcher.commands import administer, own_network

    arbitrators = ("propose-arbitrator", "add-arbitrator", "remove-arbitrator")
    acts = (*arbitrators, "fees", "guardian", "pause", "resume")
    return {
        **shared.printed(),
        "network deploy": (own_network.NetworkDeployed,),
        "network sign": (own_network.NetworkSigned,),
        **{
            f"network {act}": (list[administer.AdminCall],)
            for act in (*acts, "set-owner", "accept-owner")
        },
    }


async def deploy(
    run: Run,
    file: Annotated[Path, typer.Argument(help="Its parameters, TOML or JSON.")],
    token: Annotated[
        str, typer.Option(help="Address of an ERC-20; `new` for one that the owner mints.")
    ],
    holder: Annotated[
        str, typer.Option(help="Who has some of it, to try a transfer; else the deployer.")
    ] = "",
) -> None:
    """Create the contracts on any chain, or go on where an earlier run stopped."""
    from matcher.commands.own_network import deploy_network

    run.emit(await deploy_network(run, file, token, holder))


async def sign(
    run: Run,
    file: Annotated[Path, typer.Argument(help="A network file.")],
    new: Annotated[bool, typer.Option("--new", help="As the next revision.")] = False,
) -> None:
    """Vouch for a network file with the owner's wallet."""
    from matcher.commands.own_network import sign_network

    run.emit(await sign_network(run, file, is_new=new))


async def propose_arbitrator(run: Run, account: _Account, calldata: _Calldata = False) -> None:
    """Owner: begin the delay after which orders may name another arbitrator."""
    from core.protocol.ids import address
    from matcher.commands import administer

    arbitrator = address(account)
    await _act(run, lambda chain: administer.propose_arbitrator(chain, arbitrator), calldata)


async def add_arbitrator(run: Run, account: _Account, calldata: _Calldata = False) -> None:
    """Owner: let orders name an arbitrator that was proposed, once its delay is over."""
    from core.protocol.ids import address
    from matcher.commands import administer

    arbitrator = address(account)
    await _act(run, lambda chain: administer.add_arbitrator(chain, arbitrator), calldata)


async def remove_arbitrator(run: Run, account: _Account, calldata: _Calldata = False) -> None:
    """Owner: let no new job name an arbitrator."""
    from core.protocol.ids import address
    from matcher.commands import administer

    arbitrator = address(account)
    await _act(run, lambda chain: administer.remove_arbitrator(chain, arbitrator), calldata)


async def fees(
    run: Run,
    to: Annotated[str | None, typer.Option(help="Address that gets them from now on.")] = None,
    bps: Annotated[int | None, typer.Option(help="Lower than now; it never rises.", min=0)] = None,
    calldata: _Calldata = False,
) -> None:
    """Owner: lower the protocol's fee, or send it elsewhere."""
    from core.protocol.ids import address
    from matcher.commands import administer

    recipient = address(to) if to else None
    await _act(run, lambda chain: administer.change_fees(chain, recipient, bps), calldata)


async def guardian(run: Run, account: _Account, calldata: _Calldata = False) -> None:
    """Owner: name who may stop new entries for a while; the zero address for nobody."""
    from core.protocol.ids import address
    from matcher.commands import administer

    named = address(account)
    await _act(run, lambda chain: administer.set_guardian(chain, named), calldata)


async def pause(
    run: Run,
    duration: Annotated[str, typer.Argument(help="Such as 3d; 7d at most.")],
    calldata: _Calldata = False,
) -> None:
    """Guardian: stop new jobs and new stakes for a while; ways out stay open."""
    from core.protocol.units import parse_duration
    from matcher.commands import administer

    seconds = parse_duration(duration)
    await _act(run, lambda chain: administer.pause(chain, seconds), calldata)


async def resume(run: Run, calldata: _Calldata = False) -> None:
    """Guardian: end a pause early."""
    from matcher.commands import administer

    await _act(run, administer.resume, calldata)


async def set_owner(run: Run, account: _Account, calldata: _Calldata = False) -> None:
    """Owner: offer the network to another owner, which has to accept."""
    from core.protocol.ids import address
    from matcher.commands import administer

    offered = address(account)
    await _act(run, lambda chain: administer.set_owner(chain, offered), calldata)


async def accept_owner(run: Run, calldata: _Calldata = False) -> None:
    """Take over a network that its owner has offered."""
    from matcher.commands import administer

    await _act(run, administer.accept_owner, calldata)


async def _act(
    run: Run, planned: Callable[[RpcChain], Awaitable[AdminPlan]], calldata: bool
) -> None:
    from matcher.commands.administer import administer, registries

    async with registries(run) as chain:
        done = await administer(run, chain, await planned(chain), calldata=calldata)
    run.emit(done)
