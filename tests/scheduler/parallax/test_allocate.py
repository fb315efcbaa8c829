"""Every allocation is valid, deterministic, and exists whenever the fleet can hold the model."""

from __future__ import annotations

import builtins
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape
from scheduler.fleet.validate import validate_pipeline, validate_pipelines
from scheduler.parallax.allocate import AllocateOptions, allocate, pipeline_ms
from scheduler.parallax.column_generation import PatternLimits
from tests.scheduler.worlds import fleet_of, fleets, holding, links_of, models, shard, toy_model

options = st.builds(
    AllocateOptions,
    alpha=st.sampled_from([0.5, 1.0, 2.0]),
    scope=st.sampled_from(["auto", "region", "global"]),
    method=st.sampled_from(["auto", "dp", "patterns", "greedy"]),
    balance=st.sampled_from(["rate", "tflops"]),
)


@settings(max_examples=200, deadline=None)
@given(fleets(8, regions=3), models(), options, st.randoms(use_true_random=False))
def test_every_allocation_validates_and_ignores_input_order(
    fleet: Fleet, model: ModelShape, how: AllocateOptions, shuffle: random.Random
) -> None:
    plan = allocate(fleet, model, how)
    validate_pipelines(plan.pipelines, fleet, model)
    named = [s.machine_id for s in plan.shards] + list(plan.standby) + [i for i, _ in plan.ignored]
    assert sorted(named) == [machine.id for machine in fleet.machines]
    for pipeline in plan.pipelines:
        assert pipeline[0].layers.start == 0 and pipeline[-1].layers.end == model.layers
        for a, b in pairwise(pipeline):
            assert a.layers.end == b.layers.start
    assert 0 <= plan.gap < 1
    assert plan.explanation

    shuffled = list(fleet.machines)
    shuffle.shuffle(shuffled)
    assert allocate(Fleet(tuple(shuffled), fleet.links), model, how) == plan


def chain_exists(machines: Sequence[Machine], links: Links, model: ModelShape) -> bool:
    """By trying every ordered choice of machines."""
    for n in range(1, len(machines) + 1):
        for order in permutations(machines, n):
            caps = [capacities(machine, model) for machine in order]
            if n == 1:
                held = caps[0].both
            else:
                if caps[0].first < 1 or caps[-1].last < 1 or min(c.plain for c in caps) < 1:
                    continue
                held = caps[0].first + caps[-1].last + sum(c.plain for c in caps[1:-1])
            connected = all(links.between(a, b) for a, b in pairwise(order))
            if held >= model.layers and n <= model.layers and connected:
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(fleets(5, regions=3), models(8), options)
def test_a_pipeline_is_planned_exactly_when_some_chain_of_machines_exists(
    fleet: Fleet, model: ModelShape, how: AllocateOptions
) -> None:
    assert bool(allocate(fleet, model, how).pipelines) == chain_exists(
        fleet.machines, fleet.links, model
    )


@settings(max_examples=60, deadline=None)
@given(fleets(6), models(), st.integers(1, 500))
def test_more_memory_never_loses_the_last_pipeline(
    fleet: Fleet, model: ModelShape, more_bytes: int
) -> None:
    if not allocate(fleet, model).pipelines:
        return
    grown = fleet.subset(
        replace(machine, memory_bytes=machine.memory_bytes + more_bytes)
        for machine in fleet.machines
    )
    assert allocate(grown, model).pipelines


def test_four_machines_in_four_regions_still_make_a_pipeline() -> None:
    machines = tuple(holding(f"m{i}", 3, region=f"r{i}") for i in range(4))
    plan = allocate(Fleet(machines, Links(default_ms=80.0)), toy_model(10))
    assert len(plan.pipelines) == 1
    assert plan.scopes[0].scope == "all regions"


def test_pipelines_stay_inside_regions_where_each_holds_the_model() -> None:
    machines = tuple(holding(f"m{i}", 5, region=f"r{i % 2}") for i in range(8))
    links = Links(regions={("r0", "r0"): Link(2), ("r1", "r1"): Link(2), ("r0", "r1"): Link(90)})
    fleet = Fleet(machines, links)
    plan = allocate(fleet, toy_model(10))
    assert len(plan.pipelines) == 4
    for pipeline in plan.pipelines:
        assert len({fleet.by_id[s.machine_id].region for s in pipeline}) == 1


def test_leftovers_of_regions_are_pooled() -> None:
    machines = tuple(
        holding(f"{region}{i}", 6, region=region) for region in ("a", "b") for i in range(3)
    )
    plan = allocate(
        Fleet(machines, Links(default_ms=5.0)), toy_model(12), AllocateOptions(scope="region")
    )
    assert len(plan.pipelines) == 3
    assert plan.scopes[-1].scope == "leftovers of all regions"


def test_w3_ends_are_counted_the_same_by_plan_and_split() -> None:
    """80 layers on machines whose plain capacities just reach 80, but not with embedding
    and head.
    """
    model = toy_model(80, embedding_bytes=100)
    short = allocate(fleet_of(40, 40), model)
    assert short.pipelines == ()
    assert "short by 2 layers" in short.explanation[0]
    assert len(allocate(fleet_of(41, 41), model).pipelines) == 1


