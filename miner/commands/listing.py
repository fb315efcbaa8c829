"""What does the chain say of this machine, and how does its owner correct it?

`miner update` without terms, and `miner retire`. The registry has no change of an entry: the
machine is registered anew, and its old entry retired after that. Cut off between the two, the chain
lists the machine twice, and never not at all; `miner retire --machine` then ends the old entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.chain.machines import ListedMachine, kind_of, machines_of
from core.chain.rpc import RpcChain
from core.protocol.errors import HeadraceError, UsageError
from core.protocol.types import ZERO_HASH
from core.protocol.units import format_bytes, format_eth
from core.runtime.commands.console import Run
from core.runtime.settings import Settings
from miner.commands.registration import (
    ACTIVE,
    REGISTRY,
    announced,
    need_gas,
    open_chain,
    registered,
)
from miner.commands.results import ListedRow, MachineRetired, MachineUpdated
from miner.records.home import Home

NOT_LISTED, NOT_RUNNING = "not listed", "it does not run"


async def correct(run: Run, place: int | None) -> MachineUpdated:
    """Make the chain say what this machine has: class, memory, endpoint. Sends nothing where it
    does.

    `place` is the machine's number among its owner's, needed where they are several and none is
    right. Raises UsageError for an owner that is not registered or is leaving, and where it is not
    known which entry is meant; GasShort; ContractRefused.
    """
    owner = run.unlock()
    async with open_chain(run.settings) as chain:
        miner = await registered(chain, owner.address)
        if miner["state"] != ACTIVE:
            raise UsageError(
                f"no machine of {owner.address} can be announced",
                "all of its stake is leaving, and the registry takes no machine without stake",
                next_step="miner withdraw --cancel, if it shall work after all",
            )
        wanted = announced(run.settings)
        new = _said(ListedMachine(0, kind_of(wanted[0]), wanted[1], wanted[3]))
        found = await machines_of(chain.read, owner.address, miner["machines"])
        right = next((m for m in found if _said(m) == new), None) if place is None else None
        before = right or (_meant(found, place, owner.address) if found else None)
        old = dict.fromkeys(new, NOT_LISTED) if before is None else _said(before)
        changed = {name: [old[name], new[name]] for name in new if old[name] != new[name]}
        state = _state(run.settings)
        if before is not None and not changed:
            return _updated(owner.address, before, changed, [], found, state)
        gas = [await chain.simulate(owner.address, REGISTRY, "registerMachine", *wanted)]
        if before is not None:
            gas += [await chain.simulate(owner.address, REGISTRY, "retireMachine", before.place)]
        fee_wei = await need_gas(chain, owner.address, sum(gas))
        run.confirm(
            "Correct what the chain says of this machine?",
            {
                **{name: f"{was} → {now}" for name, (was, now) in changed.items()},
                "gas": f"{sum(gas):,} in {len(gas)} transactions, at most {format_eth(fee_wei)}",
                "miner": state,
            },
        )
        sent = [(await chain.transact(owner, REGISTRY, "registerMachine", *wanted)).tx_hash]
        if before is not None:
            try:
                done = await chain.transact(owner, REGISTRY, "retireMachine", before.place)
            except HeadraceError as error:
                error.state = (
                    f"the chain lists this machine as it is, and still as machine {before.place} "
                    f"({before}); {error.state}"
                )
                error.next_step = f"miner retire --machine {before.place}"
                raise
            sent.append(done.tx_hash)
        now, places = await _machines(chain, owner.address), {m.place for m in found}
        entry = next(machine for machine in now if machine.place not in places)
        return _updated(owner.address, entry, changed, sent, now, state)


async def retire(run: Run, place: int | None) -> MachineRetired:
    """Take this machine, or that of this number, off the chain's list.

    Raises UsageError for an owner that has none there, and where it is not known which is meant;
    GasShort; ContractRefused.
    """
    owner = run.unlock()
    async with open_chain(run.settings) as chain:
        miner = await registered(chain, owner.address)
        found = await machines_of(chain.read, owner.address, miner["machines"])
        if not found:
            raise UsageError(
                f"the chain lists no machine of {owner.address}",
                "none was announced, or all are retired",
                next_step="miner update, which announces this one",
            )
        machine, state = _meant(found, place, owner.address), _state(run.settings)
        gas = await chain.simulate(owner.address, REGISTRY, "retireMachine", machine.place)
        fee_wei = await need_gas(chain, owner.address, gas)
        run.confirm(
            "Retire it?",
            {
                "machine": f"{machine.place}: {machine}",
                "stake": "stays locked, and the operator may go on working",
                "gas": f"{gas:,}, at most {format_eth(fee_wei)}",
                "miner": state,
            },
        )
        sent = await chain.transact(owner, REGISTRY, "retireMachine", machine.place)
        return MachineRetired(
            tx=sent.tx_hash,
            block=sent.block_number,
            owner=owner.address,
            machine=_row(machine),
            others=[_row(one) for one in found if one is not machine],
            miner=state,
            next="miner drain, miner withdraw; or miner update, which announces it again",
        )


# --- parts ---


async def _machines(chain: RpcChain, owner: str) -> list[ListedMachine]:
    miner = await registered(chain, owner)
    return await machines_of(chain.read, owner, miner["machines"])


def _meant(found: Sequence[ListedMachine], place: int | None, owner: str) -> ListedMachine:
    """The entry of this number; without one, the only one there is."""
    if place is None and len(found) == 1:
        return found[0]
    for machine in found:
        if machine.place == place:
            return machine
    listed = "; ".join(f"{machine.place} ({machine})" for machine in found)
    raise UsageError(
        "which machine is this one?" if place is None else f"there is no machine {place}",
        f"the chain lists {listed} of {owner}",
        next_step="name one: --machine NUMBER",
    )


def _said(machine: ListedMachine) -> dict[str, str]:
    """What an entry says, as people read it."""
    endpoint = machine.endpoint_hash
    return {
        "class": machine.kind,
        "memory": format_bytes(machine.memory_mib * 2**20),
        "endpoint": "any port" if endpoint == ZERO_HASH else endpoint,
    }


def _state(settings: Settings) -> str:
    """What becomes of a miner that runs here."""
    running = Home.of(settings).read_running()
    if running is None:
        return NOT_RUNNING
    return (
        f"process {running.pid} goes on with the device and memory that it started with, which it "
        "tells the swarm; work does not ask for the chain's list"
    )


def _row(machine: ListedMachine) -> ListedRow:
    return ListedRow(machine.place, machine.kind, machine.memory_mib * 2**20)


def _updated(
    owner: str,
    entry: ListedMachine,
    changed: dict[str, list[str]],
    sent: list[str],
    listed: Sequence[ListedMachine],
    state: str,
) -> MachineUpdated:
    others = [_row(one) for one in listed if one.place != entry.place]
    after = (
        "miner start" if state == NOT_RUNNING else "miner drain, then miner start, to take it up"
    )
    return MachineUpdated(
        owner=owner,
        machine=_row(entry),
        changed=changed,
        transactions=sent,
        others=others,
        miner=state,
        next="miner retire --machine NUMBER, if another one is gone" if others else after,
    )
