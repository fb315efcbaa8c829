"""Placements are legal, what brute force finds, and say what is short."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fabric.columns import degrees
from scheduler.fabric.knapsack import Knapsack
from scheduler.fabric.objective import Objective
from scheduler.fabric.place import FabricPlan, place
from scheduler.fabric.pool import PlacementEffort
from scheduler.fabric.replica import replica
from scheduler.fabric.solver import pick
from scheduler.fabric.world import Demand, Efficiency, GpuType, Group, NeedsChain, Overloaded
from scheduler.fleet.errors import FleetError, PlanError
from tests.scheduler.fabric.checking import check_plan
from tests.scheduler.fabric.merging import merge
from tests.scheduler.fabric.seating import seats
from tests.scheduler.fabric.worlds import demand, gpu, scaled, small_shape, worlds

objectives = st.sampled_from(["sum", "weighted", "minmax", "slo"])
EFFICIENCY = Efficiency()


def ways(types: Sequence[GpuType], asked: Demand) -> Iterator[tuple[tuple[int, ...], float]]:
    """(GPUs by type, latency) of every ⟨ψ_DP, ψ_TP⟩ combination, from the formulas alone."""
    import numpy as np

    per_type: list[list[tuple[int, int]]] = []
    for card in types:
        per_type.append([(0, 0)])
        for tensor in (1, 2, 4, 8):
            whole = tensor <= min(card.count, card.gpus_per_node)
            fits = replica(card, tensor, asked, EFFICIENCY) is not None
            if whole and card.gpus_per_node % tensor == 0 and fits:
                per_type[-1] += [(tensor, d) for d in range(1, card.count // tensor + 1)]
    for choice in product(*per_type):
        found = [
            (replica(card, tensor, asked, EFFICIENCY), many)
            for card, (tensor, many) in zip(types, choice, strict=True)
            if many
        ]
        capacity = math.fsum(many * r.capacity_per_s for r, many in found if r)
        if capacity <= asked.requests_per_s:
            continue
        busy = asked.requests_per_s / capacity
        latency = math.fsum(
            many
            * r.capacity_per_s
            / capacity
            * float(r.times(np.array([busy * r.capacity_per_s])).total_ms[0])
            for r, many in found
            if r
        )
        yield tuple(tensor * many for tensor, many in choice), latency


def value_of(objective: Objective, demands: Sequence[Demand], latencies: Sequence[float]) -> float:
    if objective == "minmax":
        return max(latencies)
    if objective == "slo":
        return math.fsum(
            max(0.0, ms / (d.slo_ms or 1) - 1) for d, ms in zip(demands, latencies, strict=True)
        )
    weights = [1.0] * len(demands)
    if objective == "weighted":
        rates = [d.requests_per_s for d in demands]
        weights = [rate / sum(rates) for rate in rates]
    return math.fsum(w * ms for w, ms in zip(weights, latencies, strict=True))


def best_by_force(
    types: Sequence[GpuType], demands: Sequence[Demand], objective: Objective
) -> float:
    all_ways = [list(ways(types, asked)) for asked in demands]
    best = math.inf
    for choice in product(*all_ways):
        if all(sum(gpus[n] for gpus, _ in choice) <= card.count for n, card in enumerate(types)):
            best = min(best, value_of(objective, demands, [ms for _, ms in choice]))
    return best


def tried(call: Callable[[], FabricPlan]) -> FabricPlan | None:
    try:
        return call()
    except (NeedsChain, Overloaded):
        return None


@settings(max_examples=60, deadline=None)
@given(worlds(), objectives)
def test_place_finds_what_brute_force_finds(
    world: tuple[list[GpuType], list[Demand]], objective: Objective
) -> None:
    types, demands = world
    best = best_by_force(types, demands, objective)
    plan = tried(lambda: place(types, demands, objective))
    assert (plan is not None) == math.isfinite(best)
    if plan is None:
        return
    check_plan(plan)
    assert plan.value == pytest.approx(best, rel=1e-6, abs=1e-7)
    assert plan.gap == pytest.approx(0.0, abs=1e-6)
    latencies = [part.latency_ms for part in plan.parts]
    assert value_of(objective, demands, latencies) == pytest.approx(best, rel=1e-6, abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(worlds(3, 3, 6), objectives, st.booleans())
def test_every_plan_keeps_c1_c2_c3_and_fits_into_nodes(
    world: tuple[list[GpuType], list[Demand]], objective: Objective, sharing: bool
) -> None:
    types, demands = world
    plan = tried(lambda: place(types, demands, objective, sharing=sharing))
    if plan is None:
        return
    check_plan(plan)
    placed = seats(plan)
    for seat in placed:
        card = next(t for t in types if t.name == seat.gpu)
        assert seat.first + seat.tensor <= card.gpus_per_node
        assert seat.node * card.gpus_per_node + seat.first + seat.tensor <= card.count
    taken = [(s.gpu, s.node, s.first + i) for s in placed for i in range(s.tensor)]
    assert len(set(taken)) == len(taken) == sum(plan.gpus.values())
    assert plan == place(list(reversed(types)), demands, objective, sharing=sharing)


@settings(max_examples=40, deadline=None)
@given(worlds(2, 2, 3), st.sampled_from(["sum", "minmax"]))
def test_more_gpus_or_less_load_never_make_the_best_worse(
    world: tuple[list[GpuType], list[Demand]], objective: Objective
) -> None:
    types, demands = world
    plan = tried(lambda: place(types, demands, objective))
    if plan is None:
        return
    more = [
        GpuType(
            t.name,
            t.count + 1,
            t.memory_bytes,
            t.tflops,
            t.bandwidth_gb_s,
            t.interconnect_gb_s,
            t.gpus_per_node,
        )
        for t in types
    ]
    assert place(more, demands, objective).value <= plan.value * (1 + 1e-6)
    less = [scaled(asked, 0.5) for asked in demands]
    assert place(types, less, objective).value <= plan.value * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(worlds(2, 3, 4), objectives)
def test_highs_picks_what_a_merge_of_all_choices_finds(
    world: tuple[list[GpuType], list[Demand]], objective: Objective
) -> None:
    types, demands = world
    plan = tried(lambda: place(types, demands, objective))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("scheduler.fabric.place.pick", lambda knapsack, _: merge(knapsack))
        merged = tried(lambda: place(types, demands, objective))
    assert (plan is None) == (merged is None)
    if plan is not None and merged is not None:
        assert merged.value == pytest.approx(plan.value, rel=1e-6, abs=1e-7)
        assert merged.gap == 0.0


def test_a_solver_that_runs_out_of_nodes_still_says_what_it_has() -> None:
    types = [gpu("a", 12, speed=1.0), gpu("b", 12, 4.0, speed=0.5)]
    demands = [demand(f"m{i}", 5.0 + i) for i in range(4)]
    exact = place(types, demands)
    rough = place(types, demands, effort=PlacementEffort(mip_nodes=0))
    check_plan(rough)
    assert rough.bound <= exact.value <= rough.value


def test_nothing_is_picked_where_there_is_no_column() -> None:
    nothing = Knapsack((0,), 1, (), ())
    assert pick(nothing, 1) is None
    assert merge(nothing) is None


def test_model_too_big_for_a_node_is_said_to_need_a_chain() -> None:
    giant = demand("giant", shape=small_shape(400))
    with pytest.raises(NeedsChain, match=r"giant needs \d+ bytes.*chain"):
        place([gpu(count=64, gpus_per_node=4)], [giant])
    assert place([gpu(count=64, gib=32, gpus_per_node=4)], [giant]).parts[0].groups[0].tensor == 4


def test_overload_states_the_share_that_could_be_served() -> None:
    types, asked = [gpu("a", 4), gpu("b", 2, speed=0.5)], [demand("x", 400.0), demand("y", 90.0)]
    with pytest.raises(Overloaded) as refused:
        place(types, asked)
    factor = refused.value.load_factor
    assert 0 < factor < 1 and f"{factor:.1%}" in str(refused.value)
    place(types, [scaled(d, factor * 0.999) for d in asked])
    with pytest.raises(Overloaded):
        place(types, [scaled(d, factor * 1.001) for d in asked])


def test_more_models_than_gpus_are_refused_with_both_numbers() -> None:
    with pytest.raises(Overloaded, match="3 models need at least 3 GPUs") as refused:
        place([gpu(count=2)], [demand(f"m{i}") for i in range(3)])
    assert refused.value.load_factor == 0.0


def test_slo_frees_the_gpus_that_no_limit_needs() -> None:
    types = [gpu(count=8)]
    easy = place(types, [demand(slo_ms=60_000.0)], "slo")
    assert (easy.value, sum(easy.gpus.values())) == (0.0, 1)
    assert sum(place(types, [demand()], "sum").gpus.values()) > 1
    hard = place(types, [demand(slo_ms=1.0)], "slo")
    assert hard.value > 1
    with pytest.raises(FleetError, match="slo_ms"):
        place(types, [demand()], "slo")


def test_minmax_lowers_the_others_too_where_the_slowest_allows() -> None:
    types = [gpu(count=8, gpus_per_node=8)]
    slow, quick = demand("slow", 2.0, (100.0, 900.0)), demand("quick", 2.0, (100.0, 10.0))
    plan = place(types, [slow, quick], "minmax")
    assert plan.value == plan.parts[0].latency_ms > plan.parts[1].latency_ms
    assert sum(plan.gpus.values()) == 8


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ((Group("big", 1, 9),), "C1"),
        ((Group("tiny", 1, 1),), "C2"),
        ((Group("big", 8, 1),), "C3"),
        ((Group("big", 1, 1), Group("big", 2, 1)), "C3"),
        ((), "served by nothing"),
    ],
)
def test_check_names_the_constraint_that_is_broken(broken: tuple[Group, ...], problem: str) -> None:
    from dataclasses import replace

    types = [gpu("big", 8, gpus_per_node=4), gpu("tiny", 8, gib=0.5)]
    plan = place(types, [demand()])
    bad = replace(plan, parts=(replace(plan.parts[0], groups=broken),))
    with pytest.raises(PlanError, match=problem):
        check_plan(bad)


def test_thinned_degrees_keep_the_ends_and_small_ones() -> None:
    assert degrees(5) == degrees(5, 8) == [1, 2, 3, 4, 5]
    thin = degrees(1000, 32)
    assert thin[:16] == list(range(1, 17)) and thin[-1] == 1000 and len(thin) <= 33
    assert thin == sorted(set(thin))


@pytest.mark.parametrize(
    "call",
    [
        lambda: place([gpu()], []),
        lambda: place([gpu(), gpu()], [demand()]),
        lambda: place([gpu()], [demand(), demand()]),
        lambda: place([gpu()], [demand()], "fastest"),  # type: ignore[arg-type]
        lambda: gpu(speed=math.nan),
        lambda: gpu(count=-1),
        lambda: demand(slo_ms=0.0),
        lambda: demand(bytes_per_parameter=0.0),
    ],
)
def test_absurd_input_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(FleetError):
        call()
