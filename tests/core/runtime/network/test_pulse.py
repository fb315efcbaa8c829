"""Who counts as gone: whoever hangs up, says nothing, or never gets done; and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol import wire
from core.protocol.errors import PeerUnreachable
from core.runtime.network.pulse import Accidents, Beat, Misses, until_lost
from tests.clocks import ManualClock

BEAT = Beat(interval_s=0.25, missed=3)


class Peer:
    """A stream whose peer answers with what `answer` says, at once, or with None never."""

    peer = "0xPEER"
    received = 0  # beside answers

    def __init__(self, answer: Callable[[], wire.AnyMessage | None] = wire.Pong) -> None:
        self.asked, self.closed = 0, asyncio.Event()
        self.answer = answer

    async def call(self, message: wire.AnyMessage) -> wire.Frame:
        assert isinstance(message, wire.Ping)
        self.asked += 1
        answer = self.answer()
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return wire.Frame(answer, memoryview(b""))

    async def wait_closed(self) -> None:
        await self.closed.wait()


async def watch(peer: Peer, clock: ManualClock) -> asyncio.Task[PeerUnreachable]:
    watching = asyncio.create_task(until_lost(peer, BEAT, clock))
    await clock.advance(0)
    return watching


async def test_who_answers_is_there_for_ever_and_asked_once_an_interval() -> None:
    peer, clock = Peer(), ManualClock()
    watching = await watch(peer, clock)
    await clock.advance(60.0)
    assert not watching.done()
    assert peer.asked in (240, 241)
    watching.cancel()


async def test_a_stream_that_ends_is_noticed_without_waiting() -> None:
    peer, clock = Peer(), ManualClock()
    watching = await watch(peer, clock)
    peer.closed.set()
    await clock.advance(0)
    assert "its stream ended" in str(await watching)


async def test_silence_is_noticed_after_the_missed_intervals_and_no_sooner() -> None:
    answers = iter([wire.Pong(), None])
    peer, clock = Peer(lambda: next(answers)), ManualClock()
    watching = await watch(peer, clock)
    await clock.advance(0.25 + 0.74)
    assert not watching.done()
    await clock.advance(0.02)
    assert "no sign of life for 0.75 s" in str(await watching)
    assert peer.asked == 2, "one question is enough"


async def test_who_never_answered_may_be_far_away() -> None:
    peer, clock = Peer(lambda: None), ManualClock()
    watching = await watch(peer, clock)
    await clock.advance(1.24)
    assert not watching.done()
    await clock.advance(0.02)
    assert "no sign of life for 1.25 s" in str(await watching)


async def test_the_way_of_an_answer_is_no_silence() -> None:
    """Answers take 0.55 s, at times 0.5 s more; then there are none."""
    stops = asyncio.Event()

    class Far(Peer):
        async def call(self, message: wire.AnyMessage) -> wire.Frame:
            self.asked += 1
            await clock.sleep(1.05 if self.asked == 4 else 0.55)
            if stops.is_set():
                await asyncio.Event().wait()
            return wire.Frame(wire.Pong(), memoryview(b""))

    clock = ManualClock()
    peer = Far()
    watching = await watch(peer, clock)
    for _ in range(400):
        await clock.advance(0.05)
    assert not watching.done()
    assert peer.asked > 15
    stops.set()
    for _ in range(40):
        await clock.advance(0.05)
    assert "no sign of life for 1.25 s" in str(await watching)


async def test_a_late_answer_ends_the_silence() -> None:
    answers: list[asyncio.Event] = []

    class Slow(Peer):
        async def call(self, message: wire.AnyMessage) -> wire.Frame:
            arrives = asyncio.Event()
            answers.append(arrives)
            await arrives.wait()
            return wire.Frame(wire.Pong(), memoryview(b""))

    peer, clock = Slow(), ManualClock()
    watching = await watch(peer, clock)
    for _ in range(20):
        await clock.advance(0.6)
        answers[-1].set()
        await clock.advance(0.15)
    assert len(answers) > 15
    assert not watching.done()
    watching.cancel()


@pytest.mark.parametrize(
    ("step_ms", "due_ms", "is_stuck"),
    [
        (0, 0, False),
        (700, 1, False),  # nobody is impatient sooner than with a silent one
        (800, 1, True),
        (800, 200, False),  # a step may take five times what it should
        (1100, 200, True),
        (60_000, 15_000, False),
    ],
)
async def test_a_step_that_never_ends_is_noticed_while_pings_are_answered(
    step_ms: int, due_ms: int, is_stuck: bool
) -> None:
    peer, clock = Peer(lambda: wire.Pong(step_ms=step_ms, due_ms=due_ms)), ManualClock()
    watching = await watch(peer, clock)
    await clock.advance(2.0)
    assert watching.done() == is_stuck
    if is_stuck:
        assert "it answers, but its step" in str(await watching)
    watching.cancel()


async def test_a_peer_that_answers_something_else_is_there() -> None:
    peer, clock = Peer(lambda: wire.Failed(code="E-PEER-04", reason="busy")), ManualClock()
    watching = await watch(peer, clock)
    await clock.advance(5.0)
    assert not watching.done()
    watching.cancel()


async def test_whoever_still_has_much_to_say_before_the_answer_is_there() -> None:
    peer, clock = Peer(lambda: None), ManualClock()
    watching = await watch(peer, clock)
    for _ in range(40):
        peer.received += 1
        await clock.advance(0.25)
    assert not watching.done()
    await clock.advance(1.26)
    assert "no sign of life" in str(await watching)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.0, 3.0)), max_size=60))
def test_only_as_many_missed_intervals_in_a_row_as_allowed_are_silence(
    intervals: list[tuple[bool, bool, float]],
) -> None:
    misses, in_a_row, is_open, took = Misses(BEAT), 0, 0, list[int]()
    for answered, heard, took_s in intervals:
        overslept = took_s >= 2 * BEAT.interval_s
        if answered:
            took.append(is_open)
        is_open = 0 if answered else is_open + (not overslept)
        in_a_row = 0 if answered or heard else in_a_row + (not overslept)
        usual = sorted(took[-8:]) or [2]
        allowed = BEAT.missed + usual[len(usual) // 2]
        silent = misses.is_silent(answered=answered, heard=heard, took_s=took_s)
        assert silent == (in_a_row >= allowed)


async def test_streams_that_break_are_accidents_until_three_in_a_row_held_for_no_second() -> None:
    clock = ManualClock()
    accidents = Accidents(clock)

    async def held(seconds: float) -> bool:
        accidents.begin()
        await clock.advance(seconds)
        return accidents.is_one()

    assert [await held(0.1), await held(0.1), await held(5.0)] == [True, True, True]
    assert [await held(0.1), await held(0.0), await held(0.9)] == [True, True, False]
