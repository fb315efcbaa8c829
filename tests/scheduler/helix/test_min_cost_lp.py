"""The linear program's flow is whole, maximal, and as cheap as that by paths but for rounding."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings

from benchmarks.scheduler.worlds import cluster, mixed, shipped_placement
from scheduler.fleet import Fleet, ModelShape, Placement
from scheduler.helix import max_flow as module
from scheduler.helix.flow_graph import flow_graph
from scheduler.helix.max_flow import Flow, least_latency_flow
from scheduler.helix.min_cost_flow import min_cost_flow
from scheduler.helix.min_cost_lp import SLACK, min_cost_flow_by_lp
from scheduler.helix.petals import petals
from tests.scheduler.helix.test_max_flow import check
from tests.scheduler.helix.test_min_cost_flow import priced
from tests.scheduler.helix.test_preflow_push import check_flow, value_by_scipy

UNIT = 2**24


@settings(max_examples=100, deadline=None)
@given(priced())
def test_as_cheap_as_by_paths(
    network: tuple[int, list[tuple[int, int, int]], list[int]],
) -> None:
    n, small, costs = network
    arcs = [(tail, head, most * UNIT) for tail, head, most in small]
    flow = min_cost_flow_by_lp(n, arcs, costs, 0, 1, UNIT)
    check_flow(n, arcs, flow, value_by_scipy(n, small) * UNIT)
    best = min_cost_flow(n, arcs, costs, 0, 1)
    spent, least = (sum(c * x for c, x in zip(costs, f, strict=True)) for f in (flow, best))
    assert least <= spent <= least + SLACK * sum(costs) + 1


def spent_ms(fleet: Fleet, model: ModelShape, placement: Placement, flow: Flow) -> float:
    graph = flow_graph(fleet, model, placement, partial=True)
    ms = dict(zip(graph.ends, graph.latency_ms, strict=True))
    return sum(rate * ms[link] for link, rate in flow.links.items())


@pytest.mark.parametrize("name", ["geo24", "het42"])
def test_both_ways_find_the_same_latency(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, model = cluster(name)
    placement, _ = shipped_placement(name, "petals", model)
    by_paths = least_latency_flow(fleet, model, placement, partial=True)
    monkeypatch.setattr(module, "MOST_ARCS_BY_PATHS", 0)
    by_lp = least_latency_flow(fleet, model, placement, partial=True)
    check(fleet, model, placement, by_lp, partial=True)
    assert by_lp.tokens_per_s == by_paths.tokens_per_s
    assert spent_ms(fleet, model, placement, by_lp) == pytest.approx(
        spent_ms(fleet, model, placement, by_paths), rel=1e-5
    )


def test_without_the_solver_paths_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, model = mixed(40, "32b")
    placement = petals(fleet, model)
    monkeypatch.setattr(module, "MOST_ARCS_BY_PATHS", 0)
    with_solver = least_latency_flow(fleet, model, placement, partial=True)
    monkeypatch.setitem(sys.modules, "highspy", None)
    without = least_latency_flow(fleet, model, placement, partial=True)
    assert without.tokens_per_s == with_solver.tokens_per_s > 0
    assert spent_ms(fleet, model, placement, with_solver) == pytest.approx(
        spent_ms(fleet, model, placement, without), rel=1e-4
    )
