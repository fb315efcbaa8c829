"""What may an owner or a guardian still do, and what does it mean for those who trust the network?

Every act is one call of a contract. A wallet sends it; `--calldata` prints it instead, for an owner
that is a multisig or a timelock. An act that was done before is left out, so a command that stopped
half way is repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from core.chain.rpc import RpcChain
from core.networks.checking import OWNED
from core.networks.code import code_at
from core.protocol.errors import CheckFailed, UsageError
from core.protocol.units import format_duration, format_moment
from core.runtime.commands.console import Run
from core.runtime.commands.debug import record_transaction
from core.runtime.commands.results import Result

Role = Literal["owner", "guardian", "pendingOwner"]
MINERS, TASKS = "MinerRegistry", "TaskRegistry"
_BOTH = f"for {MINERS} and {TASKS}"


class AdminCall(Result, frozen=True):
    """An act of an owner or a guardian: the call, and its transaction if one was sent."""

    contract: str
    function: str
    to: str
    data: str
    sender: str
    tx: str


@dataclass(frozen=True)
class Act:
    """One call that only the account in this role may make."""

    contract: str
    function: str
    args: tuple[Any, ...]
    role: Role


@dataclass(frozen=True)
class AdminPlan:
    """What a command would do: its acts, and what they mean."""

    question: str
    means: dict[str, str]
    acts: tuple[Act, ...]


async def propose_arbitrator(chain: RpcChain, account: str) -> AdminPlan:
    """Begin the delay after which an arbitrator may be added."""
    delay_s = await chain.read(MINERS, "arbitratorDelaySeconds")
    unbond_s = await chain.read(MINERS, "unbondSeconds")
    ready_at = await chain.now() + delay_s
    means = {
        "arbitrator": account,
        "delay": f"{format_duration(delay_s)}: it can be added from {format_moment(ready_at)}",
        "means": f"miners that do not trust it begin to leave within "
        f"{format_duration(delay_s - unbond_s)}, and have their stake before an order names it",
    }
    return AdminPlan("Propose it?", means, (Act(MINERS, "proposeArbitrator", (account,), "owner"),))


async def add_arbitrator(chain: RpcChain, account: str) -> AdminPlan:
    """Let orders name an arbitrator whose delay is over. Raises UsageError where it is not."""
    ready_at = await chain.read(MINERS, "arbitratorReadyAt", account)
    if ready_at == 0 or ready_at > await chain.now():
        when = f"its delay ends at {format_moment(ready_at)}" if ready_at else "it is not proposed"
        raise UsageError(f"{account} cannot be added yet", why=when, next_step="wait until then")
    means = {
        "arbitrator": account,
        "delay": "none any more: orders may name it at once",
        "means": "it can take the stake of miners that accept such an order, and of nobody else; "
        "of jobs that named it also after it was removed",
    }
    is_done = await chain.read(MINERS, "isArbitrator", account)
    acts = () if is_done else (Act(MINERS, "addArbitrator", (account,), "owner"),)
    return AdminPlan("Add it?", means, acts)


async def remove_arbitrator(chain: RpcChain, account: str) -> AdminPlan:
    """Let no new job name an arbitrator. Raises UsageError where none may."""
    if not await chain.read(MINERS, "isArbitrator", account):
        raise UsageError(f"{account} is no arbitrator", "no order may name it")
    means = {
        "arbitrator": account,
        "delay": "none",
        "means": "no new job names it; it still decides disputes of jobs that did, and orders that "
        "were opened without stages are taken back by their requesters",
        "again": "only by a new proposal and its whole delay",
    }
    return AdminPlan("Remove it?", means, (Act(MINERS, "removeArbitrator", (account,), "owner"),))


async def change_fees(chain: RpcChain, recipient: str | None, bps: int | None) -> AdminPlan:
    """Send fees elsewhere, lower them, or both. Raises UsageError for a fee that does not fall."""
    params = await chain.read(TASKS, "params")
    means, acts = dict[str, str](), list[Act]()
    if bps is not None and bps > params["protocolFeeBps"]:
        raise UsageError(
            f"the fee cannot be {bps} bps",
            why=f"it is {params['protocolFeeBps']} bps, and only falls",
            next_step=f"name {params['protocolFeeBps']} or less",
        )
    if recipient and recipient != params["feeRecipient"]:
        means["recipient"] = f"{recipient}, now {params['feeRecipient']}"
        acts.append(Act(TASKS, "setFeeRecipient", (recipient,), "owner"))
    if bps is not None and bps < params["protocolFeeBps"]:
        means["fee"] = f"{bps} bps, now {params['protocolFeeBps']}; it never rises again"
        acts.append(Act(TASKS, "lowerProtocolFee", (bps,), "owner"))
    means["delay"] = "none: open jobs are settled so too"
    return AdminPlan("Change it?", means, tuple(acts))


async def set_guardian(chain: RpcChain, account: str) -> AdminPlan:
    """Name who may stop new entries for a while; address zero for nobody."""
    means = {
        "guardian": f"{account}, {_BOTH}",
        "delay": "none",
        "means": "it may stop new jobs and new stakes for 7 days at most, then not for 30; never "
        "ways out, payments or disputes",
    }
    acts = [
        Act(name, "setGuardian", (account,), "owner")
        for name in OWNED
        if await chain.read(name, "guardian") != account
    ]
    return AdminPlan("Name it?", means, tuple(acts))


async def pause(chain: RpcChain, seconds: int) -> AdminPlan:
    """Stop new jobs and new stakes for so many seconds."""
    now = await chain.now()
    means = {
        "until": f"{format_moment(now + seconds)}, {_BOTH}",
        "delay": "none",
        "means": "ways out, payments and disputes go on; no other pause for 30 days after it, also "
        "if it is ended early",
    }
    acts = [
        Act(name, "pauseEntries", (seconds,), "guardian")
        for name in OWNED
        if await chain.read(name, "pausedUntil") <= now
    ]
    return AdminPlan("Pause?", means, tuple(acts))


async def resume(chain: RpcChain) -> AdminPlan:
    """End a pause early."""
    now = await chain.now()
    acts = [
        Act(name, "resumeEntries", (), "guardian")
        for name in OWNED
        if await chain.read(name, "pausedUntil") > now
    ]
    return AdminPlan("Resume?", {"means": "new jobs and new stakes at once"}, tuple(acts))


async def set_owner(chain: RpcChain, account: str) -> AdminPlan:
    """Offer both registries to another owner, which has to accept."""
    means = {
        "owner": f"{account}, {_BOTH}",
        "delay": "until it accepts: `matcher network accept-owner`",
        "means": "nothing changes before; offering it to the present owner takes the offer back",
    }
    acts = [
        Act(name, "transferOwnership", (account,), "owner")
        for name in OWNED
        if await chain.read(name, "pendingOwner") != account
    ]
    return AdminPlan("Offer it?", means, tuple(acts))


async def accept_owner(chain: RpcChain) -> AdminPlan:
    """Take both registries over."""
    acts, owners = list[Act](), list[str]()
    for name in OWNED:
        if int(await chain.read(name, "pendingOwner"), 16):
            acts.append(Act(name, "acceptOwnership", (), "pendingOwner"))
            owners.append(await chain.read(name, "pendingOwner"))
    means = {
        "owner": ", ".join(dict.fromkeys(owners)) or "nobody was offered anything",
        "delay": "none",
        "means": "the former owner can do nothing any more; sign the next revision of the network "
        "file: `matcher network sign FILE --new`",
    }
    return AdminPlan("Accept?", means, tuple(acts))


async def administer(
    run: Run, chain: RpcChain, plan: AdminPlan, *, calldata: bool
) -> list[AdminCall]:
    """Ask and send, or print what is to be sent.

    Raises CheckFailed where the wallet does not hold the role, UsageError where nothing is left to
    do, ContractRefused, GasShort, ChainUnreachable.
    """
    if not plan.acts:
        raise UsageError(
            "there is nothing to do", why="the chain is so already", next_step="network check FILE"
        )
    if calldata:
        return [_call(chain, act, sender=await _holder(chain, act)) for act in plan.acts]
    signer = run.unlock()
    for act in plan.acts:
        holder = await _holder(chain, act)
        if holder != signer.address:
            fix = "choose its wallet: --wallet NAME"
            if await code_at(chain, holder):
                fix = "it is a contract: --calldata prints what it has to call"
            raise CheckFailed(
                f"{signer.address} may not call {act.contract}.{act.function}",
                why=f"its {act.role} is {holder}",
                next_step=fix,
            )
        await chain.simulate(signer.address, act.contract, act.function, *act.args)
    run.confirm(plan.question, plan.means)
    done = []
    for act in plan.acts:
        sent = await chain.transact(signer, act.contract, act.function, *act.args)
        done.append(_call(chain, act, sender=signer.address, tx=sent.tx_hash))
    return done


async def _holder(chain: RpcChain, act: Act) -> str:
    found: str = await chain.read(act.contract, act.role)
    return found


def _call(chain: RpcChain, act: Act, *, sender: str, tx: str = "") -> AdminCall:
    return AdminCall(
        contract=act.contract,
        function=act.function,
        to=chain.addresses[act.contract],
        data=chain.call_data(act.contract, act.function, *act.args),
        sender=sender,
        tx=tx,
    )


@asynccontextmanager
async def registries(run: Run) -> AsyncIterator[RpcChain]:
    """The current network's registries. Raises ConfigError, ChainUnreachable."""
    settings = run.settings
    chain_id, rpc_url = settings.require_network()
    at = {name: settings.network.contract(name) for name in OWNED}
    journal, state = partial(record_transaction, run.folders), run.folders.state
    chain = RpcChain(rpc_url, chain_id, at, journal=journal, state=state)
    try:
        await chain.check()
        yield chain
    finally:
        await chain.close()
