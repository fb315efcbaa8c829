"""How is a slow source looked at for many who ask? Once a second, for all who asked before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedLook(Generic[T]):
    """A look that everybody may ask for, however often."""

    def __init__(
        self,
        look: Callable[[], Awaitable[T]],
        monotonic: Callable[[], float],
        *,
        every_s: float = 1.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._look, self._monotonic, self._every_s, self._sleep = look, monotonic, every_s, sleep
        self._turn = asyncio.Lock()
        self._tried_s = float("-inf")
        self._seen: tuple[float, T] | None = None  # when the look began, and what it found

    async def fresh(self) -> T:
        """What a look finds that begins no earlier than this call. Raises what the look raises."""
        asked_s = self._monotonic()
        async with self._turn:
            if self._seen is not None and self._seen[0] >= asked_s:
                return self._seen[1]
            early_s = self._tried_s + self._every_s - self._monotonic()
            if early_s > 0:
                await self._sleep(early_s)
            self._tried_s = began_s = self._monotonic()
            self._seen = began_s, await self._look()
            return self._seen[1]
