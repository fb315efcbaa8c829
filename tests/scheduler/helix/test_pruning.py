"""Pruning keeps the fast links, the degree, and whatever a warm start needs."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import cluster, shipped_placement
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.max_flow import max_flow
from scheduler.helix.pruning import prune_links
from tests.scheduler.helix.worlds import placed


def degrees(fleet: Fleet) -> list[int]:
    return [
        sum(fleet.links.between(a, b) is not None for b in fleet.machines if b.id != a.id)
        for a in fleet.machines
    ]


@pytest.mark.parametrize("name", ["single24", "het42"])
def test_equal_links_end_at_the_degree_and_stay_connected(name: str) -> None:
    fleet, model = cluster(name)
    pruned = prune_links(fleet, model)
    assert set(degrees(pruned)) == {12}
    reached, stack = {"n00"}, [pruned.machines[0]]
    while stack:
        here = stack.pop()
        for other in pruned.machines:
            if other.id not in reached and pruned.links.between(here, other):
                reached.add(other.id)
                stack.append(other)
    assert len(reached) == len(fleet.machines)


def test_the_fastest_links_stay() -> None:
    fleet, model = cluster("geo24")
    pruned = prune_links(fleet, model, 3)
    for a, b in combinations(pruned.machines, 2):
        if pruned.links.between(a, b):
            assert a.region == b.region  # across regions links are a hundred times slower
    assert all(3 <= degree <= 9 for degree in degrees(pruned))


@pytest.mark.parametrize("method", ["helix", "swarm"])
@pytest.mark.parametrize("name", ["single24", "geo24", "het42"])
def test_a_warm_start_keeps_its_worth(name: str, method: str) -> None:
    """In the shipped pruning, Swarm's placement was worth nothing on geo24 and het42."""
    fleet, model = cluster(name)
    placement, flow = shipped_placement(name, method, model)
    pruned = prune_links(fleet, model, keep=[placement])
    assert max_flow(pruned, model, placement).tokens_per_s == pytest.approx(flow, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(placed(), st.booleans(), st.integers(0, 3))
def test_kept_placements_flow_as_before(
    world: tuple[Fleet, ModelShape, Placement], partial: bool, degree: int
) -> None:
    fleet, model, placement = world
    pruned = prune_links(fleet, model, degree, [placement], partial=partial)
    before = max_flow(fleet, model, placement, partial=partial)
    assert max_flow(pruned, model, placement, partial=partial) == before
    for a in fleet.machines:
        for b in fleet.machines:
            link = pruned.links.between(a, b)
            assert link is None or link == fleet.links.between(a, b)
