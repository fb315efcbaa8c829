"""A stage notices when the one it sends to is gone, and is not taken in by a broken connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from core.protocol import wire
from core.protocol.errors import HeadraceError
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Answer, Channel, Listener, Peers, StreamIdentity
from core.runtime.network.pulse import Beat
from miner.serving.neighbours import Neighbours
from tests.town.orders import DOMAIN, key

BEAT = Beat(interval_s=0.05, missed=4)
OURS, THEIRS = key(1), key(2)
WITHIN_S = 20.0


@dataclass
class Neighbour:
    """A stage that answers pings, while `answers` is set."""

    listener: Listener
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    step_ms: int = 0

    @property
    def place(self) -> tuple[str, str]:
        return THEIRS.address, f"127.0.0.1:{self.listener.port}"

    async def asks(self, more: int) -> None:
        """Wait until it was asked so many more times."""
        until = self.asked + more
        async with asyncio.timeout(WITHIN_S):
            while self.asked < until:
                await asyncio.sleep(0.01)


@dataclass
class Watching:
    neighbours: Neighbours
    lost: list[tuple[str, str]] = field(default_factory=list)
    noticed: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, operator: str, error: HeadraceError) -> None:
        self.lost.append((operator, str(error)))
        self.noticed.set()

    async def notices(self) -> str:
        async with asyncio.timeout(WITHIN_S):
            await self.noticed.wait()
        self.noticed.clear()
        operator, why = self.lost[-1]
        assert operator == THEIRS.address
        return why


@pytest.fixture
async def neighbour() -> AsyncIterator[Neighbour]:
    async def answer(channel: Channel, frame: wire.Frame) -> Answer:
        made.asked += 1
        await made.answers.wait()
        return wire.Pong(step_ms=made.step_ms)

    made = Neighbour(Listener(StreamIdentity(THEIRS, DOMAIN), answer))
    made.answers.set()
    await made.listener.start("127.0.0.1", 0)
    yield made
    await made.listener.close()


@pytest.fixture
async def watching() -> AsyncIterator[Watching]:
    neighbours = Neighbours(Peers(StreamIdentity(OURS, DOMAIN)), BEAT, SystemClock())
    made = Watching(neighbours)
    neighbours.on_lost = made.hear
    yield made
    await neighbours.close()


async def test_a_dead_neighbour_is_noticed_and_can_be_watched_again(
    neighbour: Neighbour, watching: Watching
) -> None:
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(3)
    place = neighbour.place
    await neighbour.listener.close()
    await watching.notices()
    watching.neighbours.watch(*place)
    await watching.notices()
    assert len(watching.lost) == 2


async def test_a_silent_neighbour_is_noticed_and_another_stream_is_tried_when_it_is_back(
    neighbour: Neighbour, watching: Watching
) -> None:
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(3)
    neighbour.answers.clear()
    assert "no sign of life" in await watching.notices()
    neighbour.answers.set()
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(8)
    assert len(watching.lost) == 1


async def test_a_neighbour_whose_step_hangs_is_noticed(
    neighbour: Neighbour, watching: Watching
) -> None:
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(3)
    neighbour.step_ms = 5000
    assert "its step" in await watching.notices()


async def test_a_stream_that_breaks_is_replaced_and_nobody_is_lost(
    neighbour: Neighbour, watching: Watching
) -> None:
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(2)
    (channel,) = neighbour.listener.channels
    channel._writer.transport.abort()
    await neighbour.asks(6)
    assert not watching.lost


async def test_a_neighbour_at_the_far_end_of_the_world_is_there(
    neighbour: Neighbour, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 ms one way: 0.5 s to connect, and as long until a hello is answered."""
    welcome = StreamIdentity.welcome

    async def from_far_away(*args: Any) -> Channel:
        await asyncio.sleep(5 * 0.256)
        return await welcome(*args)

    monkeypatch.setattr(StreamIdentity, "welcome", from_far_away)
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(2)
    assert not watching.lost


async def test_a_neighbour_that_hangs_up_on_every_stream_is_lost(
    neighbour: Neighbour, watching: Watching
) -> None:
    neighbour.listener._on_open = lambda channel: channel._writer.transport.abort()
    watching.neighbours.watch(*neighbour.place)
    await watching.notices()


async def test_somebody_else_at_the_neighbours_address_is_no_neighbour(
    neighbour: Neighbour, watching: Watching
) -> None:
    _, endpoint = neighbour.place
    watching.neighbours.watch(key(3).address, endpoint)
    async with asyncio.timeout(WITHIN_S):
        await watching.noticed.wait()
    assert watching.lost[0][0] == key(3).address


async def test_who_is_not_needed_any_more_is_not_asked_and_not_missed(
    neighbour: Neighbour, watching: Watching
) -> None:
    watching.neighbours.watch(*neighbour.place)
    watching.neighbours.watch(*neighbour.place)
    await neighbour.asks(3)
    assert len(neighbour.listener.channels) == 1, "watched once, however often it is asked for"
    watching.neighbours.keep_only({neighbour.place})
    await neighbour.asks(3)
    watching.neighbours.keep_only(())
    await neighbour.listener.close()
    await asyncio.sleep(BEAT.silence_s)
    assert not watching.lost
