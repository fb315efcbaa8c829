"""What did a profiler measure of one machine with one model?

Where a machine has a profile, every cost is read from its curves; without one it comes from the
roofline of `costs`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from scheduler.fleet.errors import FleetError


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured curve: linear, flat before the first point, straight on after the last."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.xs) < 2 or len(self.xs) != len(self.ys):
            raise FleetError(
                f"a curve of {len(self.xs)} and {len(self.ys)} numbers, needs two points"
            )
        if any(not (math.isfinite(v) and v >= 0) for v in (*self.xs, *self.ys)):
            raise FleetError("a curve with a negative or endless point")
        if any(a >= b for a, b in pairwise(self.xs)):
            raise FleetError("a curve whose points do not go from left to right")

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Curve:
        """The curve through (x, y) points."""
        listed = tuple((float(x), float(y)) for x, y in points)
        return cls(tuple(x for x, _ in listed), tuple(y for _, y in listed))

    def __call__(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return ys[0]
        right = min(bisect_left(xs, x), len(xs) - 1)
        left = right - 1
        slope = (ys[right] - ys[left]) / (xs[right] - xs[left])
        return max(0.0, ys[left] + slope * (x - xs[left]))


@dataclass(frozen=True, slots=True)
class Profile:
    """One machine, one model.

    ``prefill_ms_per_layer`` maps prompt tokens in a batch, ``decode_ms_per_layer`` requests in a
    batch, to ms for one layer; a mixed batch costs the sum. Entry k − 1 of a ``*_by_layers`` tuple
    is for a machine that holds k layers: tokens of KV cache over all of them at once, and the most
    prompts or decode steps in one batch. ``tokens_per_s_by_layers`` is T(k) as a planner credits it
    (prompt and output tokens together), None to derive it.
    """

    prefill_ms_per_layer: Curve
    decode_ms_per_layer: Curve
    kv_tokens_by_layers: tuple[int, ...]
    max_prefill_requests_by_layers: tuple[int, ...]
    max_decode_requests_by_layers: tuple[int, ...]
    tokens_per_s_by_layers: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in (
            "kv_tokens_by_layers",
            "max_prefill_requests_by_layers",
            "max_decode_requests_by_layers",
        ):
            listed = getattr(self, name)
            if len(listed) != self.max_layers or any(value < 0 for value in listed):
                raise FleetError(f"{name}: {len(listed)} entries for {self.max_layers} layers")
        rates = self.tokens_per_s_by_layers
        if rates is not None and (
            len(rates) != self.max_layers or any(not 0 < r < math.inf for r in rates)
        ):
            raise FleetError(f"tokens_per_s_by_layers: not {self.max_layers} rates above 0")

    @property
    def max_layers(self) -> int:
        """Most layers of this model that the machine holds."""
        return len(self.kv_tokens_by_layers)
