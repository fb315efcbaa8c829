"""Which columns, one a model, cost least under the GPU counts (a multiple-choice knapsack)?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.fabric.columns import Column


@dataclass(frozen=True)
class Knapsack:
    """C1: Σ_m a_{m,n} ≤ d_n for all n (§3.3, equation 2), and one column for each model.

    ``costs`` has one number per part of each column; the value is their sum, or their largest with
    ``worst``.
    """

    counts: tuple[int, ...]
    models: int
    columns: tuple[Column, ...]
    costs: tuple[tuple[float, ...], ...]
    worst: bool = False

    def value(self, chosen: Sequence[int]) -> float:
        """The objective of a choice of columns."""
        costs = [c for column in chosen for c in self.costs[column]]
        return max(costs, default=0.0) if self.worst else math.fsum(costs)

    def only(self, kept: Sequence[int]) -> Knapsack:
        """The same question over some of the columns."""
        return Knapsack(
            self.counts,
            self.models,
            tuple(self.columns[c] for c in kept),
            tuple(self.costs[c] for c in kept),
            self.worst,
        )


@dataclass(frozen=True)
class Picked:
    """Indices of the chosen columns, their value, and a bound that no choice of these beats."""

    chosen: tuple[int, ...]
    value: float
    bound: float