def test_w8_machine_too_small_is_ignored_and_said_so() -> None:
    fleet = fleet_of(0, 4)
    plan = allocate(fleet, toy_model(4))
    assert plan.ignored[0][0] == "m00" and "100" in plan.ignored[0][1]
    assert any("m00 is ignored" in line for line in plan.explanation)
    assert len(plan.pipelines) == 1


def test_w8_empty_fleet_gives_no_pipeline_and_no_exception() -> None:
    assert allocate(Fleet(()), toy_model(4)).pipelines == ()
    assert "no machine" in allocate(fleet_of(0), toy_model(4)).explanation[0]


def test_w13_head_is_reserved_on_a_single_stage() -> None:
    model = toy_model(64, embedding_bytes=100)
    assert allocate(fleet_of(64), model).pipelines == ()
    assert len(allocate(fleet_of(66), model).pipelines) == 1


def test_machines_that_cannot_reach_each_other_make_no_pipeline() -> None:
    fleet = Fleet((holding("a", 5), holding("b", 5)), Links())
    plan = allocate(fleet, toy_model(10))
    assert plan.pipelines == ()
    assert any("connected" in line or "reach" in line for line in plan.explanation)


def test_pipeline_is_found_along_the_only_connected_path() -> None:
    machines = tuple(holding(m, 4) for m in "abcd")
    links = links_of({("a", "c"): 5.0, ("c", "b"): 5.0})
    plan = allocate(Fleet(machines, links), toy_model(12))
    assert len(plan.pipelines) == 1
    assert [s.machine_id for s in plan.pipelines[0]] in (["a", "c", "b"], ["b", "c", "a"])


def test_faster_machine_takes_more_layers() -> None:
    machines = (holding("slow", 8, tflops=1.0), holding("fast", 8, tflops=3.0))
    plan = allocate(Fleet(machines), toy_model(12))
    layers = {s.machine_id: len(s.layers) for s in plan.shards}
    assert layers == {"fast": 8, "slow": 4}


def test_plan_without_highs_is_proven_or_states_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
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
    few_kinds = allocate(fleet_of(*[13, 6, 3] * 5), toy_model(22))
    assert few_kinds.method == "patterns" and few_kinds.gap == 0
    all_differ = allocate(
        fleet_of(*range(5, 45)), toy_model(64), AllocateOptions(limits=PatternLimits(patterns=200))
    )
    assert all_differ.method == "column generation"
    assert all_differ.pipelines and all_differ.gap >= 0


def test_dp_over_its_state_limit_falls_back_to_patterns() -> None:
    fleet = fleet_of(13, 11, 9, 8, 6, 5, 4, 3)
    plan = allocate(fleet, toy_model(22), AllocateOptions(method="dp", dp_states=10))
    assert plan.method == "patterns"
    assert plan.gap == 0


def test_pipeline_time_is_stages_plus_hops() -> None:
    fleet, model = fleet_of(4, 4, rho_ms=7.0), toy_model(8)
    assert pipeline_ms((shard("m00", 0, 4), shard("m01", 4, 8)), fleet, model) == pytest.approx(15)


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ((), "empty"),
        ((("m00", 0, 4), ("m01", 5, 8)), "gap"),
        ((("m00", 0, 4),), "gap"),
        ((("m00", 1, 4), ("m01", 4, 8)), "gap"),
        ((("m00", 0, 4), ("m01", 3, 8)), "overlap"),
        ((("m00", 0, 5), ("m01", 5, 8)), "over-capacity"),
        ((("m00", 0, 4), ("m01", 4, 9)), "over-capacity"),
        ((("m00", 0, 4), ("m02", 4, 8)), "unknown-machine"),
    ],
)
def test_bad_pipeline_is_named_by_its_problem(
    stages: tuple[tuple[str, int, int], ...], problem: str
) -> None:
    fleet, model = fleet_of(5, 5), toy_model(8, embedding_bytes=100)
    with pytest.raises(PlanError) as refused:
        validate_pipeline(tuple(shard(*stage) for stage in stages), fleet, model)
    assert refused.value.problem == problem


def test_unreachable_hop_and_reused_machine_are_refused() -> None:
    model = toy_model(8)
    apart = Fleet((holding("a", 8), holding("b", 8)), Links())
    with pytest.raises(PlanError) as refused:
        validate_pipeline((shard("a", 0, 4), shard("b", 4, 8)), apart, model)
    assert refused.value.problem == "unreachable"
    alone = (shard("a", 0, 8),)
    with pytest.raises(PlanError) as refused:
        validate_pipelines((alone, alone), apart, model)
    assert refused.value.problem == "machine-twice"
    validate_pipelines((alone,), apart, model)


def test_shards_of_a_plan_are_listed_in_order_of_machine() -> None:
    plan = allocate(fleet_of(3, 3, 3), toy_model(9))
    assert [s.machine_id for s in plan.shards] == ["m00", "m01", "m02"]
    assert sum(len(s.layers) for s in plan.shards) == 9
    assert {s.layers.start for s in plan.shards} == {0, 3, 6}
    assert LayerRange(0, 3) in [s.layers for s in plan.shards]
