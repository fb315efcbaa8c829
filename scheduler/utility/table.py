"""Which patterns are there for a whole plan, and what is each of them worth?

Listed and scored once, shared by all scopes of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.fleet.arrays import Floats, Ints
from scheduler.utility.columns import every_pattern
from scheduler.utility.kinds import Grouped, Steps, steps_of
from scheduler.utility.score import fastest_ms, rate, utility


class PatternTable:
    """``counts`` [kind, pattern] of every pattern that holds the model, its ``stages``, ``theta``
    and least ``compute_ms`` per token at θ.
    """

    def __init__(self, grouped: Grouped, most: Sequence[int], rows: int) -> None:
        self.steps: Steps = steps_of(grouped.kinds, grouped.layers)
        counts = every_pattern(self.steps, most, rows)
        step = rate(counts, self.steps)
        holds = np.flatnonzero(step >= 0)
        step, self.counts = step[holds], counts[:, holds]
        self.stages: Ints = self.counts.sum(axis=0)
        self.theta: Floats = self.steps.rates[step]
        self.compute_ms: Floats = fastest_ms(self.counts, step, self.steps)

    def within(self, supply: Ints) -> Ints:
        """The patterns that the supply of each kind can form."""
        return np.flatnonzero((self.counts <= supply[:, None]).all(axis=0))

    def worth(self, rows: Ints, beta: float, hop_ms: float) -> Floats:
        """u_p of these patterns with hops of `hop_ms`."""
        latency_ms = self.compute_ms[rows] + (self.stages[rows] - 1) * hop_ms
        return utility(self.theta[rows], latency_ms, beta)
