"""Flows are valid, as large as scipy finds them in 32 bits, and no flow of their value
costs less.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from scheduler.flow.arc_flow import Cheapest, largest


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    """Arcs in both directions, parallel ones, loops, capacity 0, arcs into the source and out of
    the sink.
    """
    n = draw(st.integers(2, 12))
    vertex = st.integers(0, n - 1)
    return n, draw(st.lists(st.tuples(vertex, vertex, st.integers(0, 30)), max_size=50))


def value_by_scipy(n: int, arcs: list[tuple[int, int, int]]) -> int:
    capacity = np.zeros((n, n), dtype=np.int32)
    for tail, head, most in arcs:
        if tail != head:
            capacity[tail, head] += most
    return int(maximum_flow(csr_array(capacity), 0, 1).flow_value)


def check_flow(n: int, arcs: list[tuple[int, int, int]], flow: list[int], value: int) -> None:
    """Capacities hold, and what enters a vertex leaves it, but for `value` from 0 to 1."""
    balance = [0] * n
    for (tail, head, most), amount in zip(arcs, flow, strict=True):
        assert 0 <= amount <= most
        balance[tail] -= amount
        balance[head] += amount
    assert balance[:2] == [-value, value] and not any(balance[2:])


@settings(max_examples=300, deadline=None)
@given(networks())
def test_flow_is_valid_and_as_large_as_scipys(
    network: tuple[int, list[tuple[int, int, int]]],
) -> None:
    n, arcs = network
    found = largest(n, arcs, 0, 1)
    assert found.value == value_by_scipy(n, arcs)
    check_flow(n, arcs, found.on_arc, found.value)


@settings(max_examples=100, deadline=None)
@given(networks())
def test_the_cut_has_the_value_of_the_flow(network: tuple[int, list[tuple[int, int, int]]]) -> None:
    n, arcs = network
    found = largest(n, arcs, 0, 1)
    assert 0 in found.source_side and 1 not in found.source_side
    crossing = [
        most
        for tail, head, most in arcs
        if tail in found.source_side and head not in found.source_side
    ]
    assert sum(crossing) == found.value


def test_large_layered_networks_agree_with_scipy() -> None:
    draw = random.Random(7)
    layers = [range(2 + 12 * i, 14 + 12 * i) for i in range(8)]
    arcs = [(0, v, draw.randrange(1, 999)) for v in layers[0]]
    arcs += [(v, 1, draw.randrange(1, 999)) for v in layers[-1]]
    for here, there in pairwise(layers):
        arcs += [(u, v, draw.randrange(999)) for u in here for v in there if draw.random() < 0.3]
    found = largest(98, arcs, 0, 1)
    assert found.value == value_by_scipy(98, arcs) > 0
    check_flow(98, arcs, found.on_arc, found.value)


@settings(max_examples=100, deadline=None)
@given(networks(), st.integers(1, 2**45), st.integers(0, 2**20))
def test_capacities_beyond_32_bits_stay_exact(
    network: tuple[int, list[tuple[int, int, int]]], unit: int, more: int
) -> None:
    """Capacities times a unit pass the flow times that unit, and the cut proves what is odd."""
    n, arcs = network
    large = [(tail, head, most * unit) for tail, head, most in arcs]
    assert largest(n, large, 0, 1).value == unit * value_by_scipy(n, arcs)
    odd = [(a, b, c * unit + (i * more) % unit) for i, (a, b, c) in enumerate(arcs)]
    found = largest(n, odd, 0, 1)
    check_flow(n, odd, found.on_arc, found.value)
    side = found.source_side
    assert found.value == sum(c for a, b, c in odd if a in side and b not in side)


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
    if not arcs:
        return
    value = value_by_scipy(n, arcs)
    flow = Cheapest(n, arcs, 0, 1, value).at(costs)
    check_flow(n, arcs, flow, value)
    balance = np.zeros((n, len(arcs)))
    for column, (tail, head, _) in enumerate(arcs):
        balance[tail, column] -= 1
        balance[head, column] += 1
    wanted = np.zeros(n)
    wanted[0], wanted[1] = -value, value
    best = linprog(costs, A_eq=balance, b_eq=wanted, bounds=[(0, most) for _, _, most in arcs])
    assert best.status == 0
    assert abs(sum(c * x for c, x in zip(costs, flow, strict=True)) - best.fun) < 1e-6


def test_a_flow_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ArithmeticError):
        Cheapest(3, [(0, 2, 5), (2, 1, 4)], 0, 1, 5).at([1, 1])
