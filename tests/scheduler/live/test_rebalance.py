"""Joins go where they help, leaves undo them exactly, and a new plan is made only for a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacity, position_of
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.live.rebalance import (
    coefficient_of_variation,
    join,
    layer_kv_tokens,
    layer_loads,
    should_rebalance,
)
from scheduler.parallax.allocate import allocate
from scheduler.routing.parallax_route import Route, RouteQuery, route
from scheduler.routing.routing_table import prepare
from tests.scheduler.worlds import fleet_of, fleets, holding, leave, models, shard, toy_model

KV_MODEL = ModelShape(6, 100, 0, 0, False, 8, 1e9, kv_bytes_per_token_per_layer=1)


def kv_fleet(*kv_tokens: int) -> Fleet:
    return Fleet(tuple(holding(f"m{i:02}", 6, kv_tokens=t) for i, t in enumerate(kv_tokens)))


def test_join_starts_at_the_layer_with_least_ram_capacity() -> None:
    fleet = kv_fleet(100, 10, 100, 50)
    shards = (shard("m00", 0, 2), shard("m01", 2, 4), shard("m02", 4, 6))
    assert layer_kv_tokens(fleet, KV_MODEL, shards) == (100, 100, 10, 10, 100, 100)
    newcomer = fleet.by_id["m03"]
    assert join(newcomer, fleet, KV_MODEL, shards, partial=True) == LayerRange(2, 6)
    small = Fleet((*fleet.machines[:3], holding("m03", 1)))
    assert join(small.by_id["m03"], small, KV_MODEL, shards, partial=True) == LayerRange(2, 3)


def test_w5_join_without_partial_routing_lands_on_a_legal_chain() -> None:
    fleet = Fleet((*kv_fleet(100, 10, 100).machines, holding("m03", 3)))
    shards = (shard("m00", 0, 2), shard("m01", 2, 4), shard("m02", 4, 6))
    layers = join(fleet.by_id["m03"], fleet, KV_MODEL, shards)
    assert layers == LayerRange(2, 4)
    too_small = Fleet((*fleet.machines[:3], holding("m03", 1)))
    assert join(too_small.by_id["m03"], too_small, KV_MODEL, shards) is None


@settings(max_examples=100, deadline=None)
@given(fleets(6, regions=2), models(), st.booleans())
def test_join_respects_capacity_and_leave_restores_the_loads_exactly(
    fleet: Fleet, model: ModelShape, partial: bool
) -> None:
    newcomer = fleet.machines[-1]
    before = allocate(fleet.subset(fleet.machines[:-1]), model).shards
    if not before:
        return
    layers = join(newcomer, fleet, model, before, partial)
    if layers is None:
        return
    assert len(layers) <= capacity(newcomer, model, position_of(layers, model))
    joined = (*before, shard(newcomer.id, layers.start, layers.end))
    assert set(joined) == {*before, *joined[-1:]}
    assert sum(layer_loads(fleet, model, joined)) > sum(layer_loads(fleet, model, before))
    assert leave(joined, newcomer.id) == before
    assert layer_loads(fleet, model, leave(joined, newcomer.id)) == layer_loads(
        fleet, model, before
    )
    if not partial:
        edges = {0, model.layers} | {e for s in before for e in (s.layers.start, s.layers.end)}
        assert {layers.start, layers.end} <= edges


def test_leave_of_an_unknown_machine_changes_nothing() -> None:
    shards = (shard("a", 0, 3),)
    assert leave(shards, "b") == shards
    assert leave(leave(shards, "a"), "a") == ()


def test_w7_departed_machines_leave_no_ghost_load() -> None:
    fleet, model = fleet_of(3, 3), toy_model(6)
    shards = (shard("m00", 0, 3), shard("m01", 3, 6))
    gone = fleet.subset(fleet.machines[:1])
    assert layer_loads(gone, model, shards) == layer_loads(gone, model, leave(shards, "m01"))
    decision = should_rebalance(gone, model, shards)
    assert decision.rebalance and decision.uncovered == (LayerRange(3, 6),)


def test_covered_and_even_fleet_is_left_alone() -> None:
    fleet, model = fleet_of(3, 3), toy_model(6)
    decision = should_rebalance(
        fleet, model, (shard("m00", 0, 3), shard("m01", 3, 6)), threshold=0.1
    )
    assert not decision.rebalance and decision.coefficient_of_variation == 0.0


def test_uneven_loads_rebalance_only_above_the_threshold() -> None:
    fleet, model = fleet_of(3, 3, 3), toy_model(6)
    shards = (shard("m00", 0, 3), shard("m01", 3, 6), shard("m02", 3, 6))
    decision = should_rebalance(fleet, model, shards, threshold=0.3)
    assert decision.coefficient_of_variation == pytest.approx(1 / 3)
    assert decision.rebalance and "0.333" in decision.reason
    assert not should_rebalance(fleet, model, shards, threshold=0.34).rebalance
    assert not should_rebalance(fleet, model, shards).rebalance


def test_covered_layers_without_a_chain_count_as_lost_unless_slices_are_partial() -> None:
    fleet, model = fleet_of(4, 4), toy_model(6)
    shards = (shard("m00", 0, 4), shard("m01", 2, 6))
    lost = should_rebalance(fleet, model, shards)
    assert lost.rebalance and lost.uncovered == ()
    assert not should_rebalance(fleet, model, shards, partial=True).rebalance


def test_three_machines_keep_coverage_through_every_leave_and_rejoin() -> None:
    """Three machines of 22 of 28 layers: any two hold the model."""
    fleet, model = fleet_of(22, 22, 22), toy_model(28)
    shards = allocate(fleet, model).shards
    for machine in fleet.machines:
        rest = fleet.subset(m for m in fleet.machines if m.id != machine.id)
        left = leave(shards, machine.id)
        if should_rebalance(rest, model, left).rebalance:
            left = allocate(rest, model).shards
        assert isinstance(route(prepare(rest, model, left)), Route)
        layers = join(machine, fleet, model, left, partial=True)
        assert layers is not None
        shards = (*left, shard(machine.id, layers.start, layers.end))
        assert isinstance(route(prepare(fleet, model, shards), RouteQuery(partial=True)), Route)


def test_sole_machine_leaves_and_rejoins() -> None:
    fleet, model = fleet_of(6), toy_model(6)
    assert should_rebalance(Fleet(()), model, ()).rebalance
    assert join(fleet.machines[0], fleet, model, ()) == LayerRange(0, 6)


def test_coefficient_of_variation_of_nothing_is_zero() -> None:
    assert coefficient_of_variation(()) == coefficient_of_variation((0.0, 0.0)) == 0.0
    assert math.isclose(coefficient_of_variation((1.0, 3.0)), 0.5)
