"""Many types, models on the same GPUs, and the cost of switching."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fabric.columns import options_of
from scheduler.fabric.lazy import PriceBound
from scheduler.fabric.objective import Objective, pieces_of
from scheduler.fabric.place import place
from scheduler.fabric.pool import PlacementEffort
from scheduler.fabric.sharing import shared_latency_ms, shared_replicas
from scheduler.fabric.switching import Switch
from scheduler.fabric.world import Demand, Efficiency, GpuType, Group, NeedsChain, Overloaded
from scheduler.fleet.errors import FleetError
from tests.scheduler.fabric.checking import check_plan
from tests.scheduler.fabric.seating import seats
from tests.scheduler.fabric.worlds import demand, gpu, small_shape, worlds

LAZY = PlacementEffort(exact_types=0)


def gpus_to_load(before: Sequence[Group], after: Sequence[Group]) -> int:
    """GPUs that must load this model: those of replicas that are new on their type or split
    otherwise.
    """
    kept = {(group.gpu, group.tensor): group.replicas for group in before}
    return sum(
        group.tensor * max(0, group.replicas - kept.get((group.gpu, group.tensor), 0))
        for group in after
    )


@settings(max_examples=50, deadline=None)
@given(worlds(3, 2, 4), st.sampled_from(["sum", "weighted", "minmax", "slo"]))
def test_generated_columns_stay_within_their_bound_of_every_column(
    world: tuple[list[GpuType], list[Demand]], objective: Objective
) -> None:
    types, demands = world
    try:
        exact = place(types, demands, objective)
    except (NeedsChain, Overloaded):
        return
    lazy = place(types, demands, objective, effort=LAZY)
    check_plan(lazy)
    assert "generated" in lazy.method and "every" in exact.method
    assert lazy.bound <= exact.value * (1 + 1e-9) + 1e-9
    assert lazy.value >= exact.value * (1 - 1e-9) - 1e-9
    assert lazy.value <= exact.value * 1.1 + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    worlds(2, 2, 4),
    st.lists(st.floats(0, 500), min_size=2, max_size=2),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
    st.booleans(),
)
def test_any_prices_bound_the_best_placement(
    world: tuple[list[GpuType], list[Demand]],
    prices: list[float],
    weights: list[float],
    worst: bool,
) -> None:
    types, demands = world
    objective: Objective = "minmax" if worst else "sum"
    try:
        best = place(types, demands, objective).value
    except (NeedsChain, Overloaded):
        return
    options = [options_of(m, asked, types, Efficiency()) for m, asked in enumerate(demands)]
    share = np.array(weights[: len(demands)]) + 1e-3
    multipliers = share / share.sum() if worst else np.ones(len(demands))
    limit = PriceBound(options, pieces_of(objective, demands))
    bound = limit.at(np.array(prices[: len(types)]), multipliers)
    assert bound <= best * (1 + 1e-9)


def test_six_types_are_placed_by_column_generation_with_a_gap() -> None:
    types = [gpu(f"g{i}", 8 + i, 4.0 + i, 0.5 + 0.3 * i, gpus_per_node=4) for i in range(6)]
    demands = [demand(f"m{i}", 3.0 * (i + 1), shape=small_shape(6 + 2 * i)) for i in range(4)]
    plan = place(types, demands)
    check_plan(plan)
    assert "generated" in plan.method
    assert plan.gap <= 0.05
    assert plan == place(types, demands)


def test_a_load_that_only_all_types_together_serve_is_placed() -> None:
    types = [gpu(f"g{i}", 2, 4.0, gpus_per_node=1) for i in range(5)]
    one = options_of(0, demand(), [types[0]], Efficiency()).kinds[0].capacity_per_s
    plan = place(types, [demand(rate=8.5 * one)])
    assert sum(plan.gpus.values()) >= 9
    check_plan(plan)


def test_two_light_models_share_the_only_gpu() -> None:
    types, light = [gpu(count=1, gib=12)], [demand("a", 0.01), demand("b", 0.02)]
    with pytest.raises(Overloaded):
        place(types, light)
    plan = place(types, light, sharing=True)
    check_plan(plan)
    assert plan.shared == ((0, 1),) and plan.gpus == {"big": 1}
    assert [seat.models for seat in seats(plan)] == [("a", "b")]
    alone = place([gpu(count=2, gib=12, gpus_per_node=1)], light)
    for shared, own in zip(plan.parts, alone.parts, strict=True):
        assert own.latency_ms <= shared.latency_ms <= 1.1 * own.latency_ms


def test_sharing_is_never_worse_and_is_left_where_it_would_be_too_much() -> None:
    types = [gpu(count=3, gib=12)]
    for rate in (0.01, 1.0, 20.0):
        busy = [demand("a", rate), demand("b", rate), demand("c", rate)]
        apart, together = place(types, busy), place(types, busy, sharing=True)
        assert together.value <= apart.value * (1 + 1e-9)
    with pytest.raises(Overloaded):
        place([gpu(count=1, gib=12)], [demand("a", 20.0), demand("b", 20.0)], sharing=True)


def test_shared_engines_slow_each_other_and_know_when_they_are_too_much() -> None:
    one, other = demand("a", 1.0), demand("b", 1.0)
    both = shared_replicas(one, other, gpu(gib=12), 1, Efficiency())
    assert both is not None
    loads = np.array([1e-6, 1.0, 5.0, 1e4])
    quiet, _ = shared_latency_ms(both, (loads, np.zeros(4)))
    noisy, _ = shared_latency_ms(both, (loads, np.full(4, 5.0)))
    assert (noisy[:3] > quiet[:3]).all() and np.isinf(noisy[3])
    assert quiet[0] == pytest.approx(both[0].times(np.array([1e-6])).total_ms[0], rel=1e-3)
    assert shared_replicas(one, other, gpu(gib=2.5), 1, Efficiency()) is None


def test_switching_costs_keep_what_serves_unless_it_gains_enough() -> None:
    types = [gpu(count=12, gpus_per_node=4)]
    day = [demand("chat", 80.0), demand("code", 2.0)]
    night = [demand("chat", 2.0), demand("code", 80.0)]
    first = place(types, day)
    serving = {d.name: part.groups for d, part in zip(first.demands, first.parts, strict=True)}
    free = place(types, night)
    moved = sum(
        gpus_to_load(serving[d.name], part.groups)
        for d, part in zip(free.demands, free.parts, strict=True)
    )
    assert moved > 0
    kept = place(types, night, switch=Switch(serving, ms_per_gpu=1e6))
    stays = sum(
        gpus_to_load(serving[d.name], part.groups)
        for d, part in zip(kept.demands, kept.parts, strict=True)
    )
    assert stays < moved
    latency = sum(part.latency_ms for part in free.parts)
    assert latency <= sum(part.latency_ms for part in kept.parts)
    same = place(types, day, switch=Switch(serving, ms_per_gpu=1.0))
    assert [part.groups for part in same.parts] == [part.groups for part in first.parts]
    assert same.value == pytest.approx(first.value)


@pytest.mark.parametrize("absurd", [-1.0, math.inf, math.nan, "1", True])
def test_absurd_price_of_loading_is_refused(absurd: float) -> None:
    with pytest.raises(FleetError, match="ms_per_gpu is"):
        Switch(ms_per_gpu=absurd)


@pytest.mark.parametrize(("tensor", "replicas"), [(0, 1), (1, 0), (1.0, 1), (1, True), (1, 2**20)])
def test_absurd_group_that_serves_is_refused(tensor: int, replicas: int) -> None:
    with pytest.raises(FleetError, match=r"serving.chat on big: (tensor|replicas) is"):
        Switch({"chat": [Group("big", tensor, replicas)]})
