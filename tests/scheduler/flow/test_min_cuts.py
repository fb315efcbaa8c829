"""What is short is what costs flow when it shrinks; what every cut has is what adds flow when it
grows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Coordinator, Fleet, Links, Machine, ModelShape, Shard
from scheduler.flow.max_flow import max_flow
from scheduler.flow.min_cuts import short_of
from tests.scheduler.search.worlds import all_placements, clusters, machine, toy_model


def faster(fleet: Fleet, machine_id: str, by: float) -> Fleet:
    """The same fleet, one machine passing `by` tokens/s more."""

    def change(m: Machine) -> Machine:
        assert m.profile is not None and m.profile.tokens_per_s_by_layers is not None
        if m.id != machine_id:
            return m
        rates = tuple(rate + by for rate in m.profile.tokens_per_s_by_layers)
        return replace(m, profile=replace(m.profile, tokens_per_s_by_layers=rates))

    return replace(fleet, machines=tuple(change(m) for m in fleet.machines))


def test_of_equal_stages_in_a_row_each_is_short_and_more_of_one_alone_adds_nothing() -> None:
    ids = ("a", "b", "c")
    fleet = Fleet(
        tuple(machine(m, (9.0 if m != "c" else 12.0,) * 3) for m in ids),
        Links(default_ms=1.0),
        Coordinator(),
    )
    placement = tuple(Shard(m, LayerRange(i, i + 1)) for i, m in enumerate(ids))
    short = short_of(fleet, toy_model(3), placement)
    assert short.some == (("a", "a"), ("b", "b"))
    assert short.every == ()
    alone = short_of(faster(fleet, "b", 1.0), toy_model(3), placement)
    assert alone.some == alone.every == (("a", "a"),)


@settings(max_examples=40, deadline=None)
@given(clusters(most_machines=3, most_layers=3, slow_links=True))
def test_shrinking_and_growing_machines_says_the_same(world: tuple[Fleet, ModelShape]) -> None:
    fleet, model = world
    for placement in list(all_placements(fleet, model))[::17]:
        most = max_flow(fleet, model, placement, partial=True).tokens_per_s
        short = short_of(fleet, model, placement, partial=True)
        for machine_id, _ in placement:
            less = max_flow(faster(fleet, machine_id, -0.125), model, placement, partial=True)
            more = max_flow(faster(fleet, machine_id, 0.125), model, placement, partial=True)
            ends = (machine_id, machine_id)
            assert (less.tokens_per_s < most - 1e-6) == (ends in short.some)
            if ends in short.every:
                assert more.tokens_per_s == pytest.approx(most + 0.125)
            elif most:
                assert more.tokens_per_s == pytest.approx(most)
