"""What lacks is the least there is to add, and whole slices pass what a maximum flow says."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, Links, Shard
from scheduler.flow.max_flow import max_flow
from scheduler.live.holdings import is_whole, missing, overlap, uncovered, whole_flow
from tests.scheduler.worlds import holding, toy_model

LAYERS = 9


@st.composite
def held(draw: st.DrawFn) -> dict[str, LayerRange]:
    found = {}
    for i in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, LAYERS - 1))
        found[f"m{i}"] = LayerRange(start, draw(st.integers(start + 1, LAYERS)))
    return found


def least_to_add(holding: dict[str, LayerRange]) -> int:
    """Shortest way from layer 0 to L: a slice costs nothing, a layer that nobody does costs one."""
    cost = [0] + [LAYERS] * LAYERS
    for layer in range(1, LAYERS + 1):
        cost[layer] = cost[layer - 1] + 1
        for layers in holding.values():
            if layers.end == layer:
                cost[layer] = min(cost[layer], cost[layers.start])
    return cost[LAYERS]


@given(held())
def test_what_lacks_for_whole_slices_is_the_least_that_completes_a_chain(
    slices: dict[str, LayerRange],
) -> None:
    lacks = missing(slices, LAYERS, partial=False)
    assert sum(map(len, lacks)) == least_to_add(slices)
    filled = {**slices, **{f"new {i}": layers for i, layers in enumerate(lacks)}}
    assert missing(filled, LAYERS, partial=False) == []
    assert all(a.end < b.start for a, b in itertools.pairwise(lacks))


@given(held())
def test_in_parts_only_what_nobody_holds_lacks(slices: dict[str, LayerRange]) -> None:
    lacks = missing(slices, LAYERS)
    assert lacks == uncovered(slices, LAYERS)
    have = {layer for layers in slices.values() for layer in range(layers.start, layers.end)}
    assert {layer for hole in lacks for layer in range(hole.start, hole.end)} == (
        set(range(LAYERS)) - have
    )


@given(held())
def test_whole_slices_pass_their_maximum_flow(slices: dict[str, LayerRange]) -> None:
    model = toy_model(LAYERS)
    fleet = Fleet(tuple(holding(i, LAYERS) for i in slices), Links(default_ms=1.0))
    placement = tuple(Shard(i, layers) for i, layers in sorted(slices.items()))
    expected = max_flow(fleet, model, placement).tokens_per_s if slices else 0.0
    assert whole_flow(fleet, model, slices) == pytest.approx(expected, rel=1e-5)
    assert is_whole(fleet, model, slices, partial=False) == (expected > 0)


def test_a_chain_needs_links() -> None:
    cut = Fleet((holding("a", 3), holding("b", 3)), Links())
    assert not is_whole(cut, toy_model(6), {"a": LayerRange(0, 3), "b": LayerRange(3, 6)}, False)
    assert not is_whole(cut, toy_model(6), {"a": LayerRange(0, 4), "b": LayerRange(2, 6)})


def test_overlap_counts_common_layers() -> None:
    assert overlap(LayerRange(0, 4), LayerRange(2, 9)) == 2
    assert overlap(LayerRange(0, 2), LayerRange(2, 9)) == 0
    assert overlap(None, LayerRange(2, 9)) == overlap(LayerRange(0, 2), None) == 0
