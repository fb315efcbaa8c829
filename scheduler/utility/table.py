"""Which patterns are there for a whole plan, and which of them are worth scoring exactly?

Listed once, shared by all scopes of a plan. A pattern is scored only when a cheap upper bound of its utility beats the
prices of its machines (columns cut by reduced cost).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.utility.columns import every_pattern
from scheduler.utility.kinds import Floats, Grouped, Ints, Steps, steps_of
from scheduler.utility.score import REF_MS, fastest_ms, holds, rate

UNKNOWN = -2


class Table:
    """``counts`` [kind, pattern]; ``step`` is the index of θ, -1 for none, and UNKNOWN until rated; ``theta`` is θ, and
    ``compute_ms`` the time per token at θ, NaN until timed."""

    def __init__(self, grouped: Grouped, most: Sequence[int], rows: int) -> None:
        self.steps: Steps = steps_of(grouped.kinds, grouped.layers)
        listed = every_pattern(self.steps, most, rows)
        self.longest = 0 if listed is None else listed[1]
        kinds = len(grouped.kinds)
        self.counts: Ints = np.zeros((kinds, 0), dtype=np.int64) if listed is None else listed[0]
        self.best_rate = np.array([kind.best_rate for kind in grouped.kinds])
        many = self.counts.shape[1]
        self.step: Ints = np.full(many, UNKNOWN)
        self.theta: Floats = np.zeros(many)
        self.compute_ms: Floats = np.full(many, np.nan)
        self._derive()

    def _derive(self) -> None:
        counts, steps = self.counts, self.steps
        self.stages: Ints = counts.sum(axis=0)
        self.area: Floats = self.best_rate @ counts / steps.layers
        left = np.maximum(0, steps.layers - self.stages)
        least = steps.tau_ms @ counts
        for t in range(len(counts)):  # kinds are in order of time per layer
            take = np.minimum(counts[t] * (steps.plain[t, 0] - 1), left)
            least = least + take * steps.tau_ms[t]
            left = left - take
        self.least_ms: Floats = least

    def rate(self, rows: Ints) -> None:
        """θ of these rows, where not yet known."""
        fresh = rows[self.step[rows] == UNKNOWN]
        if fresh.size:
            step = rate(self.counts[:, fresh], self.steps)
            self.step[fresh] = step
            self.theta[fresh] = np.where(step >= 0, self.steps.rates[step], 0.0)

    def score(self, rows: Ints) -> None:
        """θ and compute time of these rows, where not yet known."""
        self.rate(rows)
        fresh = rows[np.isnan(self.compute_ms[rows]) & (self.step[rows] >= 0)]
        if fresh.size:
            self.compute_ms[fresh] = fastest_ms(self.counts[:, fresh], self.step[fresh], self.steps)

    def factor(self, rows: Ints, compute_ms: Floats, beta: float, hop_ms: float) -> Floats:
        """(ref / latency)^β for these rows with the given compute times."""
        if beta == 0:
            return np.ones(len(rows))
        latency = compute_ms + (self.stages[rows] - 1) * hop_ms
        factor: Floats = (REF_MS / np.maximum(1e-9, latency)) ** beta
        return factor

    def worth(self, rows: Ints, beta: float, hop_ms: float) -> Floats:
        """u_p of scored rows."""
        worth = np.zeros(len(rows))
        good = np.flatnonzero(self.theta[rows] > 0)
        rows = rows[good]
        worth[good] = self.theta[rows] * self.factor(rows, self.compute_ms[rows], beta, hop_ms)
        return worth

    def promising(
        self, rows: Ints, prices: Floats, beta: float, hop_ms: float, above: float
    ) -> Ints:
        """Untimed rows among these whose utility may exceed the prices of their machines by more than `above`."""
        rows = rows[np.isnan(self.compute_ms[rows]) & (self.step[rows] != -1)]
        factor = self.factor(rows, self.least_ms[rows], beta, hop_ms)
        needed = (prices @ self.counts[:, rows] + above) / factor  # θ from which on it would pay
        may = self.area[rows] > needed
        rows, needed = rows[may], needed[may]
        unknown = self.step[rows] == UNKNOWN
        step = np.searchsorted(self.steps.rates, needed, side="right")
        may = unknown & (step < len(self.steps.rates))
        asked = np.flatnonzero(may & (self.stages[rows] > 1))
        may[asked] = holds(self.counts[:, rows[asked]], step[asked], self.steps)
        self.rate(rows[may])
        worth_it: Ints = rows[(may | ~unknown) & (self.theta[rows] > needed)]
        return worth_it
