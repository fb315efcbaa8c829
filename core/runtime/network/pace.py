"""How much may many have a program do? So many turns a second, all of them together."""

from __future__ import annotations

import asyncio


class FramePace:
    """Turns in the order in which they are asked for, after a burst at once.

    Who asks for one turn after the other, as a stream does that has one frame more, shares them
    equally with all others that do.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._turn_s, self._burst = 1.0 / per_s, burst
        self._due_s = float("-inf")
        self._asked = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for one."""
        now_s = asyncio.get_running_loop().time()
        async with self._asked:
            self._due_s = max(self._due_s, now_s - self._burst * self._turn_s) + self._turn_s
            await asyncio.sleep(max(0.0, self._due_s - asyncio.get_running_loop().time()))
