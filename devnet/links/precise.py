"""Which event loop wakes within a fraction of a millisecond of the time it was asked to?"""

from __future__ import annotations

import asyncio
import select
import selectors


def precise_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are exact to what the system's scheduler allows."""
    return asyncio.SelectorEventLoop(_selector())


def _selector() -> selectors.BaseSelector:
    if not hasattr(selectors, "EpollSelector"):
        return selectors.SelectSelector()

    class Precise(selectors.EpollSelector):
        """epoll counts milliseconds and rounds up; select(2) on its descriptor microseconds."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is None or timeout <= 0:
                return super().select(timeout)
            ready, _, _ = select.select([self.fileno()], [], [], timeout)
            return super().select(0) if ready else []

    return Precise()
