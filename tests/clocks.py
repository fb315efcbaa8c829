"""Clocks of tests: that hurries, whose sleeps are over at once, that stands still until moved."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from core.runtime.clock import SystemClock


class Hasty(SystemClock):
    """A pause lasts `most_s` at most. Pauses are counted: a loop that pauses has nothing to do."""

    def __init__(self, most_s: float = 0.02) -> None:
        self._most_s, self.pauses = most_s, 0

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        await asyncio.sleep(min(seconds, self._most_s))


class InstantClock:
    """A clock whose sleeps take no time but count."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._start, self.slept = start, list[float]()

    def now(self) -> float:
        return self._start + sum(self.slept)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


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
