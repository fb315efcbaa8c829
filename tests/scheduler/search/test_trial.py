"""Of a few plans the one that serves most is taken, as far as there is time to try them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduler.worlds import mixed
from scheduler.fleet.fleet import Fleet
from scheduler.methods import methods
from scheduler.methods.methods import Budget, plan_by
from scheduler.search.trial import try_plans
from tests.scheduler.worlds import fleet_of, toy_model


def unlimited(nodes: int, name: str):
    """A published fleet in which KV room is the only limit on requests at once."""
    fleet, model = mixed(nodes, name)
    machines = tuple(replace(machine, max_concurrent=2**31) for machine in fleet.machines)
    return Fleet(machines, fleet.links), model


def test_the_simulated_plan_serves_at_least_as_much_as_those_that_it_tries() -> None:
    fleet, model = unlimited(16, "32b")
    names = ("utility", "regions", "score")
    plans = [(name, plan_by(name, fleet, model).placement) for name in names]
    tried = try_plans(fleet, model, plans)
    assert {trial.name for trial in tried} == set(names)
    rates = [trial.report.decode_tokens_per_s for trial in tried]
    assert rates == sorted(rates, reverse=True) and rates[0] > 1.05 * rates[-1]
    chosen = plan_by("simulated", fleet, model)
    assert chosen.method == f"simulated, {tried[0].name}"
    assert chosen.placement == dict(plans)[tried[0].name]
    assert chosen.notes[0].startswith(f"{tried[0].name} serves {rates[0]:.0f} output tokens/s")
    assert plan_by("simulated", fleet, model) == chosen


def test_without_time_or_with_many_machines_it_is_the_utility_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, model = mixed(4, "32b")
    over = plan_by("simulated", fleet, model, Budget(lambda: 1.0, 0.0))
    assert over.method == "simulated, utility"
    utility = plan_by("utility", fleet, model)
    assert over.placement == utility.placement
    monkeypatch.setattr(methods, "TRIED_MACHINES", 3)
    assert plan_by("simulated", fleet, model).method == "utility"


def test_a_trial_ends_when_time_is_over() -> None:
    fleet, model = fleet_of(4, 4), toy_model(4)
    plans = [(name, plan_by("utility", fleet, model).placement) for name in "abc"]
    left = iter([False, False, True])
    tried = try_plans(fleet, model, plans, over=lambda: next(left))
    assert [trial.name for trial in tried] == ["a", "b"], "equal plans stay in their order"
