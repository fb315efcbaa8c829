"""The least-cost flow is a maximum flow, and no maximum flow costs less."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from scheduler.helix.min_cost_flow import min_cost_flow
from tests.scheduler.helix.test_preflow_push import check_flow, value_by_scipy


@st.composite
def priced(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]], list[int]]:
    n = draw(st.integers(2, 9))
    vertex = st.integers(0, n - 1)
    arcs = draw(st.lists(st.tuples(vertex, vertex, st.integers(0, 20)), min_size=1, max_size=30))
    arcs = [(tail, head, most) for tail, head, most in arcs if tail != head]
    return n, arcs, [draw(st.integers(0, 9)) for _ in arcs]


@settings(max_examples=150, deadline=None)
@given(priced())
def test_cost_is_that_of_the_linear_program(
    network: tuple[int, list[tuple[int, int, int]], list[int]],
) -> None:
    n, arcs, costs = network
    flow = min_cost_flow(n, arcs, costs, 0, 1)
    value = value_by_scipy(n, arcs)
    check_flow(n, arcs, flow, value)
    if not arcs:
        return
    balance = np.zeros((n, len(arcs)))
    for column, (tail, head, _) in enumerate(arcs):
        balance[tail, column] -= 1
        balance[head, column] += 1
    wanted = np.zeros(n)
    wanted[0], wanted[1] = -value, value
    best = linprog(costs, A_eq=balance, b_eq=wanted, bounds=[(0, most) for _, _, most in arcs])
    assert best.status == 0
    assert abs(sum(c * x for c, x in zip(costs, flow, strict=True)) - best.fun) < 1e-6
