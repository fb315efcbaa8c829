"""Which commands about networks has every program that works on one?

``network ls|show|check|join``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from core.runtime.commands.cli import CommandGroup, Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results

HELP = "Networks: which are known here, and how to join another."
_Source = Annotated[str, typer.Argument(help="A network file, or its https URL.")]


def mount(group: CommandGroup) -> None:
    """Add the shared commands to a program's group."""
    group.command("ls")(ls)
    group.command("show")(show)
    group.command("check")(check)
    group.command("join")(join)


def printed() -> Results:
    """Command → types of what it prints with --json."""
    from core.networks import checking, joining

    return {
        "network ls": (list[joining.KnownNetwork],),
        "network show": (joining.KnownNetwork,),
        "network check": (list[checking.NetworkRow],),
        "network join": (joining.NetworkJoined,),
    }


def ls(run: Run) -> None:
    """Every network that is known here, and which one is current."""
    from core.networks.joining import known_networks

    columns = ("network", "current", "chain_id", "owner", "revision", "rpc_url")
    run.emit(known_networks(run.settings), columns=columns)


def show(
    run: Run,
    name: Annotated[str | None, typer.Argument(help="Else the current one.")] = None,
) -> None:
    """The network that this program is on, and whose it is."""
    from core.networks.joining import known_network

    run.emit(known_network(run.settings, name or run.settings.network.name))


async def check(run: Run, file: _Source) -> None:
    """Hold every point of a network file to the chain; exit 9 when one differs."""
    from core.networks.checking import check_network, contradictions
    from core.networks.reaching import load_source, open_node
    from core.protocol.errors import CheckFailed

    found = await load_source(run, file)
    async with open_node(run, found) as chain:
        rows = await check_network(chain, found)
    run.emit(rows, columns=("point", "ok", "chain", "file"))
    if wrong := contradictions(rows):
        raise CheckFailed(
            f"{len(wrong)} of {len(rows)} points differ",
            why="; ".join(wrong),
            next_step="do not join before its owner explains it",
        )


async def join(
    run: Run,
    source: _Source,
    name: Annotated[str | None, typer.Option("--as", help="Another name for it here.")] = None,
) -> None:
    """Check a network against its chain, show whose it is, ask, and remember it."""
    from core.networks.reaching import join_network

    run.emit(await join_network(run, source, name))
