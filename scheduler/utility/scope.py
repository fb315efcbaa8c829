"""Which patterns should the machines of one scope form, and how far from the best is that?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.covering.simplex import maximise
from scheduler.covering.whole import Search, best_whole
from scheduler.fleet.arrays import Ints
from scheduler.fleet.gap import relative_gap
from scheduler.utility.table import PatternTable

#: Of the bound, what a first search may waste beyond what every plan wastes.
FIRST = 0.005


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits in counts: ``rows`` patterns are listed at most, ``classes`` told apart in bounding
    what they waste, and ``searches`` made in order, each until the plan is near enough to its
    bound.
    """

    rows: int = 6_000
    classes: int = 2_048
    searches: tuple[Search, ...] = (Search(100, 0.001), Search(400, 0.01))


@dataclass(frozen=True)
class Solved:
    """Patterns (rows of the table), how often, their utility, and what the scope cannot pass."""

    rows: Ints
    times: Ints
    value: float
    bound: float

    @property
    def gap(self) -> float:
        return relative_gap(self.value, self.bound)


def solve(
    table: PatternTable,
    supply: Ints,
    beta: float,
    hop_ms: float,
    effort: Effort,
    above_all: float = 0.0,
) -> Solved:
    """Maximise Σ u_p x_p within the supply; nothing when `above_all` is out of reach."""
    rows = table.within(supply)
    nothing = np.zeros(0, dtype=np.int64)
    if not rows.size:
        return Solved(nothing, nothing, 0.0, 0.0)
    counts, worth = table.counts[:, rows], table.worth(rows, beta, hop_ms)
    slots = supply.astype(np.float64)
    mix = maximise(counts.astype(np.float64), worth, slots)
    over = max(0.0, float((worth - mix.prices @ counts).max()))
    bound = float(mix.prices @ slots) + over * int(supply.sum() // table.stages[rows].min())
    if bound <= above_all:
        return Solved(nothing, nothing, 0.0, bound)
    whole = best_whole(
        counts, worth, supply, mix, bound, effort.searches, effort.classes, FIRST * bound
    )
    used = np.flatnonzero(whole.times)
    return Solved(rows[used], whole.times[used], float(whole.value), float(whole.bound))
