"""What is a float32 stage held to on these rows, in every window, without a plea and after one?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.trust.town import Town
from core.dispute.play.build import Boundaries
from core.dispute.play.plea import Conditioning, most_noise
from core.dispute.registration.search import PARTS, tolerance_of, window_sums
from core.dispute.trace.layout import TraceLayout

WINDOWS = (1, 16, 64)


class Limits:
    """Limits of one stage of a town on rows [N, D] that it was given."""

    def __init__(self, here: Town, stage: int, rows: Tensor, seeds: Sequence[int]) -> None:
        self._program, span = here.ours.program, here.spans[stage]
        self._depth = span.end - span.start
        layout = TraceLayout(self._program, span.start, span.end, len(rows), 0)
        self._of = Conditioning(layout, here.traced, Boundaries(rows.float().numpy()))
        self._changes = [self._of.change(seed) for seed in seeds]

    def lifted(self) -> float:
        """K·N over T·S, at most: what a plea lifts the limit to."""
        return max(float(np.sqrt(noise / size).max()) for size, noise, _ in self._windows())

    def shares(self, served: Tensor, *, pleaded: bool) -> Iterator[Any]:
        """D over the limit in every window of each length."""
        far = self._of.deviation(served.float().numpy())
        for size, noise, wide in self._windows():
            limit = np.maximum(size, noise) if pleaded else size
            yield np.sqrt(window_sums(far, wide) / limit)

    def _windows(self) -> Iterator[tuple[Any, Any, int]]:
        """T²·S² and K²·N² of every window, by length."""
        most = most_noise(self._program) ** 2
        for wide in WINDOWS:
            if wide > len(self._of.size):
                continue
            tolerance = tolerance_of(self._program, self._depth, wide)
            assert tolerance is not None, "a stage that the program does not judge"
            least = tolerance.parts_per_trillion / PARTS
            noise = np.max([window_sums(change, wide) for change in self._changes], axis=0)
            yield window_sums(self._of.size, wide) * least**2, most * noise, wide
