"""Utility plans are valid, best on small fleets, deterministic, and exist whenever a chain of
machines does.
"""

from __future__ import annotations

import builtins
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import mixed
from scheduler.covering.whole import Search
from scheduler.fleet.costs import capacities, head_ms, hop_ms, tau_ms_per_layer, tokens_per_s
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape
from scheduler.fleet.validate import validate_pipelines
from scheduler.utility.draft import UtilityOptions
from scheduler.utility.plan import UtilityPlan, plan
from scheduler.utility.scope import Effort
from scheduler.utility.score import REF_MS
from tests.scheduler.parallax.test_allocate import chain_exists
from tests.scheduler.worlds import fleets, holding, models, toy_model

options = st.builds(
    UtilityOptions,
    beta=st.sampled_from([0.0, 0.5, 1.0]),
    floor=st.sampled_from([0.0, 0.92]),
    kinds=st.sampled_from([2, 8]),
)


def best_pipeline(
    machines: Sequence[Machine], fleet: Fleet, model: ModelShape, beta: float
) -> float:
    """u of these machines by trying every order and every split: most θ first, then least time."""
    best = 0.0
    for order in permutations(machines):
        caps = [capacities(m, model) for m in order]
        most = [c.plain for c in caps]
        most[0], most[-1] = caps[0].first, caps[-1].last
        if len(order) == 1:
            most = [caps[0].both]
        hops = sum(hop_ms(fleet.links, a, b, model) for a, b in pairwise(order))
        found: list[tuple[float, float]] = []

        def grow(i: int, left: int, theta: float, time_ms: float) -> None:
            if i == len(order):  # noqa: B023
                if left == 0:
                    found.append((theta, -time_ms))  # noqa: B023
                return
            m = order[i]  # noqa: B023
            for n in range(1, min(most[i], left) + 1):  # noqa: B023
                rate = tokens_per_s(m, model, n) * m.stability
                grow(i + 1, left - n, min(theta, rate), time_ms + n * tau_ms_per_layer(m, model))

        grow(0, model.layers, math.inf, head_ms(order[-1], model) + hops)
        if found and hops < math.inf:
            theta, minus_ms = max(found)
            best = max(best, theta * (REF_MS / -minus_ms) ** beta)
    return best


