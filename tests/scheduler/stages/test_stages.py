"""Given the order of the stages, the greedy layer counts are the best there are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.fleet import Coordinator, Fleet, Links, ModelShape
from scheduler.flow.max_flow import max_flow
from scheduler.stages.chains import chains_of, placement_of
from scheduler.stages.stages import StagePool
from scheduler.stages.table import table_of
from tests.scheduler.search.worlds import clusters, machine, toy_model


@st.composite
def chains(draw: st.DrawFn) -> tuple[StagePool, list[list[int]]]:
    fleet, model = draw(clusters(most_machines=5, most_layers=7))
    pool = StagePool(table_of(fleet, model))
    n = len(fleet.machines)
    marks = draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))
    groups = [[m for m in range(n) if marks[m] == g] for g in range(n)]
    return pool, [group for group in groups if group]


@given(chains())
@settings(max_examples=150, deadline=None)
def test_greedy_layer_counts_equal_brute_force(world: tuple[StagePool, list[list[int]]]) -> None:
    pool, shape = world
    chain = [pool.stage(stage) for stage in shape]
    total = pool.table.model.layers
    best = max(
        (
            min(-stage.plain[k - 1] for stage, k in zip(chain, counts, strict=True))
            for counts in product(*(range(1, len(stage.plain) + 1) for stage in chain))
            if sum(counts) == total
        ),
        default=-1.0,
    )
    assert pool.flow(chain, 0.0) == pytest.approx(min(best, pool.cap))
    if best > 0:
        assert sum(pool.layer_counts(chain)) == total


@given(chains(), st.floats(0.1, 60))
@settings(max_examples=100, deadline=None)
def test_lacking_nothing_means_passing_the_target(
    world: tuple[StagePool, list[list[int]]], target: float
) -> None:
    pool, shape = world
    chain = [pool.stage(stage) for stage in shape]
    if len(chain) > pool.table.model.layers or target > pool.cap:
        return
    enough = pool.flow(chain, 0.0) >= target
    assert (pool.lacks(chain, target, 1e9) <= 0) == enough
    assert (pool.flow(chain, target) >= target) == enough


@given(clusters(most_machines=5, most_layers=7, slow_links=True))
@settings(max_examples=60, deadline=None)
def test_flow_of_a_chain_over_slow_links_is_its_max_flow(world: tuple[Fleet, ModelShape]) -> None:
    fleet, model = world
    pool = StagePool(table_of(fleet, model))
    stages = [(m,) for m in range(0, len(fleet.machines), 2)]
    stages[0] = tuple(range(0, len(fleet.machines), 3))  # a stage of several
    stages = [s for i, s in enumerate(stages) if i == 0 or s[0] not in stages[0]]
    chain = [pool.stage(stage) for stage in stages]
    flow = pool.flow(chain, 0.0)
    if flow > 0:
        placement = placement_of(pool, [stages])
        again = max_flow(fleet, model, placement).tokens_per_s
        assert again == pytest.approx(flow, rel=1e-4)
        back, _ = chains_of(pool, placement)
        assert back == [chain]


def test_a_machine_that_is_faster_with_more_layers_holds_more() -> None:
    fleet = Fleet(
        (machine("a", (9.0, 9.0)), machine("b", (5.0, 4.0, 8.0))),
        Links(default_ms=1.0),
        Coordinator(),
    )
    model = toy_model(4)
    pool = StagePool(table_of(fleet, model))
    placement = placement_of(pool, [[(0,), (1,)]])
    assert [len(shard.layers) for shard in placement] == [2, 3]
    assert max_flow(fleet, model, placement, partial=True).tokens_per_s == pytest.approx(8.0)


def test_ends_hold_fewer_layers_where_tables_are_large() -> None:
    model = toy_model(6, embedding_bytes=100)
    from tests.scheduler.worlds import fleet_of

    pool = StagePool(table_of(fleet_of(3, 3, 3), model))
    assert pool.ends_matter
    chain = [pool.stage((m,)) for m in range(3)]
    counts = pool.layer_counts(chain)
    assert counts[0] <= 2 and counts[2] <= 2 and sum(counts) == 6
    assert pool.flow([pool.stage((m,)) for m in range(2)], 0.0) < 0
