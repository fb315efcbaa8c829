"""How is the knapsack of columns put to HiGHS? One thread, fixed seed, limits in nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.fabric.knapsack import Knapsack, Picked
from scheduler.fleet.arrays import Floats
from scheduler.fleet.highs import open_highs

HAS_POINT = 2  # HiGHS: a feasible point is there


@dataclass(frozen=True)
class KnapsackPrices:
    """A price ≥ 0 for a GPU of each type, and what a unit of each model's cost weighs."""

    prices: Floats
    multipliers: Floats


def pick(knapsack: Knapsack, mip_nodes: int) -> Picked | None:
    """The best choice of columns, None when there is none; past `mip_nodes` the best so far."""
    api, solver = _loaded(knapsack, integer=True)
    solver.setOptionValue("mip_max_nodes", mip_nodes)
    solver.run()
    if solver.getModelStatus() == api.HighsModelStatus.kSolutionLimit and not _has_point(solver):
        solver.setOptionValue("mip_max_nodes", 2**31 - 1)
        solver.setOptionValue("mip_max_improving_sols", 1)
        solver.run()
    if not _has_point(solver):
        return None
    values = solver.getSolution().col_value[: len(knapsack.columns)]
    chosen = tuple(c for c, x in enumerate(values) if x > 0.5)
    value = knapsack.value(chosen)
    optimal = solver.getModelStatus() == api.HighsModelStatus.kOptimal
    return Picked(chosen, value, value if optimal else solver.getInfo().mip_dual_bound)


def _has_point(solver: Any) -> bool:
    return bool(solver.getInfo().primal_solution_status == HAS_POINT)


def relax(knapsack: Knapsack) -> KnapsackPrices | None:
    """The prices of the linear relaxation, None when even that is impossible."""
    api, solver = _loaded(knapsack, integer=False)
    solver.run()
    if solver.getModelStatus() != api.HighsModelStatus.kOptimal:
        return None
    types, models = len(knapsack.counts), knapsack.models
    duals = np.array(solver.getSolution().row_dual)
    weights = np.maximum(0.0, -duals[types + models :]) if knapsack.worst else np.ones(models)
    return KnapsackPrices(np.maximum(0.0, -duals[:types]), weights)


def _loaded(knapsack: Knapsack, *, integer: bool) -> tuple[Any, Any]:
    """(highspy, the solver with the problem). Rows: a type each, a model each and, with the worst
    cost, Σ cost x ≤ z for each model. Columns: x, then z.
    """
    highspy, solver = open_highs()
    types, models, many = len(knapsack.counts), knapsack.models, len(knapsack.columns)
    scale = max((abs(c) for costs in knapsack.costs for c in costs), default=1.0) or 1.0
    starts, indices, values = [0], list[int](), list[float]()
    for column, costs in zip(knapsack.columns, knapsack.costs, strict=True):
        for n, gpus in enumerate(column.gpus):
            if gpus:
                indices.append(n)
                values.append(float(gpus))
        for part, part_cost in zip(column.parts, costs, strict=True):
            indices.append(types + part.model)
            values.append(1.0)
            if knapsack.worst and part_cost:
                indices.append(types + models + part.model)
                values.append(part_cost)
        starts.append(len(indices))
    if knapsack.worst:
        indices += range(types + models, types + 2 * models)
        values += [-1.0] * models
        starts.append(len(indices))
    lp = highspy.HighsLp()
    worst_rows = models if knapsack.worst else 0
    lp.num_col_, lp.num_row_ = len(starts) - 1, types + models + worst_rows
    objective = [0.0 if knapsack.worst else math.fsum(c) for c in knapsack.costs]
    lp.col_cost_ = np.array(objective + [1.0] * bool(knapsack.worst))
    lp.col_lower_ = np.array([0.0] * many + [-math.inf] * bool(knapsack.worst))
    lp.col_upper_ = np.array([1.0] * many + [math.inf] * bool(knapsack.worst))
    lp.row_lower_ = np.array([-math.inf] * types + [1.0] * models + [-math.inf] * worst_rows)
    lp.row_upper_ = np.array([*map(float, knapsack.counts)] + [1.0] * models + [0.0] * worst_rows)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.array(starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.array(indices, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(values)
    if integer:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger] * many + [kinds.kContinuous] * bool(knapsack.worst)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", scale * 1e-9)
    solver.passModel(lp)
    return highspy, solver
