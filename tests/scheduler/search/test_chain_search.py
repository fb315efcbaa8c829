"""Chain search is seeded, valid, bounded, and finds what is known to be there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from benchmarks.scheduler.worlds import cluster, mixed
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Coordinator, Fleet, Links, ModelShape
from scheduler.flow.bounds import capped_bound
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.search.aim import aim
from scheduler.search.chain_search import ChainOptions, chain_search
from scheduler.search.starts import one_chain
from scheduler.stages.stages import StagePool
from scheduler.stages.table import table_of
from tests.scheduler.search.worlds import (
    all_placements,
    clusters,
    flow_by_coverage,
    machine,
    toy_model,
)

FEW = ChainOptions(restarts=2, evaluations=3_000)


@given(clusters(most_machines=6, most_layers=8, slow_links=True))
@settings(max_examples=30, deadline=None)
def test_plans_are_valid_below_the_bound_and_pass_what_they_say(
    world: tuple[Fleet, ModelShape],
) -> None:
    fleet, model = world
    plan = chain_search(fleet, model, FEW)
    validate_placement(plan.placement, fleet, model)
    flow = max_flow(fleet, model, plan.placement, partial=True).tokens_per_s
    assert flow >= plan.tokens_per_s * (1 - 1e-4)
    assert flow <= capped_bound(fleet, model) * (1 + 1e-9)
    assert chain_search(fleet, model, FEW) == plan


@given(clusters(most_machines=3, most_layers=4))
@settings(max_examples=20, deadline=None)
def test_no_placement_of_a_small_cluster_is_missed_by_far(world: tuple[Fleet, ModelShape]) -> None:
    """Chains are not every placement: ranges may overlap in part. Half of the best is a promise
    they keep here.
    """
    fleet, model = world
    plan = chain_search(fleet, model, FEW)
    best = max(flow_by_coverage(fleet, model, p) for p in all_placements(fleet, model))
    assert best * 0.5 <= plan.tokens_per_s <= best * (1 + 1e-9)


def test_single24_reaches_its_bound() -> None:
    fleet, model = cluster("single24")
    plan = chain_search(fleet, model)
    assert plan.proven
    assert max_flow(fleet, model, plan.placement).tokens_per_s == pytest.approx(2045.641, abs=1e-2)


def test_geo24_passes_1754_over_its_slow_links() -> None:
    fleet, model = cluster("geo24")
    pool = StagePool(table_of(fleet, model))
    found = aim(pool, one_chain(pool, 0), [], seed=1, evaluations=60_000)
    assert found is not None
    assert found.tokens_per_s >= 1700
    plan = chain_search(fleet, model, ChainOptions(restarts=4))
    validate_placement(plan.placement, fleet, model)
    assert max_flow(fleet, model, plan.placement).tokens_per_s >= 1754


def test_a_deeper_penalty_gives_a_shorter_pipeline() -> None:
    fleet, model = cluster("single24")
    deep = chain_search(fleet, model, ChainOptions(one_chain=True))
    short = chain_search(fleet, model, ChainOptions(depth_penalty=1.0, one_chain=True))
    assert short.depth < deep.depth
    assert short.tokens_per_s < deep.tokens_per_s


def test_a_deadline_ends_the_search_and_more_time_is_never_worse() -> None:
    fleet, model = cluster("het42")
    ticks = iter(range(10**9))

    def clock() -> float:
        return float(next(ticks))

    short = chain_search(fleet, model, clock=clock, deadline_s=3.0)
    more = chain_search(fleet, model, clock=clock, deadline_s=next(ticks) + 100.0)
    assert 0 < short.tokens_per_s <= more.tokens_per_s
    assert short.runs <= more.runs


def test_warm_placements_are_not_forgotten() -> None:
    fleet, model = cluster("single24")
    best = chain_search(fleet, model)
    poor = ChainOptions(restarts=1, evaluations=10, seed=5)
    again = chain_search(fleet, model, poor, warm=[best.placement])
    assert again.tokens_per_s >= best.tokens_per_s * (1 - 1e-9)


def test_hundreds_of_machines_are_split_by_region_first() -> None:
    fleet, model = mixed(256, "70b")
    plan = chain_search(fleet, model, ChainOptions(restarts=1, evaluations=2_000))
    validate_placement(plan.placement, fleet, model)
    assert plan.chains > 3
    assert plan.tokens_per_s >= 0.8 * plan.bound


def test_machines_that_cannot_hold_the_model_are_refused() -> None:
    fleet = Fleet((machine("a", (9.0, 5.0)),), Links(default_ms=1.0), Coordinator())
    with pytest.raises(PlanError, match="cannot hold 3 layers"):
        chain_search(fleet, toy_model(3))


def test_machines_that_cannot_reach_each_other_are_refused() -> None:
    fleet = Fleet((machine("a", (9.0, 5.0)), machine("b", (9.0, 5.0))), Links(), Coordinator())
    with pytest.raises(PlanError):
        chain_search(fleet, toy_model(3), FEW)
