"""What time is it, and who decides: the system or a test?"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Time as an argument. ``now`` is seconds since 1970 (UTC); ``monotonic`` never goes back."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until ``advance``; sleepers wake in the order of their times."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._start = now
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._start + self._elapsed_s

    def monotonic(self) -> float:
        return self._elapsed_s

    @property
    def sleepers(self) -> int:
        """How many tasks wait for this clock."""
        return sum(not entry[2].done() for entry in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on, waking each sleeper at its own time and letting it run until it waits again."""
        until = self._elapsed_s + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._elapsed_s, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await _settle()
        self._elapsed_s = until


async def _settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
