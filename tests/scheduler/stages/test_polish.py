"""Coverage is the max flow where links do not bind, and shifting machines never lowers what
passes.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.stages.compact_milp import solve_compact
from scheduler.stages.coverage import as_placement, coverage, raise_coverage, ranges_of
from scheduler.stages.polish import polish
from scheduler.stages.table import table_of
from tests.scheduler.search.worlds import clusters


@st.composite
def placed(draw: st.DrawFn, slow_links: bool = False) -> tuple[Fleet, ModelShape, Placement]:
    fleet, model = draw(clusters(most_machines=5, most_layers=7, slow_links=slow_links))
    shards = []
    for m in fleet.machines:
        assert m.profile is not None
        k = draw(st.integers(0, min(m.profile.max_layers, model.layers)))
        if k:
            start = draw(st.integers(0, model.layers - k))
            shards.append(Shard(m.id, LayerRange(start, start + k)))
    return fleet, model, tuple(sorted(shards, key=lambda s: (s.layers, s.machine_id)))


@given(placed())
@settings(max_examples=100, deadline=None)
def test_least_coverage_is_the_max_flow_with_partial_inference(
    world: tuple[Fleet, ModelShape, Placement],
) -> None:
    fleet, model, placement = world
    table = table_of(fleet, model)
    ranges = ranges_of(table, placement)
    assert as_placement(table, ranges) == placement
    least = min(coverage(table, ranges))
    if placement:
        flow = max_flow(fleet, model, placement, partial=True).tokens_per_s
        assert flow == pytest.approx(least)


@given(placed(), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_raising_coverage_never_lowers_it(
    world: tuple[Fleet, ModelShape, Placement], seed: int
) -> None:
    fleet, model, placement = world
    table = table_of(fleet, model)
    ranges = ranges_of(table, placement)
    better = raise_coverage(table, ranges, seed=seed, evaluations=500)
    assert min(coverage(table, better)) >= min(coverage(table, ranges))
    assert better == raise_coverage(table, ranges, seed=seed, evaluations=500)
    if better != ranges:
        validate_placement(as_placement(table, better), fleet, model)


@given(clusters(most_machines=3, most_layers=5))
@settings(max_examples=25, deadline=None)
def test_raising_coverage_from_nothing_comes_near_the_optimum(
    world: tuple[Fleet, ModelShape],
) -> None:
    fleet, model = world
    table = table_of(fleet, model)
    found = raise_coverage(table, [None] * len(table.machines), seed=0, evaluations=4_000)
    best = solve_compact(fleet, model, partial=True).tokens_per_s
    assert min(coverage(table, found)) >= 0.75 * best


@given(placed(slow_links=True))
@settings(max_examples=25, deadline=None)
def test_polish_never_loses_flow(world: tuple[Fleet, ModelShape, Placement]) -> None:
    fleet, model, placement = world
    if not placement:
        return
    before = max_flow(fleet, model, placement, partial=True).tokens_per_s
    after = polish(fleet, model, placement, evaluations=20)
    again = max_flow(fleet, model, after.placement, partial=True).tokens_per_s
    assert again == pytest.approx(after.tokens_per_s)
    assert after.tokens_per_s >= before
