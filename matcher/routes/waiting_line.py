"""When is it this order's turn? Orders that find no free machine wait, requesters by turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scheduler.routing.reservations import Reservations

if TYPE_CHECKING:
    from core.runtime.clock import Clock


class WaitingLine:
    """Wakes the order that is next by the book. `wake` is called when room may have appeared."""

    def __init__(self, book: Reservations) -> None:
        self._book = book
        self._calls: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._calls)

    async def turn(
        self, name: str, among: frozenset[str], until_s: float, clock: Clock, owner: str = ""
    ) -> bool:
        """Whether room on some of these machines appeared by then that no earlier order waits for.

        An order that is called and finds no chain calls this again and keeps its place; one that
        gives up calls `leave`.
        """
        self._book.wait(name, int(clock.now() * 1000), among, owner)
        called = self._calls[name] = asyncio.Event()
        sleep = clock.sleep(until_s - clock.now())
        timer = asyncio.create_task(sleep, name=f"patience {name[:10]}")
        call = asyncio.create_task(called.wait(), name=f"turn {name[:10]}")
        try:
            self.wake()
            await asyncio.wait((timer, call), return_when=asyncio.FIRST_COMPLETED)
            return called.is_set()
        finally:
            timer.cancel()
            call.cancel()
            del self._calls[name]

    def failed(self, name: str) -> None:
        """It was called and found no chain: the next one is called, and it again with new room."""
        if name in self._book.waiting():
            self._book.failed(name)
        self.wake()

    def leave(self, name: str, now_ms: int) -> None:
        """It waits no longer. Safe if it never waited, or holds what it waited for."""
        if name in self._book.waiting():
            self._book.release(name, now_ms)
        self.wake()

    def wake(self) -> None:
        """Call the order that is due. Each calls the next by `failed` or `leave`."""
        due = self._book.due()
        if due is not None and due in self._calls:
            self._calls[due].set()