def best_by_force(fleet: Fleet, model: ModelShape, beta: float) -> float:
    """Most Σ u over all ways to form disjoint pipelines."""
    machines = fleet.machines
    worth = [
        best_pipeline([m for i, m in enumerate(machines) if mask >> i & 1], fleet, model, beta)
        if mask
        else 0.0
        for mask in range(1 << len(machines))
    ]
    best = [0.0] * len(worth)
    for mask in range(1, len(worth)):
        low = mask & -mask
        best[mask] = best[mask ^ low]
        part = mask
        while part:
            if part & low and worth[part]:
                best[mask] = max(best[mask], worth[part] + best[mask ^ part])
            part = (part - 1) & mask
    return best[-1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 7), st.sampled_from([1.0, 2.5, 4.0])), min_size=1, max_size=4
    ),
    models(6),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_plan_equals_brute_force_where_all_hops_are_alike(
    cards: list[tuple[int, float]], model: ModelShape, beta: float
) -> None:
    machines = tuple(holding(f"m{i}", c, tflops) for i, (c, tflops) in enumerate(cards))
    fleet = Fleet(machines, Links(default_ms=3.0))
    found = plan(
        fleet,
        model,
        UtilityOptions(beta=beta, floor=0.0, effort=Effort(searches=(Search(100_000, 0.0),))),
    )
    assert found.utility == pytest.approx(best_by_force(fleet, model, beta), rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(fleets(8, regions=3), models(), options, st.randoms(use_true_random=False))
def test_every_plan_validates_and_ignores_input_order(
    fleet: Fleet, model: ModelShape, how: UtilityOptions, shuffle: random.Random
) -> None:
    found = plan(fleet, model, how)
    validate_pipelines(found.pipelines, fleet, model)
    named = [s.machine_id for s in found.placement] + list(found.standby)
    assert sorted(named + [i for i, _ in found.ignored]) == [m.id for m in fleet.machines]
    assert found.throughput <= found.ub * (1 + 1e-9)
    assert 0 <= found.gap <= 1
    assert len(found.latencies_ms) == len(found.thetas) == len(found.pipelines)
    for scope in found.scopes:
        assert scope.value <= scope.bound * (1 + 1e-9)
    shuffled = list(fleet.machines)
    shuffle.shuffle(shuffled)
    assert plan(Fleet(tuple(shuffled), fleet.links), model, how) == found


@settings(max_examples=80, deadline=None)
@given(fleets(5, regions=3), models(8), options)
def test_a_pipeline_is_planned_exactly_when_some_chain_exists(
    fleet: Fleet, model: ModelShape, how: UtilityOptions
) -> None:
    exists = chain_exists(fleet.machines, fleet.links, model)
    assert bool(plan(fleet, model, how).pipelines) == exists


def figures(found: UtilityPlan, fleet: Fleet, model: ModelShape) -> list[tuple[float, float]]:
    """(θ, latency) of every pipeline by the definitions alone."""
    result = []
    for pipeline in found.pipelines:
        machines = [fleet.by_id[s.machine_id] for s in pipeline]
        theta = min(
            tokens_per_s(m, model, len(s.layers)) * m.stability
            for m, s in zip(machines, pipeline, strict=True)
        )
        compute = sum(
            tau_ms_per_layer(m, model) * len(s.layers)
            for m, s in zip(machines, pipeline, strict=True)
        )
        hops = sum(hop_ms(fleet.links, a, b, model) for a, b in pairwise(machines))
        result.append((theta, compute + head_ms(machines[-1], model) + hops))
    return result


@settings(max_examples=60, deadline=None)
@given(fleets(8, regions=2), models(), options)
def test_stated_rates_and_latencies_are_those_of_the_pipelines(
    fleet: Fleet, model: ModelShape, how: UtilityOptions
) -> None:
    found = plan(fleet, model, how)
    truth = figures(found, fleet, model)
    assert list(found.thetas) == pytest.approx([theta for theta, _ in truth])
    assert list(found.latencies_ms) == pytest.approx([latency for _, latency in truth])
    assert found.throughput == pytest.approx(sum(theta for theta, _ in truth))


@pytest.mark.parametrize("name", ["32b", "70b"])
def test_mixed_fleets_of_64_reach_nine_tenths_of_the_bound(name: str) -> None:
    fleet, model = mixed(64, name)
    found = plan(fleet, model)
    assert found.throughput >= 0.92 * found.ub
    assert found.gap <= 0.001
    assert len(found.localities) == 4


@pytest.mark.parametrize("name", ["32b", "70b"])
@pytest.mark.parametrize("nodes", [256, 1024])
def test_mixed_fleets_of_hundreds_are_proven_within_a_hundredth(nodes: int, name: str) -> None:
    fleet, model = mixed(nodes, name)
    found = plan(fleet, model)
    assert found.gap <= 0.01
    assert found.throughput >= 0.96 * found.ub


def test_machines_that_all_differ_are_planned_by_their_coarse_kinds() -> None:
    fleet, model = mixed(64, "32b")
    draw = random.Random(3)
    fleet = fleet.subset(
        replace(
            m,
            memory_bytes=int(m.memory_bytes * draw.uniform(0.8, 1.2)),
            bandwidth_gb_s=m.bandwidth_gb_s * draw.uniform(0.8, 1.2),
        )
        for m in fleet.machines
    )
    found = plan(fleet, model)
    assert found.throughput >= 0.9 * found.ub


def test_four_machines_in_four_regions_still_make_a_pipeline() -> None:
    machines = tuple(holding(f"m{i}", 3, region=f"r{i}") for i in range(4))
    found = plan(Fleet(machines, Links(default_ms=80.0)), toy_model(10))
    assert len(found.pipelines) == 1


def test_pipelines_stay_inside_localities_where_each_holds_the_model() -> None:
    machines = tuple(holding(f"m{i}", 5, region=f"r{i % 2}") for i in range(8))
    links = Links(regions={("r0", "r0"): Link(2), ("r1", "r1"): Link(2), ("r0", "r1"): Link(90)})
    fleet = Fleet(machines, links)
    found = plan(fleet, toy_model(10))
    assert len(found.pipelines) == 4
    for pipeline in found.pipelines:
        assert len({fleet.by_id[s.machine_id].region for s in pipeline}) == 1


def test_an_unstable_machine_counts_for_less() -> None:
    sure, shaky = holding("a", 4), replace(holding("a", 4), stability=0.5)
    one, half = (plan(Fleet((m,)), toy_model(4)) for m in (sure, shaky))
    assert half.throughput == pytest.approx(one.throughput / 2)
    gone = plan(Fleet((replace(sure, stability=0.0),)), toy_model(4))
    assert gone.pipelines == () and "stability" in gone.ignored[0][1]


def test_an_impossible_fleet_is_told_what_is_short() -> None:
    found = plan(Fleet((holding("a", 3), holding("b", 3))), toy_model(10))
    assert found.pipelines == () and found.standby == ("a", "b")
    assert any("short by 4 layers" in line for line in found.explanation)
    assert plan(Fleet(()), toy_model(4)).explanation


def test_a_deadline_in_the_past_still_gives_the_first_plan() -> None:
    fleet, model = mixed(16, "32b")
    found = plan(fleet, model, clock=lambda: 1.0, deadline=0.0)
    assert found.pipelines
    assert found.throughput <= plan(fleet, model).throughput * (1 + 1e-9)


def test_no_solver_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, model = mixed(64, "70b")
    best = plan(fleet, model)
    real_import = builtins.__import__

    def without_highs(
        name: str,
        globals_: Mapping[str, object] | None = None,
        locals_: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        if name == "highspy":
            raise ImportError(name)
        return real_import(name, globals_, locals_, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without_highs)
    assert plan(fleet, model) == best
