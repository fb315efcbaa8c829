"""What a miner says in the swarm and whom it believes there.

Distances are measured over real streams.
"""

from __future__ import annotations

import itertools

import pytest

from core.protocol import types as t
from core.protocol.errors import PeerUnreachable
from core.protocol.records import (
    MAX_NEIGHBOURS,
    MinerRecord,
    miners_topic,
    now_ms,
    seal,
    unseal,
)
from core.runtime.network.channel import Peers, StreamIdentity
from core.runtime.slowing import OFTEN_S, SELDOM_S
from miner.daemon.announce import TTL_S, Announcer, Distances, Neighbourhood, neighbours
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

    async def lookup(self, *topics: str) -> dict[str, bytes]:
        if self.breaks:
            raise self.breaks
        return {key: data for topic in topics for key, data in self.topics.get(topic, {}).items()}

    def put(self, number: int, under: str | None = None, **changes: object) -> str:
        """What machine `number` says of itself, or under another's key; its operator."""
        signer = key(number)
        data = seal(record(signer.address, **changes), 1, signer, DOMAIN)  # type: ignore[arg-type]
        operator = under or signer.address
        topic = self.topics.setdefault(miners_topic(DOMAIN, operator), {})
        topic[operator.lower()] = data
        return signer.address


async def near(board: Board, layers: t.LayerRange | None = None) -> list[str]:
    """Whose distances we measure."""
    found = await neighbours(board, DOMAIN, ME.address, t.ZERO_HASH, layers)
    return [one.operator for one in found]


async def test_each_announcement_has_a_higher_sequence_and_expires_by_itself() -> None:
    board = Board()
    announcer = Announcer(board, ME, DOMAIN)
    sequences = []
    for _ in range(3):
        assert await announcer.announce(record(ME.address))
        data = board.topics[miners_topic(DOMAIN, ME.address)][ME.address.lower()]
        opened = unseal(data, DOMAIN)
        assert opened is not None
        sequences.append(opened[1])
    assert sequences == sorted(set(sequences))
    assert board.ttl_s == TTL_S


async def test_a_swarm_that_fails_is_tried_again() -> None:
    board = Board()
    announcer = Announcer(board, ME, DOMAIN)
    board.breaks = RuntimeError("libp2p says no")
    assert not await announcer.announce(record(ME.address))
    assert not await announcer.announce(record(ME.address))
    assert announcer.failures == 2
    assert await near(board) == []
    board.breaks = PeerUnreachable("the swarm", "our own peer has ended")
    assert not await announcer.announce(record(ME.address))
    board.breaks = None
    assert await announcer.announce(record(ME.address))
    assert announcer.failures == 0


async def test_only_others_who_signed_for_themselves_and_are_there_count() -> None:
    board = Board()
    board.put(1)
    there = {board.put(2), board.put(4, state="JOIN", layers=None)}
    board.put(3, state="LEFT")
    board.put(5, under=key(6).address)
    board.put(7, sent_at_ms=now_ms() - 60_000)
    board.put(8, model_id="0x" + "11" * 32)
    board.topics[miners_topic(DOMAIN, ME.address)]["0xgarbage"] = b"not a record"
    assert set(await near(board)) == there


async def test_of_many_machines_those_next_in_a_pipeline_and_any_others_are_measured() -> None:
    board = Board()
    after = {board.put(number, layers=t.LayerRange(4, 8)) for number in range(2, 30)}
    others = {board.put(number, layers=t.LayerRange(0, 4)) for number in range(30, 100)}
    found = await near(board, t.LayerRange(0, 4))
    assert len(found) == len(set(found)) == MAX_NEIGHBOURS
    assert len(set(found) & after) >= MAX_NEIGHBOURS // 2 <= len(set(found[16:]) & others) + 8
    assert await near(board, t.LayerRange(0, 4)) == found, "the same ones each time"
    assert len(await near(board)) == MAX_NEIGHBOURS
    other = await neighbours(board, DOMAIN, key(200).address, t.ZERO_HASH, t.LayerRange(0, 4))
    assert [one.operator for one in other] != found, "others for each machine"


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


async def test_machines_are_looked_at_seldom_while_the_same_ones_are_there() -> None:
    there, looks, now_s = [record(key(2).address)], [0.0], 0.0

    async def look() -> list[MinerRecord]:
        looks.append(now_s)
        return list(there)

    near = Neighbourhood(look, lambda: now_s)
    for _ in range(200):
        assert [one.operator for one in await near.others()] == [one.operator for one in there]
        now_s += 1.0
    pauses = [after - before for before, after in itertools.pairwise(looks[1:])]
    assert pauses[0] == OFTEN_S
    assert pauses == sorted(pauses) and pauses[-1] == SELDOM_S

    there.append(record(key(3).address))
    while len(near.known) < 2:
        now_s += 1.0
        await near.others()
    seen_s = now_s
    while looks[-1] == seen_s:
        now_s += 1.0
        await near.others()
    assert now_s - seen_s == OFTEN_S, "what changes is looked at often"
