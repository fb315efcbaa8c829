"""Candidates of different depth are simulated, and the one that serves most within the limits is
chosen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduler.worlds import cluster
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Coordinator, Fleet, Links
from scheduler.flow.bounds import capped_bound
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.search.candidate import by_depth, candidate_of
from scheduler.search.candidates import PoolOptions, candidates, reordered
from scheduler.search.rank import Limits, RankOptions, Round, play, way_of
from scheduler.search.serve_plan import ServeOptions, plan_to_serve
from scheduler.simulate.options import SimOptions
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop
from scheduler.stages.stage_patterns import stage_patterns
from tests.scheduler.search.worlds import machine, toy_model

WORK = ClosedLoop(poisson(0, 2_000))
SMALL = PoolOptions(
    depth_penalties=(0.6,), restarts=1, evaluations=2_000, stage_shares=(0.5,), compact_nodes=1
)


def test_candidates_are_valid_and_differ_in_depth() -> None:
    fleet, model = cluster("single24")
    pool = candidates(fleet, model, SMALL)
    bound = capped_bound(fleet, model)
    assert len({c.placement for c in pool}) == len(pool)
    assert len({round(c.stages) for c in pool}) >= 3
    for c in pool:
        validate_placement(c.placement, fleet, model)
        flow = max_flow(fleet, model, c.placement, partial=True)
        assert c.tokens_per_s == flow.tokens_per_s
        assert 0 < c.exact_tokens_per_s <= c.tokens_per_s <= bound * (1 + 1e-6)
    assert candidates(fleet, model, SMALL) == pool
    one_each = by_depth(pool, len({round(c.stages) for c in pool}))
    assert len({round(c.stages) for c in one_each}) == len(one_each)


def test_a_pipeline_in_another_order_passes_as_much() -> None:
    fleet, model = cluster("single24")
    plan = stage_patterns(fleet, model, most_stages=13)
    first = candidate_of("patterns", fleet, model, plan.placement, plan.bound)
    others = reordered(fleet, model, first, 3)
    assert len({c.placement for c in others}) == 3
    assert all(c.tokens_per_s == pytest.approx(first.tokens_per_s) for c in others)


def test_the_largest_flow_does_not_serve_the_most() -> None:
    """24 stages of flow 2,045.6 against 13 of 1,496: what is served says the opposite of what
    flows.
    """
    fleet, model = cluster("single24")
    pool = []
    for most in (None, 13):
        plan = stage_patterns(fleet, model, most_stages=most)
        pool.append(candidate_of(f"{plan.stages}", fleet, model, plan.placement, plan.bound))
    pool += reordered(fleet, model, pool[1], 2)
    sim = SimOptions(chunk_tokens=None, helix_rules=True, prompt_limit_s=15, decode_limit_s=5)
    ways = [way_of(fleet, model, candidate) for candidate in pool]
    ranked = play(fleet, model, ways, WORK, RankOptions(sim), Round(20, 40, 4))
    assert round(ranked[0].candidate.stages) == 13
    assert pool[0].tokens_per_s > 1.3 * ranked[0].candidate.tokens_per_s
    goodput = [r.goodput_tokens_per_s for r in ranked]
    assert goodput == sorted(goodput, reverse=True)


def test_planning_for_work_is_deterministic_and_no_worse_than_any_candidate_seen() -> None:
    fleet, model = cluster("single24")
    rounds = (Round(10, 15, 2), Round(15, 20, 2))
    options = ServeOptions(SMALL, RankOptions(SimOptions(), rounds, 3), finalists=1, orders=1)
    pool = candidates(fleet, model, SMALL)
    plan = plan_to_serve(fleet, model, WORK, options, pool=pool)
    assert plan.best.goodput_tokens_per_s == max(r.goodput_tokens_per_s for r in plan.ranked)
    again = plan_to_serve(fleet, model, WORK, replace(options), pool=pool)
    assert again.best.way == plan.best.way
    assert again.best.report == plan.best.report


def test_who_is_over_a_mean_latency_limit_comes_after_who_is_within() -> None:
    """17 stages serve more than 10 and each token takes longer: with a limit between the two, 10
    come first.
    """
    fleet, model = cluster("single24")
    ways = []
    for most in (10, 17):
        plan = stage_patterns(fleet, model, most_stages=most)
        ways.append(
            way_of(fleet, model, candidate_of(f"{most}", fleet, model, plan.placement, plan.bound))
        )
    free = play(fleet, model, ways, WORK, RankOptions(), Round(40, 40, 2))
    most, least = (ranked.report.decode.mean_s for ranked in free)
    assert free[0].way == ways[1]
    assert least < most
    between = Limits(decode_s=(most + 2 * least) / 3)
    assert between.excess(free[1].report) == 0.0 < between.excess(free[0].report)
    bound = play(fleet, model, ways, WORK, RankOptions(limits=between), Round(40, 40, 2))
    assert bound[0].way == ways[0]
    assert bound[0].worth(between) == bound[0].goodput_tokens_per_s
    assert bound[1].worth(between) < bound[1].goodput_tokens_per_s


def test_simulations_end_when_time_is_up_with_the_best_so_far() -> None:
    fleet, model = cluster("single24")
    pool = candidates(fleet, model, SMALL)
    rounds = (Round(5, 5, 2), Round(5, 10, 2))
    options = ServeOptions(SMALL, RankOptions(SimOptions(), rounds, 3), finalists=1, orders=1)
    looks = iter([False] * 3 + [True] * 50)
    plan = plan_to_serve(fleet, model, WORK, options, pool=pool, over=lambda: next(looks))
    assert 1 <= len(plan.ranked) <= 2
    assert plan.best == plan.ranked[0]


def test_a_cluster_that_cannot_hold_the_model_has_no_candidates() -> None:
    fleet = Fleet((machine("a", (9.0, 5.0)),), Links(default_ms=1.0), Coordinator())
    with pytest.raises(PlanError):
        candidates(fleet, toy_model(3), SMALL)
