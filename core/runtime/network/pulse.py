"""Is a peer still there, and does it still compute? A frozen machine ends no stream, so we ask.

The network side answers, and tells how long the compute side has been at the step that it runs: one
that computes with all it has is there, one whose step takes many times what it should is not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from core.protocol import wire
from core.protocol.errors import PeerUnreachable
from core.runtime.clock import Clock

#: Limit for a stream to a peer that should be there. Connecting and the handshake are five ways,
#: 1.3 s of them at 256 ms each, and loops at both ends may be busy. A dead peer refuses at once, so
#: this is the pause of one case alone: a stream ends and its machine cannot be reached.
CONNECT_S = 2.0
#: Intervals that an answer of a peer may take, before any of its answers says how far away it is.
FAR_INTERVALS = 2
_ANSWERS = 8
#: A step that takes this many times what was expected of it is not going to end.
STUCK_FACTOR = 5


@dataclass(frozen=True)
class Beat:
    """Ask every `interval_s`; `missed` intervals without an answer or a frame mean silence.

    Beside those go the intervals that its answers usually take: two at 256 ms one way, and some
    where a loop has hundreds of requests to wake.
    """

    interval_s: float = 0.25
    missed: int = 3

    @property
    def silence_s(self) -> float:
        return self.interval_s * self.missed

    def is_stuck(self, step_s: float, due_s: float) -> bool:
        """Whether a step takes longer than it should, and than silence may last: it hangs."""
        return step_s > max(self.silence_s, STUCK_FACTOR * due_s)


class AskedChannel(Protocol):
    """The part of `Channel` that is listened to."""

    peer: str

    @property
    def received(self) -> int:
        """Frames that came so far: signs of life before an answer."""

    async def call(self, message: wire.AnyMessage) -> wire.Frame: ...

    async def wait_closed(self) -> None: ...


class Misses:
    """How many intervals in a row nothing came; an interval that we overslept proves nothing."""

    def __init__(self, beat: Beat) -> None:
        self._beat, self._missed, self._open = beat, 0, 0  # of the question: intervals
        self._took: deque[int] = deque(maxlen=_ANSWERS)  # intervals, of the last answers

    @property
    def allowed(self) -> int:
        """This many are silence."""
        took = sorted(self._took) or [FAR_INTERVALS]
        return self._beat.missed + took[len(took) // 2]

    def is_silent(self, *, answered: bool, heard: bool, took_s: float) -> bool:
        """After each interval, which took us `took_s`: whether the peer is silent for too long.

        `answered`: our question. `heard`: anything; what came before the answer waits to be read.
        """
        counts = took_s < 2 * self._beat.interval_s
        if answered:
            self._took.append(self._open)
        self._open = 0 if answered else self._open + counts
        self._missed = 0 if answered or heard else self._missed + counts
        return self._missed >= self.allowed


class Accidents:
    """Is a stream that ended worth another one? A few in a row of under a second are not."""

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


async def until_lost(stream: AskedChannel, beat: Beat, clock: Clock) -> PeerUnreachable:
    """Wait until a stream ends, its peer falls silent or its peer's step hangs; says which."""
    misses, ping = Misses(beat), None
    closed = asyncio.create_task(stream.wait_closed())
    try:
        while True:
            ping = ping or asyncio.create_task(_answer(stream))
            began, received = clock.monotonic(), stream.received
            pause = asyncio.create_task(clock.sleep(beat.interval_s))
            try:
                await asyncio.wait({closed, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if closed.done():
                return PeerUnreachable(stream.peer, "its stream ended")
            took_s, heard = clock.monotonic() - began, stream.received != received
            if misses.is_silent(answered=ping.done(), heard=heard, took_s=took_s):
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


async def _answer(stream: AskedChannel) -> wire.Pong:
    """Ask until there is an answer, whatever it is; a stream that ends is noticed elsewhere."""
    while True:
        try:
            answer = (await stream.call(wire.Ping())).message
            return answer if isinstance(answer, wire.Pong) else wire.Pong()
        except PeerUnreachable:
            await asyncio.sleep(1.0)  # closed, or slower than any call may be
