"""T(k) from curves and cluster: the published tables to the last digit, and without their steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.peers.quality10 import FIRST_SPEEDS, TYPICAL_LAYERS
from benchmarks.scheduler.peers.token_rates import (
    AS_PUBLISHED,
    RateOptions,
    token_rates,
    typical_layers,
    with_token_rates,
)
from benchmarks.scheduler.worlds import cluster
from scheduler.fleet.costs import capacities, tokens_per_s
from scheduler.fleet.fleet import Fleet, ModelShape
from tests.scheduler.worlds import fleets, models


def without_rates(fleet: Fleet) -> Fleet:
    machines = []
    for machine in fleet.machines:
        assert machine.profile is not None
        profile = replace(machine.profile, tokens_per_s_by_layers=None)
        machines.append(replace(machine, profile=profile))
    return Fleet(tuple(machines), fleet.links, fleet.coordinator)


@pytest.mark.parametrize("model_name", ["llama-30b", "llama-70b"])
@pytest.mark.parametrize("name", ["single24", "geo24", "het42"])
def test_published_tables_come_out_exactly(name: str, model_name: str) -> None:
    fleet, model = cluster(name, model_name)
    typical, speeds = TYPICAL_LAYERS[model_name], FIRST_SPEEDS[model_name]
    derived = with_token_rates(without_rates(fleet), model, AS_PUBLISHED, typical, speeds)
    for ours, theirs in zip(derived.machines, fleet.machines, strict=True):
        assert ours.profile and theirs.profile and theirs.profile.tokens_per_s_by_layers
        assert ours.profile.tokens_per_s_by_layers == pytest.approx(
            theirs.profile.tokens_per_s_by_layers, abs=0.0006
        )


@pytest.mark.parametrize(
    ("name", "model_name", "mean", "worst"),
    [
        ("single24", "llama-70b", 0.06, 0.13),
        ("het42", "llama-70b", 0.04, 0.12),
        ("single24", "llama-30b", 0.11, 0.30),
        ("het42", "llama-30b", 0.06, 0.30),
    ],
)
def test_without_rounding_and_by_our_typical_layers_tables_are_near(
    name: str, model_name: str, mean: float, worst: float
) -> None:
    """The rest is their rounding: 30B tables that credit a T4 of 7 layers with more than
    one of 6.
    """
    fleet, model = cluster(name, model_name)
    found = token_rates(fleet, model)
    errors = []
    for machine in fleet.machines:
        assert machine.profile and machine.profile.tokens_per_s_by_layers
        published = machine.profile.tokens_per_s_by_layers
        errors += [abs(a / b - 1) for a, b in zip(found[machine.id], published, strict=True)]
    assert sum(errors) / len(errors) < mean
    assert max(errors) < worst


@pytest.mark.parametrize("name", ["single24", "het42"])
@pytest.mark.parametrize("model_name", ["llama-30b", "llama-70b"])
def test_monotone_and_settled(name: str, model_name: str) -> None:
    fleet, model = cluster(name, model_name)
    found = token_rates(fleet, model)
    for rates in found.values():
        assert all(a >= b > 0 for a, b in pairwise(rates))
    # a hundred rounds more from another start change nothing
    start = dict.fromkeys(TYPICAL_LAYERS[model_name], 1.0)
    again = token_rates(fleet, model, RateOptions(rounds=100), speeds=start)
    for machine_id, rates in found.items():
        assert again[machine_id] == pytest.approx(rates, rel=1e-3)


def test_typical_layers_are_near_those_set_by_hand() -> None:
    for name in ("single24", "het42"):
        for model_name, by_hand in TYPICAL_LAYERS.items():
            fleet, model = cluster(name, model_name)
            for machine_id, layers in typical_layers(fleet, model).items():
                assert abs(layers - by_hand[fleet.by_id[machine_id].kind]) <= 1


def test_rates_depend_on_the_company() -> None:
    fleet, model = cluster("single24")
    alone = Fleet(tuple(m for m in fleet.machines if m.kind == "T4"), fleet.links)
    mixed, apart = token_rates(fleet, model), token_rates(alone, model)
    assert all(mixed[machine_id] != rates for machine_id, rates in apart.items())


@settings(max_examples=60, deadline=None)
@given(fleets(5), models(6), st.booleans())
def test_any_fleet_has_rates_above_zero(fleet: Fleet, model: ModelShape, whole: bool) -> None:
    """Machines without a profile too; what they hold and how fast they are may be anything."""
    options = RateOptions(whole_requests=whole)
    rates = token_rates(fleet, model, options)
    for machine in fleet.machines:
        most = max(capacities(machine, model))
        assert len(rates.get(machine.id, ())) == most
        assert all(0 < rate < float("inf") for rate in rates.get(machine.id, ()))
    assert token_rates(fleet, model, options) == rates


def test_tables_that_exist_are_left_alone() -> None:
    fleet, model = cluster("single24")
    assert with_token_rates(fleet, model) is fleet
    derived = with_token_rates(without_rates(fleet), model)
    for machine in derived.machines:
        assert machine.profile is not None
        assert tokens_per_s(machine, model, machine.profile.max_layers) > 0
    assert derived.coordinator == fleet.coordinator
