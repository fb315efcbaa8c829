"""The compact MILP is exact where links do not bind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from benchmarks.scheduler.worlds import DATA, cluster
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.search.chain_search import ChainOptions, chain_search
from scheduler.stages.compact_milp import solve_compact
from tests.scheduler.search.worlds import all_placements, clusters, flow_by_coverage


@given(clusters(most_machines=3, most_layers=4))
@settings(max_examples=40, deadline=None)
def test_coverage_form_equals_brute_force(world: tuple[Fleet, ModelShape]) -> None:
    fleet, model = world
    plan = solve_compact(fleet, model, partial=True)
    best = max(flow_by_coverage(fleet, model, p) for p in all_placements(fleet, model))
    assert plan.proven
    assert plan.tokens_per_s == pytest.approx(best)
    assert max_flow(fleet, model, plan.placement, partial=True).tokens_per_s == pytest.approx(best)


@given(clusters(most_machines=3, most_layers=4))
@settings(max_examples=15, deadline=None)
def test_boundary_form_equals_brute_force(world: tuple[Fleet, ModelShape]) -> None:
    fleet, model = world
    plan = solve_compact(fleet, model, partial=False)
    best = max(max_flow(fleet, model, p).tokens_per_s for p in all_placements(fleet, model) if p)
    assert plan.tokens_per_s == pytest.approx(best)
    if plan.placement:
        validate_placement(plan.placement, fleet, model)
        assert max_flow(fleet, model, plan.placement).tokens_per_s == pytest.approx(best)


@pytest.mark.parametrize("partial", [False, True])
def test_single24_is_proven_at_2045(partial: bool) -> None:
    fleet, model = cluster("single24")
    plan = solve_compact(fleet, model, partial=partial)
    assert plan.proven
    assert plan.tokens_per_s == pytest.approx(2045.6, abs=0.1)
    assert plan.bound == pytest.approx(plan.tokens_per_s, rel=1e-4)
    flow = max_flow(fleet, model, plan.placement, partial=partial)
    assert flow.tokens_per_s == pytest.approx(plan.tokens_per_s)
    validate_placement(plan.placement, fleet, model)


def test_ten_node_quality_cluster_reaches_the_published_optimum() -> None:
    """Gurobi needed 277 s to find 286.587 and 3,803 s to prove it (Helix §6.9)."""
    fleet, model = ten_nodes()
    found = chain_search(fleet, model, ChainOptions(restarts=3))
    assert max_flow(fleet, model, found.placement, partial=True).tokens_per_s == pytest.approx(
        286.587, abs=1e-3
    )
    limited = solve_compact(fleet, model, partial=True, node_limit=20)
    assert limited.bound >= 286.587 - 1e-3


def ten_nodes() -> tuple[Fleet, ModelShape]:
    import json

    from benchmarks.scheduler.peers.token_rates import AS_PUBLISHED, with_token_rates
    from scheduler.fleet.files import read_cluster

    document = {
        "schema": "cluster/1",
        "model": "llama-30b",
        "coordinator": {"region": "r"},
        "nodes": [
            {"id": "l", "gpu": "L4", "count": 4, "region": "r"},
            {"id": "t", "gpu": "T4", "count": 6, "region": "r"},
        ],
        "links": [{"a": "r", "b": "r", "mbit_s": 8000, "latency_ms": 1}],
    }
    profiles = json.loads((DATA / "gpu_profiles.json").read_text())
    fleet, model = read_cluster(document, profiles)
    return with_token_rates(fleet, model, AS_PUBLISHED), model
