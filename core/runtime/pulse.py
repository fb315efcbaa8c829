"""Is a peer still there? Asked a few times a second, because a frozen machine ends no stream.

Only the network side of a machine is asked: one that computes with all it has still answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from core.protocol import wire
from core.protocol.errors import PeerUnreachable
from core.runtime.clock import Clock


@dataclass(frozen=True)
class Beat:
    """Ask every `interval_s`; a question that `missed` intervals have not answered means silence."""

    interval_s: float = 0.25
    missed: int = 3


class Asked(Protocol):
    """The part of `Channel` that is listened to."""

    peer: str

    async def call(self, message: wire.AnyMessage) -> wire.Frame: ...

    async def wait_closed(self) -> None: ...


class Misses:
    """How many intervals in a row went by without an answer. An interval that we overslept ourselves proves nothing."""

    def __init__(self, beat: Beat) -> None:
        self._beat, self._missed = beat, 0

    def is_silent(self, *, answered: bool, took_s: float) -> bool:
        """After each interval, which took us `took_s`: whether the peer has been silent for too long."""
        if answered:
            self._missed = 0
        elif took_s < 2 * self._beat.interval_s:
            self._missed += 1
        return self._missed >= self._beat.missed


async def until_lost(stream: Asked, beat: Beat, clock: Clock) -> PeerUnreachable:
    """Wait until a stream ends or its peer falls silent; says which."""
    misses, ping = Misses(beat), None
    closed = asyncio.create_task(stream.wait_closed())
    try:
        while True:
            ping = ping or asyncio.create_task(_answers(stream))
            began = clock.monotonic()
            pause = asyncio.create_task(clock.sleep(beat.interval_s))
            try:
                await asyncio.wait({closed, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
            if closed.done():
                return PeerUnreachable(stream.peer, "its stream ended")
            if misses.is_silent(answered=ping.done(), took_s=clock.monotonic() - began):
                silent_s = beat.interval_s * beat.missed
                return PeerUnreachable(stream.peer, f"no sign of life for {silent_s:g} s")
            if ping.done():
                ping = None
    finally:
        for task in (closed, ping):
            if task is not None:
                task.cancel()


async def _answers(stream: Asked) -> None:
    """Ask until there is an answer; a stream that ends is noticed elsewhere."""
    while True:
        try:
            await stream.call(wire.Ping())
            return
        except PeerUnreachable:
            await asyncio.sleep(1.0)  # closed, or slower than any call may be
