"""Every method behind one function: valid plans, bounds that hold, refusals with figures."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.scheduler.worlds import cluster, mixed
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet
from scheduler.methods.explain_plan import explain_plan
from scheduler.methods.methods import METHODS, Budget, plan_by
from tests.scheduler.worlds import fleet_of, toy_model

#: Minutes on 24 machines, so they meet smaller worlds below.
SLOW = {"helix", "compact", "dp", "search", "serve", "auto", "simulated"}


def ticking(seconds: float) -> Budget:
    """A budget whose clock moves at every look, so that searches end after as many looks."""
    ticks = itertools.count()
    return Budget(lambda: next(ticks) * 1e-3, seconds)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_small_fleet_is_planned_within_its_bound(name: str) -> None:
    fleet, model = fleet_of(4, 4, 4, 4), toy_model(8)
    found = plan_by(name, fleet, model, ticking(0.2))
    explained = explain_plan(found, fleet, model)
    assert 0 < found.tokens_per_s <= found.at_most * (1 + 1e-9)
    assert explained.flow_tokens_per_s <= found.at_most * (1 + 1e-9)
    assert {s.machine_id for s in found.placement} | set(found.standby) == set(fleet.by_id)


@pytest.mark.parametrize("name", sorted(set(METHODS) - SLOW))
@pytest.mark.parametrize("world", ["single24", "geo24", "het42"])
def test_a_cluster_is_planned_within_its_bound_or_refused_by_name(world: str, name: str) -> None:
    fleet, model = cluster(world)
    try:
        found = plan_by(name, fleet, model)
    except FleetError as error:
        assert name in str(error)
        assert name in ("separate", "memory")  # the printed methods ignore what fits
        return
    assert 0 < found.tokens_per_s <= found.at_most * (1 + 1e-9)


def test_what_the_product_would_do_beats_every_other_method() -> None:
    fleet, model = cluster("single24")
    ours = plan_by("auto", fleet, model, ticking(0.5)).tokens_per_s
    for name in ("swarm", "petals", "separate+", "score", "even"):
        assert ours > plan_by(name, fleet, model).tokens_per_s


def test_a_mixed_fleet_gets_disjoint_pipelines() -> None:
    fleet, model = mixed(16, "32b")
    found = plan_by("auto", fleet, model)
    assert found.disjoint
    assert found.method == "utility"
    assert found.tokens_per_s > 0.8 * found.at_most


def test_an_impossible_fleet_says_what_is_short() -> None:
    with pytest.raises(FleetError, match=r"no plan: .*short by 2 layers, 200 bytes"):
        plan_by("auto", fleet_of(4, 2), toy_model(8))


def test_a_machine_too_small_for_a_layer_is_ignored_and_said_so() -> None:
    fleet, model = fleet_of(8, 0), toy_model(8)
    found = plan_by("auto", fleet, model)
    assert [machine for machine, _ in found.ignored] == ["m01"]
    assert any("m01 is ignored" in line for line in explain_plan(found, fleet, model).sentences)


def test_unknown_methods_are_refused_with_the_known_ones() -> None:
    with pytest.raises(FleetError, match="utility"):
        plan_by("magic", fleet_of(8), toy_model(8))


def test_the_order_of_machines_changes_nothing() -> None:
    fleet, model = cluster("single24")
    turned = Fleet(tuple(reversed(fleet.machines)), fleet.links, fleet.coordinator)
    for name in ("stages", "swarm", "petals", "utility"):
        assert plan_by(name, fleet, model) == plan_by(name, turned, model)
