"""Is a peer still there, and does it still compute? Asked a few times a second, because a frozen machine ends no stream.

The network side answers, and tells how long the compute side has been at the step that it runs: one that computes with all it
has is there, one whose step takes many times what it should is not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from core.protocol import wire
from core.protocol.errors import PeerUnreachable
from core.runtime.clock import Clock

#: Intervals that an answer of a peer may travel, before any of its answers says how far away it is.
FAR_INTERVALS = 2
#: A step that takes so many times what was expected of it is not going to end.
STUCK_FACTOR = 5


@dataclass(frozen=True)
class Beat:
    """Ask every `interval_s`; a question that `missed` intervals have not answered means silence.

    Beside those go the intervals that answers of this peer have always taken: at 256 ms one way they are two.
    """

    interval_s: float = 0.25
    missed: int = 3

    @property
    def silence_s(self) -> float:
        return self.interval_s * self.missed

    def is_stuck(self, step_s: float, due_s: float) -> bool:
        """Whether a step has run so much longer than it should, and than anybody may be silent, that it hangs."""
        return step_s > max(self.silence_s, STUCK_FACTOR * due_s)


class Asked(Protocol):
    """The part of `Channel` that is listened to."""

    peer: str

    async def call(self, message: wire.AnyMessage) -> wire.Frame: ...

    async def wait_closed(self) -> None: ...


class Misses:
    """How many intervals in a row went by without an answer. An interval that we overslept ourselves proves nothing."""

    def __init__(self, beat: Beat) -> None:
        self._beat, self._missed = beat, 0
        self._far: int | None = None  # the fewest intervals that an answer took

    @property
    def allowed(self) -> int:
        """So many are silence."""
        return self._beat.missed + (FAR_INTERVALS if self._far is None else self._far)

    def is_silent(self, *, answered: bool, took_s: float) -> bool:
        """After each interval, which took us `took_s`: whether the peer has been silent for too long."""
        if answered:
            self._far = self._missed if self._far is None else min(self._far, self._missed)
            self._missed = 0
        elif took_s < 2 * self._beat.interval_s:
            self._missed += 1
        return self._missed >= self.allowed


class Accidents:
    """Which stream that ended is worth another one? A few in a row that held for no second are one too many."""

    HOLDS_S, IN_A_ROW = 1.0, 3

    def __init__(self, clock: Clock) -> None:
        self._clock, self._short, self._began = clock, 0, clock.monotonic()

    def begin(self) -> None:
        """There is a stream."""
        self._began = self._clock.monotonic()

    def is_one(self) -> bool:
        """The stream has ended: whether that was an accident, and another one may be tried."""
        held = self._clock.monotonic() - self._began >= self.HOLDS_S
        self._short = 0 if held else self._short + 1
        return self._short < self.IN_A_ROW


async def until_lost(stream: Asked, beat: Beat, clock: Clock) -> PeerUnreachable:
    """Wait until a stream ends, its peer falls silent or its peer's step hangs; says which."""
    misses, ping = Misses(beat), None
    closed = asyncio.create_task(stream.wait_closed())
    try:
        while True:
            ping = ping or asyncio.create_task(_answer(stream))
            began = clock.monotonic()
            pause = asyncio.create_task(clock.sleep(beat.interval_s))
            try:
                await asyncio.wait({closed, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if closed.done():
                return PeerUnreachable(stream.peer, "its stream ended")
            if misses.is_silent(answered=ping.done(), took_s=clock.monotonic() - began):
                silent_s = misses.allowed * beat.interval_s
                return PeerUnreachable(stream.peer, f"no sign of life for {silent_s:g} s")
            if ping.done():
                pong, ping = ping.result(), None
                step_s, due_s = pong.step_ms / 1000, pong.due_ms / 1000
                if beat.is_stuck(step_s, due_s):
                    hangs = f"it answers, but its step of {due_s:g} s has run for {step_s:g} s"
                    return PeerUnreachable(stream.peer, hangs)
    finally:
        for task in (closed, ping):
            if task is not None:
                task.cancel()


async def _answer(stream: Asked) -> wire.Pong:
    """Ask until there is an answer, whatever it is; a stream that ends is noticed elsewhere."""
    while True:
        try:
            answer = (await stream.call(wire.Ping())).message
            return answer if isinstance(answer, wire.Pong) else wire.Pong()
        except PeerUnreachable:
            await asyncio.sleep(1.0)  # closed, or slower than any call may be
