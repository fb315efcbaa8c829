"""How is the configuration problem put to HiGHS?

Limits are in nodes: the same problem gives the same answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.highs import open_highs
from scheduler.kinds import NO_WAY, Pattern

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Master:
    """Rows: one per kind (machines used ≤ n_t), then Σ x_p. Columns: patterns."""

    def __init__(
        self,
        counts: Sequence[int],
        patterns: Sequence[Pattern],
        *,
        integer: bool = False,
        node_limit: int = 0,
    ) -> None:
        self._api: Any
        self._solver: Any
        self._api, self._solver = open_highs(
            mip_rel_gap=0.0,
            mip_abs_gap=0.99,  # stage counts are whole numbers
        )
        if integer:
            self._solver.setOptionValue("mip_max_nodes", node_limit)
        self._integer = integer
        self._kinds = len(counts)
        self._counts = np.array(counts, dtype=np.float64)
        empty_i, empty_f = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
        rows = self._kinds + 1
        self._solver.addRows(
            rows,
            np.full(rows, -math.inf),
            np.append(self._counts, math.inf),
            0,
            np.zeros(rows, dtype=np.int32),
            empty_i,
            empty_f,
        )
        self.patterns: list[Pattern] = []
        self.add(patterns)

    def add(self, patterns: Sequence[Pattern]) -> None:
        """Add patterns as columns; the basis is kept."""
        starts, indices, values = list[int](), list[int](), list[float]()
        for pattern in patterns:
            starts.append(len(indices))
            for t, times in sorted(Counter(pattern).items()):
                indices.append(t)
                values.append(times)
            indices.append(self._kinds)
            values.append(1.0)
        many = len(patterns)
        first = len(self.patterns)
        self.patterns += patterns
        if not many:
            return
        self._solver.addCols(
            many,
            np.array([len(p) for p in patterns], dtype=np.float64),
            np.zeros(many),
            np.full(many, math.inf),
            len(indices),
            np.array(starts, dtype=np.int32),
            np.array(indices, dtype=np.int32),
            np.array(values, dtype=np.float64),
        )
        if self._integer:
            whole = np.full(many, int(self._api.HighsVarType.kInteger), dtype=np.uint8)
            where = np.arange(first, first + many, dtype=np.int32)
            self._solver.changeColsIntegrality(many, where, whole)

    def _run(self, low: float, high: float, costs: Floats, maximise: bool) -> Any:
        many = len(self.patterns)
        solver, sense = self._solver, self._api.ObjSense
        solver.changeRowBounds(self._kinds, low, high)
        solver.changeColsCost(many, np.arange(many, dtype=np.int32), costs)
        solver.changeObjectiveSense(sense.kMaximize if maximise else sense.kMinimize)
        solver.run()
        return solver.getModelStatus()

    def _sizes(self) -> Floats:
        return np.array([len(p) for p in self.patterns], dtype=np.float64)

    def maximise(self) -> tuple[float, Floats, list[float]]:
        """Most pipelines in the relaxation: (Σ x, price ≥ 0 of each kind, x)."""
        if not self.patterns:
            return 0.0, np.zeros(self._kinds), []
        self._run(-math.inf, math.inf, np.ones(len(self.patterns)), maximise=True)
        solution = self._solver.getSolution()
        prices = np.maximum(0.0, np.array(solution.row_dual[: self._kinds]))
        return float(sum(solution.col_value)), prices, list(solution.col_value)

    def minimise(self, k: float) -> tuple[Floats, float, list[float]] | None:
        """Fewest stages for k pipelines in the relaxation: (price ≤ 0 of each kind, dual of Σ x = k, x)."""
        if not self.patterns:
            return None
        status = self._run(k, k, self._sizes(), maximise=False)
        if status != self._api.HighsModelStatus.kOptimal:
            return None
        solution = self._solver.getSolution()
        prices = np.minimum(0.0, np.array(solution.row_dual[: self._kinds]))
        return prices, float(solution.row_dual[self._kinds]), list(solution.col_value)

    def solve_integer(self, k: int) -> tuple[list[int] | None, int]:
        """How often each pattern is used for exactly k pipelines, and a lower bound on the stages.

        (None, NO_WAY) when these patterns cannot make k pipelines; (None, bound) when the node limit came first.
        """
        status = self._run(k, k, self._sizes(), maximise=False)
        states = self._api.HighsModelStatus
        if status == states.kInfeasible or status == states.kUnboundedOrInfeasible:
            return None, NO_WAY
        info = self._solver.getInfo()
        bound = math.ceil(info.mip_dual_bound - 1e-6) if math.isfinite(info.mip_dual_bound) else 0
        if info.primal_solution_status != 2:  # 2: a feasible point is there
            return None, bound
        return [round(x) for x in self._solver.getSolution().col_value], bound
