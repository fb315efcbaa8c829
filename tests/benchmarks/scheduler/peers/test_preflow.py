"""Preflow-push finds a valid flow of the value that the product's finds."""

from __future__ import annotations

from hypothesis import given, settings

from benchmarks.scheduler.peers.preflow import preflow_push
from tests.scheduler.flow.test_arc_flow import check_flow, networks, value_by_scipy


@settings(max_examples=100, deadline=None)
@given(networks())
def test_flow_is_valid_and_as_large_as_scipys(
    network: tuple[int, list[tuple[int, int, int]]],
) -> None:
    n, arcs = network
    found = preflow_push(n, arcs, 0, 1)
    assert found.value == value_by_scipy(n, arcs)
    check_flow(n, arcs, found.on_arc, found.value)
