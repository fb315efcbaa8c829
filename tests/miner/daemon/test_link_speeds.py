"""Links are measured over real streams, rarely, at little cost, and never while there is work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from core.protocol import types as t
from core.protocol import wire
from core.protocol.records import MAX_LINKS, MAX_NEIGHBOURS, MinerRecord
from core.runtime.network.channel import Channel, Listener, Peers, StreamIdentity
from core.runtime.network.sending import takes_mb_s
from miner.daemon import link_speeds
from miner.daemon.link_speeds import (
    AGAIN_S,
    EVERY_S,
    SENDS,
    SENT_BYTES,
    LinkSpeeds,
    next_due,
    sampled,
)
from tests.miner.daemon.test_announce import ME, record
from tests.town.orders import DOMAIN, key

Listen = Callable[..., Awaitable[MinerRecord]]


class Machines:
    """Machines that answer pings and count the bytes that came in them."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.listeners: list[Listener] = []

    async def listen(self, number: int, *, reads: bool = True) -> MinerRecord:
        signer = key(number)

        async def handle(channel: Channel, frame: wire.Frame) -> Any:
            if frame.payload and not reads:
                await asyncio.Event().wait()
            self.bytes[signer.address] += len(frame.payload)
            return wire.Pong()

        listener = Listener(StreamIdentity(signer, DOMAIN), handle)
        await listener.start("127.0.0.1", 0)
        self.listeners.append(listener)
        return record(signer.address, f"127.0.0.1:{listener.port}")


@pytest.fixture
async def machines() -> AsyncIterator[Machines]:
    machines = Machines()
    yield machines
    for listener in machines.listeners:
        await listener.close()


class Life:
    """The clock and the work of the machine that measures."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.idle = [True]

    def is_idle(self) -> bool:
        return self.idle.pop(0) if len(self.idle) > 1 else self.idle[0]


@pytest.fixture
async def life() -> Life:
    return Life()


@pytest.fixture
async def speeds(life: Life) -> AsyncIterator[LinkSpeeds]:
    peers = Peers(StreamIdentity(ME, DOMAIN))
    speeds = LinkSpeeds(peers, life.is_idle, lambda: life.now_s)
    yield speeds
    await speeds.close()


async def test_one_machine_is_measured_at_a_time_and_again_only_after_long(
    machines: Machines, life: Life, speeds: LinkSpeeds
) -> None:
    others = [await machines.listen(2), await machines.listen(3)]
    each = SENDS * SENT_BYTES
    for turn in range(4):
        life.now_s = turn * EVERY_S
        await speeds.measure_next(others)
        assert machines.bytes.total() == min(turn + 1, 2) * each
    assert set(speeds.mb_s) == {one.operator for one in others}
    assert all(mb_s > 0 for mb_s in speeds.mb_s.values())
    life.now_s = AGAIN_S
    await speeds.measure_next(others)
    assert machines.bytes == {others[0].operator: 2 * each, others[1].operator: each}


async def test_no_more_than_four_mebibytes_leave_in_a_minute() -> None:
    assert SENDS * SENT_BYTES * 60 / EVERY_S <= 4 * 2**20
    assert MAX_LINKS * SENDS * SENT_BYTES / AGAIN_S <= 10_000, "bytes a second in the long run"


async def test_a_busy_machine_measures_nothing_and_stops_when_work_comes(
    machines: Machines, life: Life, speeds: LinkSpeeds
) -> None:
    other = await machines.listen(2)
    life.idle = [False]
    await speeds.measure_next([other])
    assert not machines.bytes
    life.idle = [True, True, True, False]
    await speeds.measure_next([other])
    assert 0 < machines.bytes.total() <= 2 * 2**14
    assert speeds.mb_s == {}
    life.idle = [True]
    await speeds.measure_next([other])
    assert set(speeds.mb_s) == {other.operator}, "an interrupted try was none"


async def test_a_busy_machine_is_left_alone(
    machines: Machines, life: Life, speeds: LinkSpeeds
) -> None:
    other = await machines.listen(2)
    await speeds.measure_next([record(other.operator, other.endpoint, active_requests=1)])
    assert not machines.bytes


async def test_the_middle_one_of_the_last_measurements_counts(
    machines: Machines, life: Life, speeds: LinkSpeeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, found = await machines.listen(2), iter([9.0, 500.0, 4.0, 3.0])

    async def takes(*_: object, **__: object) -> float:
        return next(found)

    monkeypatch.setattr(link_speeds, "takes_mb_s", takes)
    announced = []
    for turn in range(4):
        life.now_s = turn * AGAIN_S
        await speeds.measure_next([other])
        announced.append(speeds.mb_s[other.operator])
    assert announced == [9.0, 9.0, 9.0, 4.0]


async def test_machines_that_are_gone_silent_or_others_have_no_speed(
    machines: Machines, life: Life, speeds: LinkSpeeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await machines.listen(2)
    await speeds.measure_next([other])
    assert speeds.mb_s
    await speeds.measure_next([])
    assert speeds.mb_s == {}, "it is no neighbour any more"
    await speeds.measure_next([record(key(9).address, other.endpoint)])
    assert speeds.mb_s == {}, "another key answers there"
    monkeypatch.setattr(link_speeds, "MEASURE_S", 0.3)
    deaf = await machines.listen(4, reads=False)
    await speeds.measure_next([deaf])
    assert speeds.mb_s == {}, "it takes no bytes, and holds nobody up"
    assert next_due([deaf], {deaf.operator: life.now_s}, life.now_s) is None


def test_half_of_the_links_are_those_next_in_a_pipeline() -> None:
    near = [record(key(number).address) for number in range(2, 2 + MAX_NEIGHBOURS // 2)]
    others = [record(key(number).address) for number in range(50, 50 + MAX_NEIGHBOURS // 2)]
    found = sampled([*near, *others])
    assert found == [*near[: MAX_LINKS // 2], *others[: MAX_LINKS // 2]]
    assert sampled(near[:3]) == near[:3]
    assert t.ZERO_ADDRESS not in {one.operator for one in found}


@pytest.mark.parametrize(
    ("pings_s", "sends_s", "mb_s"),
    [((0.1, 0.2, 0.1), (0.9, 0.6), 1.0), ((0.5, 0.5, 0.5), (0.6, 0.4), 12.5)],
    ids=["without the way there and back", "a send faster than a ping is no miracle"],
)
async def test_a_speed_is_of_the_best_send_without_the_empty_ping(
    pings_s: tuple[float, ...], sends_s: tuple[float, ...], mb_s: float
) -> None:
    ticks = [tick for took_s in pings_s for tick in (0.0, took_s)]
    for took_s in sends_s:
        ticks += [0.0, 0.0, 0.0, took_s]
    clock = iter(ticks)

    class Deaf:
        async def call(self, message: object, *, timeout_s: float) -> None: ...
        async def send(self, message: object, payload: bytes) -> None: ...

    found = await takes_mb_s(
        Deaf(),  # type: ignore[arg-type]
        500_000,
        len(sends_s),
        timeout_s=1.0,
        now_s=lambda: next(clock),
    )
    assert found == pytest.approx(mb_s)
