"""The least entries equal a plain linear program, and full machines reach the bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.measure.entries import entries
from benchmarks.scheduler.measure.filled import place_leftovers, serving_placement
from benchmarks.scheduler.worlds import mixed
from scheduler.fleet.costs import capacity, position_of
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.flow_lp import solve_flow_lp
from scheduler.utility.plan import plan
from tests.scheduler.flow.test_flow_lp import by_plain_lp, placed
from tests.scheduler.worlds import fleet_of, shard, toy_model


@settings(max_examples=80, deadline=None)
@given(placed(), st.sampled_from([0.3, 0.7, 0.999]))
def test_fewest_entries_equal_a_linear_program_by_layer(
    world: tuple[Fleet, ModelShape, Placement], share: float
) -> None:
    fleet, model, placement = world
    flow = share * solve_flow_lp(fleet, model, placement).tokens_per_s
    least = entries(fleet, model, placement, share)
    if flow == 0:
        assert least == 0
        return
    fewest = by_plain_lp(fleet, model, placement, flow)
    assert fewest is not None
    assert least * flow == pytest.approx(fewest, rel=1e-5)
    assert least <= entries(fleet, model, placement, share, fewest=False) + 1e-6


def test_two_halves_and_one_whole_are_entered_by_hand() -> None:
    fleet, model = fleet_of(2, 2, 4), toy_model(4)
    placement = (shard("m00", 0, 2), shard("m01", 2, 4), shard("m02", 0, 4))
    assert entries(fleet, model, placement) == pytest.approx((2 * 2 + 1) / 3)


def test_a_leftover_machine_goes_where_a_layer_is_missing() -> None:
    held = (shard("m00", 0, 2), shard("m01", 3, 5))
    grown = place_leftovers(fleet_of(2, 2, 2), toy_model(5), held, ["m02"])
    assert any(s.machine_id == "m02" and s.layers.start <= 2 < s.layers.end for s in grown)


@settings(max_examples=80, deadline=None)
@given(placed(), st.data())
def test_a_leftover_machine_never_lowers_the_flow(
    world: tuple[Fleet, ModelShape, Placement], data: st.DataObject
) -> None:
    fleet, model, placement = world
    left_out = data.draw(st.integers(0, len(placement) - 1))
    fewer = tuple(s for i, s in enumerate(placement) if i != left_out)
    before = solve_flow_lp(fleet, model, fewer).tokens_per_s
    again = place_leftovers(fleet, model, fewer, [placement[left_out].machine_id])
    assert solve_flow_lp(fleet, model, again).tokens_per_s >= before * (1 - 1e-9)


@pytest.mark.parametrize(("name", "stages"), [("32b", 3.1), ("70b", 7.0)])
def test_a_served_plan_of_64_reaches_the_bound_and_fits_every_machine(
    name: str, stages: float
) -> None:
    fleet, model = mixed(64, name)
    found = plan(fleet, model)
    placement = serving_placement(fleet, model, found)
    for machine_id, layers in placement:
        most = capacity(fleet.by_id[machine_id], model, position_of(layers, model))
        assert len(layers) <= most
    wide = {s.machine_id: s.layers for s in placement}
    for machine_id, layers in found.placement:
        assert wide[machine_id].start <= layers.start and layers.end <= wide[machine_id].end
    flow = solve_flow_lp(fleet, model, placement)
    assert flow.tokens_per_s >= 0.98 * flow.ub
    assert entries(fleet, model, placement, 0.9 * flow.ub / flow.tokens_per_s) <= stages
