"""Preflow-push returns valid flows of the very value that other solvers find."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from scheduler.helix.preflow_push import preflow_push


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    """Arcs in both directions, parallel ones, loops, capacity 0, arcs into the source and out of the sink."""
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
    found = preflow_push(n, arcs, 0, 1)
    assert found.value == value_by_scipy(n, arcs)
    check_flow(n, arcs, found.on_arc, found.value)


@settings(max_examples=100, deadline=None)
@given(networks())
def test_the_cut_has_the_value_of_the_flow(network: tuple[int, list[tuple[int, int, int]]]) -> None:
    n, arcs = network
    found = preflow_push(n, arcs, 0, 1)
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
    found = preflow_push(98, arcs, 0, 1)
    assert found.value == value_by_scipy(98, arcs) > 0
    check_flow(98, arcs, found.on_arc, found.value)


def test_capacities_beyond_64_bits_stay_exact() -> None:
    huge = 10**30
    found = preflow_push(3, [(0, 2, huge + 1), (2, 1, huge)], 0, 1)
    assert found.value == huge and found.on_arc == [huge, huge]
