"""How is a flow shared out so that requests enter as few slices as possible?

min Σ e(i, g), e(i, g) ≥ y(i, g) − y(i, g − 1), Σ_i y(i, g) = T, Σ_g layers(g) y(i, g) ≤ rate(i), all ≥ 0: what a slice
passes on a segment beyond what it passed on the one before has entered it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from scheduler.highs import open_highs

Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def fewest_entries(
    spans: Sequence[tuple[int, int]], rates: Sequence[float], widths: Floats, flow: float
) -> Floats | None:
    """[slice, segment] tokens/s of least entries; None when neither solver is there or none succeeds."""
    cells = [(i, g) for i, (a, b) in enumerate(spans) for g in range(a, b)]
    n, slices, segments = len(cells), len(spans), len(widths)
    index = {cell: v for v, cell in enumerate(cells)}
    # Columns: y of every cell, then e of every cell. Everything is scaled by the flow.
    row, column, value = list[int](), list[int](), list[float]()
    for v, (i, g) in enumerate(cells):
        row += [g, segments + i]
        column += [v, v]
        value += [1.0, float(widths[g])]
        at = segments + slices + v
        row += [at, at]
        column += [v, n + v]
        value += [1.0, -1.0]
        if g > spans[i][0]:
            row.append(at)
            column.append(index[i, g - 1])
            value.append(-1.0)
    lower = np.concatenate([np.ones(segments), np.full(slices + n, -np.inf)])
    upper = np.concatenate([np.ones(segments), np.array(rates) / flow, np.zeros(n)])
    cost = np.concatenate([np.zeros(n), np.ones(n)])
    order = np.lexsort((row, column))
    entries = (np.array(row)[order], np.array(column)[order], np.array(value)[order])
    solution = _solve(cost, lower, upper, entries)
    if solution is None:
        return None
    shares = np.zeros((slices, segments))
    for v, (i, g) in enumerate(cells):
        shares[i, g] = max(0.0, solution[v]) * flow
    return shares


def _solve(
    cost: Floats, lower: Floats, upper: Floats, entries: tuple[Any, Any, Any]
) -> Floats | None:
    try:
        api, solver = open_highs()
    except ImportError:
        return _solve_by_scipy(cost, lower, upper, entries)
    row, column, value = entries
    problem = api.HighsLp()
    problem.num_col_, problem.num_row_ = len(cost), len(lower)
    problem.col_cost_ = cost
    problem.col_lower_, problem.col_upper_ = np.zeros(len(cost)), np.full(len(cost), np.inf)
    problem.row_lower_, problem.row_upper_ = lower, upper
    problem.a_matrix_.format_ = api.MatrixFormat.kColwise
    problem.a_matrix_.start_ = np.searchsorted(column, np.arange(len(cost) + 1)).astype(np.int32)
    problem.a_matrix_.index_ = row.astype(np.int32)
    problem.a_matrix_.value_ = value
    solver.passModel(problem)
    solver.run()
    if solver.getModelStatus() != api.HighsModelStatus.kOptimal:
        return None
    return np.array(solver.getSolution().col_value)


def _solve_by_scipy(
    cost: Floats, lower: Floats, upper: Floats, entries: tuple[Any, Any, Any]
) -> Floats | None:
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ImportError:
        return None
    row, column, value = entries
    matrix = coo_array((value, (row, column)), shape=(len(lower), len(cost))).tocsr()
    equal = np.flatnonzero(lower == upper)
    below = np.flatnonzero(lower != upper)
    found = linprog(
        cost, A_ub=matrix[below], b_ub=upper[below], A_eq=matrix[equal], b_eq=upper[equal],
        method="highs",
    )  # fmt: skip
    return np.array(found.x) if found.status == 0 else None
