"""How is a mixed-integer problem of a few thousand columns put to HiGHS?

One thread, fixed seed, limits in nodes: the same problem gives the same answer. A time limit is an
extra stop for callers that have a clock; it alone can make two runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.fleet.highs import open_highs


@dataclass(frozen=True)
class LpColumn:
    """A variable ≥ 0: bound, whether it is whole, share in the objective, entries (row, value)."""

    upper: float
    whole: bool
    cost: float
    entries: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Solution:
    """Best point found (None if none), its value, and what no point can pass."""

    values: tuple[float, ...] | None
    value: float
    bound: float
    proven: bool


def maximise(
    columns: Sequence[LpColumn],
    rows: Sequence[tuple[float, float]],
    *,
    node_limit: int,
    time_limit_s: float = math.inf,
    start: Sequence[float] | None = None,
    gap: float = 0.0,
    enough: float = math.inf,
) -> Solution:
    """Maximise Σ cost·x under ``rows`` (low, high), from ``start``, to a relative ``gap``.

    A point worth ``enough`` ends the search.
    """
    api, solver = open_highs(mip_rel_gap=gap, mip_max_nodes=node_limit, time_limit=time_limit_s)
    if math.isfinite(enough):
        solver.setOptionValue("objective_target", enough)
    none_i, none_f = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
    many = len(rows)
    solver.addRows(
        many,
        np.array([low for low, _ in rows], dtype=np.float64),
        np.array([high for _, high in rows], dtype=np.float64),
        0,
        np.zeros(many, dtype=np.int32),
        none_i,
        none_f,
    )
    starts, indices, values = list[int](), list[int](), list[float]()
    for column in columns:
        starts.append(len(indices))
        for row, entry in column.entries:
            indices.append(row)
            values.append(entry)
    wide = len(columns)
    solver.addCols(
        wide,
        np.array([column.cost for column in columns], dtype=np.float64),
        np.zeros(wide),
        np.array([column.upper for column in columns], dtype=np.float64),
        len(indices),
        np.array(starts, dtype=np.int32),
        np.array(indices, dtype=np.int32),
        np.array(values, dtype=np.float64),
    )
    whole = np.array([i for i, column in enumerate(columns) if column.whole], dtype=np.int32)
    if len(whole):
        kind = np.full(len(whole), int(api.HighsVarType.kInteger), dtype=np.uint8)
        solver.changeColsIntegrality(len(whole), whole, kind)
    solver.changeObjectiveSense(api.ObjSense.kMaximize)
    if start is not None:
        first = api.HighsSolution()
        first.col_value = list(start)
        solver.setSolution(first)
    solver.run()
    status, states = solver.getModelStatus(), api.HighsModelStatus
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return Solution(None, -math.inf, -math.inf, True)
    info = solver.getInfo()
    bound = float(info.mip_dual_bound) if len(whole) else float(info.objective_function_value)
    if info.primal_solution_status != 2:  # 2: a feasible point is there
        return Solution(None, -math.inf, bound, False)
    point = tuple(float(x) for x in solver.getSolution().col_value)
    return Solution(point, float(info.objective_function_value), bound, status == states.kOptimal)
