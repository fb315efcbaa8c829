"""Which operators have stake, read from the registry's events."""

from __future__ import annotations

from typing import Any

import pytest

from core.chain.chain import ChainEvent
from core.chain.staked import StakedOperators
from core.protocol.errors import ChainUnreachable

REGISTRY = "MinerRegistry"


class Registry:
    """A chain with a registry's events alone; a node that takes spans of `most` blocks."""

    def __init__(self, most: int = 10**9) -> None:
        self.log: list[ChainEvent] = []
        self.head, self.most, self.asked = 0, most, 0
        self.miners: dict[str, dict[str, int]] = {}

    def emit(self, name: str, block: int, **args: Any) -> None:
        self.log.append(ChainEvent(REGISTRY, name, args, block, "0x", "0x", len(self.log)))
        self.head = max(self.head, block)

    async def block_number(self) -> int:
        return self.head

    async def events(self, first: int, last: int, *, contract: str | None) -> list[ChainEvent]:
        assert contract == REGISTRY
        self.asked += 1
        if last - first + 1 > self.most:
            raise ChainUnreachable("a request failed at the node", "too many blocks")
        return [event for event in self.log if first <= event.block_number <= last]

    async def read(self, contract: str, function: str, owner: str) -> dict[str, int]:
        assert (contract, function) == (REGISTRY, "minerOf")
        return self.miners[owner]


def following(chain: Registry, window: int = 2) -> StakedOperators:
    return StakedOperators(chain, start_block=3, window=window)  # type: ignore[arg-type]


async def test_what_an_owner_announces_is_known_until_it_is_retired() -> None:
    chain = Registry()
    staked = following(chain)
    for place, kind, memory_mib in ((0, "0x63707500", 512), (1, "0x63756461", 24_576)):
        chain.emit(
            "MachineRegistered",
            4 + place,
            **{"owner": "0xA", "index": place, "class": kind, "vramMiB": memory_mib},
            **{"bandwidthMBps": 0, "endpointHash": "0x" + "00" * 32},
        )
    await staked.poll()
    assert [str(one) for one in staked.machines("0xa")] == ["cpu, 512 MiB", "cuda, 24,576 MiB"]
    assert staked.machines("0xB") == ()
    chain.emit("MachineRetired", 9, owner="0xA", index=0)
    await staked.poll()
    assert [one.place for one in staked.machines("0xA")] == [1]
    chain.emit("MachineRetired", 10, owner="0xA", index=0)  # as a block that is read again has it
    await staked.poll()
    assert [one.place for one in staked.machines("0xA")] == [1]


async def test_who_registered_is_staked_under_its_newest_key_until_its_stake_is_gone() -> None:
    chain = Registry()
    staked = following(chain)
    chain.emit("MinerRegistered", 1, owner="0xEA", operator="0x0E")  # before the deployment
    chain.emit("MinerRegistered", 4, owner="0xA", operator="0xAB")
    chain.emit("MinerRegistered", 5, owner="0xB", operator="0xBC")
    assert await staked.poll() == {"0xab", "0xbc"}
    chain.emit("OperatorRotated", 6, owner="0xA", oldOperator="0xAB", newOperator="0xAD")
    assert await staked.poll() == {"0xad", "0xbc"}
    chain.miners["0xA"] = {"stake": 5, "leaving": 0, "state": 1}
    chain.emit("Withdrawn", 7, owner="0xA", amount=1)
    assert await staked.poll() == {"0xad", "0xbc"}, "a part"
    chain.miners["0xA"] = {"stake": 0, "leaving": 0, "state": 3}
    chain.miners["0xB"] = {"stake": 0, "leaving": 0, "state": 1}
    chain.emit("Withdrawn", 8, owner="0xA", amount=5)
    chain.emit("Slashed", 8, owner="0xB", amount=5)
    assert await staked.poll() == set()
    chain.emit("MinerRegistered", 9, owner="0xA", operator="0xAE")
    assert await staked.poll() == {"0xae"}


async def test_an_event_that_a_reorganisation_moved_within_the_window_is_seen() -> None:
    chain = Registry()
    staked = following(chain, window=3)
    chain.head = 10
    assert await staked.poll() == set()
    chain.emit("MinerRegistered", 9, owner="0xA", operator="0xAB")
    assert await staked.poll() == set(), "no new block"
    chain.head = 11
    assert await staked.poll() == {"0xab"}


async def test_a_node_that_takes_few_blocks_is_asked_for_fewer_and_a_long_chain_in_steps() -> None:
    chain = Registry(most=2000)
    chain.emit("MinerRegistered", 4, owner="0xA", operator="0xAB")
    chain.emit("MinerRegistered", 30_000, owner="0xB", operator="0xBC")
    staked, refused = following(chain), 0
    while staked.operators != {"0xab", "0xbc"}:
        try:
            await staked.poll()
        except ChainUnreachable:
            refused += 1
        assert refused < 30
    assert chain.asked < 100


async def test_another_chain_behind_the_same_address_begins_anew() -> None:
    chain = Registry()
    chain.emit("MinerRegistered", 40, owner="0xA", operator="0xAB")
    staked = following(chain)
    assert await staked.poll() == {"0xab"}
    chain.log.clear()
    chain.head = 5
    assert await staked.poll() == set()


async def test_a_silent_node_is_said_so_and_what_was_known_stays() -> None:
    chain = Registry()
    chain.emit("MinerRegistered", 4, owner="0xA", operator="0xAB")
    staked = following(chain)
    await staked.poll()
    chain.most, chain.head = 0, 9
    with pytest.raises(ChainUnreachable):
        await staked.poll()
    assert staked.operators == {"0xab"}
