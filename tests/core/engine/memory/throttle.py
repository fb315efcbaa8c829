"""A second tier that is as slow as a test wants it to be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from core.engine.memory.layout import PageShape
from core.engine.memory.offload import ArenaPlan, SwapStore


class Throttle:
    """A token bucket: `take` waits until these bytes may pass. The bucket holds one burst."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        burst_bytes: int = 4 * 2**20,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._burst = bytes_per_s, float(burst_bytes)
        self._clock, self._sleep = clock, sleep
        self._level, self._at = 0.0, clock()

    def take(self, size_bytes: int) -> None:
        """Waits in debt: a copy larger than the bucket passes when its last byte may."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - size_bytes
        self._at = now
        if self._level < 0:
            self._sleep(-self._level / self._rate)


class ThrottledStore(SwapStore):
    """A `SwapStore` whose copier goes at the throttle's rate."""

    def __init__(
        self, shapes: Sequence[PageShape], plans: Sequence[ArenaPlan], throttle: Throttle
    ) -> None:
        self._throttle = throttle
        super().__init__(shapes, plans, torch.float32)

    def _account(self, size_bytes: int, started: float) -> None:
        self._throttle.take(size_bytes)
        super()._account(size_bytes, started)
