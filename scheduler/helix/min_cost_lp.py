"""Which of the maximum flows of a large network is the cheapest? (a linear program, made exact afterwards)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.helix.min_cost_flow import min_cost_flow
from scheduler.helix.preflow_push import preflow_push
from scheduler.highs import open_highs

#: Units by which an arc may pass more than the linear program says: what rounding can lose on a long way.
SLACK = 1 << 14


def min_cost_flow_by_lp(
    vertices: int,
    arcs: Sequence[tuple[int, int, int]],
    costs: Sequence[int],
    source: int,
    sink: int,
    unit: int,
) -> list[int]:
    """A maximum flow, whole and valid, whose cost is the least but for some `SLACK` of the ``unit`` capacities count in.

    HiGHS's simplex decides which arcs to use, preflow-push how much passes on just these; the few units that rounding
    has cut off go any way that is left. Where successive shortest paths take a path for every length (27 s for 256
    machines with partial inference), this takes half a second. Raises ModuleNotFoundError without highspy, and
    ArithmeticError when HiGHS gives up.
    """
    highs = open_highs()
    value = preflow_push(vertices, arcs, source, sink).value
    if not value:
        return [0] * len(arcs)
    used = _solve(highs, vertices, arcs, costs, source, sink, value / unit, unit)
    roomy = [
        (tail, head, min(capacity, int(amount * unit) + SLACK) if amount * unit > 0.5 else 0)
        for (tail, head, capacity), amount in zip(arcs, used, strict=True)
    ]
    first = preflow_push(vertices, roomy, source, sink)
    if first.value == value:
        return first.on_arc
    residual = [
        (tail, head, capacity - amount)
        for (tail, head, capacity), amount in zip(arcs, first.on_arc, strict=True)
    ]
    residual += [
        (head, tail, amount) for (tail, head, _), amount in zip(arcs, first.on_arc, strict=True)
    ]
    # path by path: another preflow would reroute everything for the sake of a few units
    rest = min_cost_flow(vertices, residual, [1] * len(residual), source, sink)
    many = len(arcs)
    return [first.on_arc[i] + rest[i] - rest[many + i] for i in range(many)]


def _solve(
    highs: tuple[Any, Any],
    vertices: int,
    arcs: Sequence[tuple[int, int, int]],
    costs: Sequence[int],
    source: int,
    sink: int,
    flow: float,
    unit: int,
) -> list[float]:
    api, solver = highs
    leaves = np.zeros(vertices)
    leaves[source], leaves[sink] = flow, -flow
    none_i, none_f = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
    tolerance = 1e-9 * max(1.0, flow)
    starts = np.zeros(vertices, dtype=np.int32)
    solver.addRows(vertices, leaves - tolerance, leaves + tolerance, 0, starts, none_i, none_f)
    many = len(arcs)
    scale = max(1, max(costs, default=1))
    solver.addCols(
        many,
        np.array(costs, dtype=np.float64) * (1e3 / scale),
        np.zeros(many),
        np.array([capacity / unit for _, _, capacity in arcs]),
        2 * many,
        np.arange(0, 2 * many, 2, dtype=np.int32),
        np.array([vertex for tail, head, _ in arcs for vertex in (tail, head)], dtype=np.int32),
        np.tile([1.0, -1.0], many),
    )
    solver.run()
    if solver.getModelStatus() != api.HighsModelStatus.kOptimal:
        raise ArithmeticError(f"HiGHS: {solver.modelStatusToString(solver.getModelStatus())}")
    return list(solver.getSolution().col_value)
