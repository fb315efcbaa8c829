"""What a miner says in the swarm and whom it believes there.

Distances are measured over real streams.
"""

from __future__ import annotations

import pytest

from core.protocol import types as t
from core.protocol.errors import PeerUnreachable
from core.protocol.records import (
    AllocationRecord,
    MinerRecord,
    allocations_topic,
    miners_topic,
    seal,
    unseal,
)
from core.runtime.network.channel import Peers, StreamIdentity
from miner.daemon.announce import (
    TTL_S,
    Announcer,
    Distances,
    allocations,
    neighbours,
    now_ms,
)
from tests.miner.conftest import Start
from tests.town.orders import DOMAIN, key

ME = key(1)


def record(operator: str, endpoint: str = "127.0.0.1:1", **changes: object) -> MinerRecord:
    fields: dict[str, object] = {
        "operator": operator,
        "endpoint": endpoint,
        "state": "SERVING",
        "model_id": t.ZERO_HASH,
        "layers": t.LayerRange(0, 4),
        "memory_bytes": 2**30,
        "tflops": 0.1,
        "bandwidth_gb_s": 10.0,
        "region": "",
        "tau_ms_per_layer": 1.0,
        "rho_ms": {},
        "max_requests": 16,
        "active_requests": 0,
        "kv_free_tokens": 1000,
        "context": 512,
        "price_in": 1,
        "price_out": 2,
        "allocation": 0,
        "sent_at_ms": now_ms(),
    }
    return MinerRecord(**(fields | changes))  # type: ignore[arg-type]


class Board:
    """A swarm in one process. `breaks` makes every call raise."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, bytes]] = {}
        self.breaks: Exception | None = None
        self.ttl_s = 0.0

    async def publish(self, topic: str, key: str, data: bytes, ttl_s: float) -> bool:
        if self.breaks:
            raise self.breaks
        self.topics.setdefault(topic, {})[key] = data
        self.ttl_s = ttl_s
        return True

    async def lookup(self, topic: str) -> dict[str, bytes]:
        if self.breaks:
            raise self.breaks
        return self.topics.get(topic, {})


async def test_each_announcement_has_a_higher_sequence_and_expires_by_itself() -> None:
    board = Board()
    announcer = Announcer(board, ME, DOMAIN)
    sequences = []
    for _ in range(3):
        assert await announcer.announce(record(ME.address))
        data = board.topics[miners_topic(DOMAIN)][ME.address.lower()]
        opened = unseal(data, MinerRecord, DOMAIN)
        assert opened is not None
        sequences.append(opened[1])
    assert sequences == sorted(set(sequences))
    assert board.ttl_s == TTL_S


async def test_a_swarm_that_fails_is_tried_again_and_one_that_ended_is_reported() -> None:
    board = Board()
    announcer = Announcer(board, ME, DOMAIN)
    board.breaks = RuntimeError("libp2p says no")
    assert not await announcer.announce(record(ME.address))
    assert not await announcer.announce(record(ME.address))
    assert announcer.failures == 2
    assert await neighbours(board, DOMAIN, ME.address) == []
    board.breaks = PeerUnreachable("the swarm", "our own peer has ended")
    try:
        await announcer.announce(record(ME.address))
    except PeerUnreachable:
        pass
    else:
        raise AssertionError("nobody would find this miner any more")
    board.breaks = None
    assert await announcer.announce(record(ME.address))
    assert announcer.failures == 0


async def test_only_others_who_signed_for_themselves_and_are_there_count() -> None:
    board = Board()
    topic = board.topics.setdefault(miners_topic(DOMAIN), {})

    def put(number: int, under: str | None = None, **changes: object) -> None:
        signer = key(number)
        data = seal(record(signer.address, **changes), 1, signer, DOMAIN)  # type: ignore[arg-type]
        topic[(under or signer.address).lower()] = data

    put(1)
    put(2)
    put(3, state="LEFT")
    put(4, state="JOIN", layers=None)
    put(5, under=key(6).address)
    put(7, sent_at_ms=now_ms() - 60_000)
    topic["0xgarbage"] = b"not a record"
    found = await neighbours(board, DOMAIN, ME.address)
    assert {one.operator for one in found} == {key(2).address, key(4).address}


async def test_allocations_count_for_their_model_and_author_only() -> None:
    board, model, other = Board(), "0x" + "aa" * 32, "0x" + "bb" * 32
    topic = board.topics.setdefault(allocations_topic(DOMAIN, model), {})
    for number, about in ((10, model), (11, other)):
        signer = key(number)
        said = AllocationRecord(
            matcher=signer.address,
            model_id=about,
            assignments={ME.address: t.LayerRange(0, 2)},
            standby=[],
            sent_at_ms=now_ms(),
        )
        topic[signer.address.lower()] = seal(said, 3, signer, DOMAIN)
    topic[key(12).address.lower()] = topic[key(10).address.lower()]
    found = await allocations(board, DOMAIN, model)
    assert list(found) == [key(10).address.lower()]
    assert found[key(10).address.lower()][1] == 3


async def test_distances_are_half_round_trips_and_silent_machines_are_forgotten(
    start: Start,
) -> None:
    (machine,) = await start((0, 4))
    peers = Peers(StreamIdentity(ME, DOMAIN))
    ticks = iter([0.0, 0.020, 1.0, 1.010])
    distances = Distances(peers, lambda: next(ticks))
    there = record(machine.signer.address, machine.endpoint)
    await distances.measure([there])
    assert distances.rho_ms == {machine.signer.address: 10.0}
    await distances.measure([there])
    assert distances.rho_ms[machine.signer.address] == pytest.approx(8.5)
    await distances.measure([])
    assert distances.rho_ms == {}
    await distances.measure([record(key(9).address, machine.endpoint)])
    assert distances.rho_ms == {}, "another key answers there"
    await peers.close()
