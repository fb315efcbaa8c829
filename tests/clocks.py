"""For whom is a pause over before it is?"""

from __future__ import annotations

import asyncio

from core.runtime.clock import SystemClock


class Hasty(SystemClock):
    """A pause lasts `most_s` at most. Pauses are counted: a loop that pauses has looked and found nothing to do."""

    def __init__(self, most_s: float = 0.02) -> None:
        self._most_s, self.pauses = most_s, 0

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        await asyncio.sleep(min(seconds, self._most_s))
