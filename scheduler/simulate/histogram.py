"""What were the mean and the percentiles of a stream of durations, in bounded memory?"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

#: Bins grow by 1 %: a percentile is exact to half of that.
GROWTH = 0.01
SHORTEST_S = 1e-5
BINS = 2200  # up to 10^-5 × 1.01^2200 = 32,000 s
_PER_LOG = 1 / log(1 + GROWTH)


@dataclass(frozen=True, slots=True)
class Latency:
    """Durations in seconds."""

    count: int
    mean_s: float
    p5_s: float
    p25_s: float
    p50_s: float
    p75_s: float
    p95_s: float
    p99_s: float
    max_s: float


class Histogram:
    """Counts in bins of equal ratio, and the exact mean and maximum."""

    __slots__ = ("bins", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self.bins = [0] * BINS
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.count += 1
        self.sum_s += seconds
        if seconds > self.max_s:
            self.max_s = seconds
        at = int(log(seconds / SHORTEST_S) * _PER_LOG) if seconds > SHORTEST_S else 0
        self.bins[at if at < BINS else BINS - 1] += 1

    def quantile(self, share: float) -> float:
        """The duration that this share of all stays below; 0 while nothing was counted."""
        rank, below = share * self.count, 0
        for i, many in enumerate(self.bins):
            below += many
            if many and below >= rank:
                return min(self.max_s, SHORTEST_S * exp((i + 0.5) / _PER_LOG))
        return 0.0

    def summary(self) -> Latency:
        """Mean and percentiles."""
        q = self.quantile
        mean = self.sum_s / self.count if self.count else 0.0
        return Latency(
            self.count, mean, q(0.05), q(0.25), q(0.5), q(0.75), q(0.95), q(0.99), self.max_s
        )
