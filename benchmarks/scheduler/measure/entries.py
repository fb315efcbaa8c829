"""How is a flow shared out so that requests enter as few slices as possible?

min Σ e(i, g), e(i, g) ≥ y(i, g) − y(i, g − 1), Σ_i y(i, g) = T, Σ_g layers(g) y(i, g) ≤ rate(i),
all ≥ 0: what a slice passes on a segment beyond what it passed on the one before has entered it
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.fleet.highs import open_highs
from scheduler.flow.flow_lp import slices_of
from scheduler.flow.interval_flow import largest_flow, share_out

Floats: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def entries(
    fleet: Fleet, model: ModelShape, placement: Placement, share: float = 1.0, fewest: bool = True
) -> float:
    """Mean number of stages that a request visits when `share` of the largest flow is served.

    With `fewest` the flow is shared out so that the number is least, else each segment is served by
    the slice that ends first. 0 where nothing flows. Raises PlanError as `slices_of` does.
    """
    found = slices_of(fleet, model, placement)
    most, _ = largest_flow(found.spans, found.together, found.widths)
    served = share * most
    if served <= 0:
        return 0.0
    asked = (found.spans, found.together, found.widths, served)
    shares = fewest_entries(*asked) if fewest else None
    if shares is None:
        shares = share_out(*asked)
    before = np.concatenate([np.zeros((len(shares), 1)), shares[:, :-1]], axis=1)
    return float(np.maximum(0.0, shares - before).sum()) / served


def fewest_entries(
    spans: Sequence[tuple[int, int]], rates: Sequence[float], widths: Floats, flow: float
) -> Floats | None:
    """[slice, segment] tokens/s of least entries; None when the solver gives up."""
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
    api, solver = open_highs()
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
