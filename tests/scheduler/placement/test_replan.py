"""Weights move only where it pays, and no more of them than needed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import cluster
from core.protocol.types import LayerRange
from scheduler.fleet import Fleet, ModelShape, Shard
from scheduler.helix.max_flow import max_flow
from scheduler.helix.valid import validate_placement
from scheduler.placement.chain_search import ChainOptions, chain_search
from scheduler.placement.least_moves import hand_to_holders
from scheduler.placement.replan import ReplanOptions, moves_between, replan
from scheduler.placement.stage_patterns import stage_patterns
from tests.scheduler.placement.worlds import clusters

FAST = ReplanOptions(restarts=1, evaluations=3_000)


def test_the_best_placement_is_left_alone() -> None:
    fleet, model = cluster("single24")
    best = stage_patterns(fleet, model)
    plan = replan(fleet, model, best.placement)
    assert plan.moves == ()
    assert plan.placement == best.placement


def test_a_leave_is_made_up_for_and_most_machines_stay() -> None:
    fleet, model = cluster("single24")
    held = stage_patterns(fleet, model, most_stages=14).placement
    gone = held[5].machine_id
    left = fleet.subset(m for m in fleet.machines if m.id != gone)
    plan = replan(left, model, held, FAST)
    assert gone not in {shard.machine_id for shard in plan.placement}
    assert plan.tokens_per_s > 1000
    assert len(plan.moves) < len(left.machines) / 2
    assert plan.loading_tokens_per_s >= 0.5 * plan.kept_tokens_per_s > 0
    assert plan.tokens >= plan.tokens_if_kept
    from_scratch = chain_search(left, model, ChainOptions(restarts=1, evaluations=3_000))
    assert sum(m.loads for m in plan.moves) < sum(
        m.loads for m in moves_between(held, from_scratch.placement)
    )


def test_nothing_moves_when_loading_takes_longer_than_it_pays() -> None:
    fleet, model = cluster("single24")
    held = stage_patterns(fleet, model, most_stages=14).placement
    hurried = ReplanOptions(horizon_s=5.0, restarts=1, evaluations=3_000)
    assert replan(fleet, model, held, hurried).moves == ()
    patient = ReplanOptions(horizon_s=1e5, restarts=1, evaluations=3_000, least_served=0.0)
    assert replan(fleet, model, held, patient).tokens_per_s > 1600


def test_a_machine_that_joins_gets_layers_without_moving_the_others_much() -> None:
    fleet, model = cluster("single24")
    less = fleet.subset(fleet.machines[:-1])
    held = chain_search(less, model, ChainOptions(restarts=1)).placement
    before = max_flow(less, model, held, partial=True).tokens_per_s
    plan = replan(fleet, model, held, FAST)
    assert plan.kept_tokens_per_s == pytest.approx(before)
    assert plan.tokens_per_s >= before


def test_places_go_to_those_who_hold_them() -> None:
    fleet, model = cluster("single24")
    held = stage_patterns(fleet, model, most_stages=14).placement
    ids = {kind: [m.id for m in fleet.machines if m.kind == kind] for kind in ("A100", "L4", "T4")}
    turned = {}
    for members in ids.values():
        mixed = members[:]
        random.Random(0).shuffle(mixed)
        turned |= dict(zip(members, mixed, strict=True))
    shuffled = tuple(Shard(turned[machine_id], layers) for machine_id, layers in held)
    assert hand_to_holders(fleet, model, held, shuffled) == held


@given(clusters(most_machines=5, most_layers=6), st.data())
@settings(max_examples=25, deadline=None)
def test_a_replan_is_valid_and_never_worth_less_than_staying(
    world: tuple[Fleet, ModelShape], data: st.DataObject
) -> None:
    fleet, model = world
    shards = []
    for m in fleet.machines:
        assert m.profile is not None
        k = data.draw(st.integers(0, min(m.profile.max_layers, model.layers)))
        if k:
            start = data.draw(st.integers(0, model.layers - k))
            shards.append(Shard(m.id, LayerRange(start, start + k)))
    current = (*shards, Shard("gone", LayerRange(0, 1)))
    plan = replan(fleet, model, current, FAST)
    assert plan.tokens >= plan.tokens_if_kept
    assert {m.machine_id for m in plan.moves} <= set(fleet.by_id)
    if plan.moves:
        validate_placement(plan.placement, fleet, model)
        flow = max_flow(fleet, model, plan.placement, partial=True).tokens_per_s
        assert flow == pytest.approx(plan.tokens_per_s)
    assert replan(fleet, model, current, FAST) == plan
