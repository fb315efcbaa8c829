"""A value of another program, kept for a moment, with the time at which it was true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.protocol.errors import HeadraceError
from core.runtime.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True)
class Dated(Generic[T]):
    """What was last known and when it was read; `problem` says why it could not be read again."""

    value: T | None
    at_ms: int
    problem: str = ""


class Cached(Generic[T]):
    """Asks at most once at a time; a reader waits only briefly where there is an older value."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[T]],
        clock: Clock,
        *,
        fresh_s: float = 1.0,
        patience_s: float = 0.08,
        first_patience_s: float = 2.0,
    ) -> None:
        """`patience_s` is how long a reader waits for a newer value when there is an older one."""
        self._fetch, self._clock = fetch, clock
        self._fresh_s, self._patience_s, self._first_s = fresh_s, patience_s, first_patience_s
        self._known: Dated[T] = Dated(None, 0, "not read yet")
        self._read_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def get(self) -> Dated[T]:
        """The value, at most `fresh_s` old where its owner answers in time. Raises nothing."""
        if self._clock.monotonic() - self._read_at > self._fresh_s:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            patience_s = self._first_s if self._known.value is None else self._patience_s
            await asyncio.wait({self._asking}, timeout=patience_s)
        return self._known

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        try:
            value = await self._fetch()
        except HeadraceError as error:
            self._known = Dated(self._known.value, self._known.at_ms, f"{error.what}: {error.why}")
        else:
            self._known = Dated(value, int(self._clock.now() * 1000))
        self._read_at = self._clock.monotonic()
