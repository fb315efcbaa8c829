"""dp₁, the configuration formulation and brute force agree on s*(k) and Z(k)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.fleet.kinds import (
    NO_WAY,
    Pool,
    covers,
    fewest_stages_at_least,
    minimal,
    most_layers,
    pool_of,
)
from scheduler.parallax.column_generation import (
    PatternLimits,
    allocate_by_patterns,
    enumerate_patterns,
)
from scheduler.parallax.greedy_cover import allocate_greedily, greedy_patterns
from scheduler.parallax.parallax_allocate import Dp1, Objective, TooManyStates, allocate_by_dp
from tests.scheduler.worlds import (
    fewest_stages_by_force,
    fleet_of,
    fleets,
    holding,
    holds_pipeline,
    models,
    toy_model,
)

STATES = 10**6
objectives = st.builds(
    Objective,
    alpha=st.sampled_from([0.5, 1.0, 2.0]),
    t_comp_ms=st.sampled_from([0.0, 1.0, 50.0]),
    r_rtt_ms=st.sampled_from([0.5, 1.0, 20.0]),
)


def pool_from(fleet: Fleet, model: ModelShape) -> Pool:
    return pool_of(fleet.machines, model)


def expanded(pool: Pool) -> list:
    return [kind for kind, n in zip(pool.kinds, pool.counts, strict=True) for _ in range(n)]


@settings(max_examples=150, deadline=None)
@given(fleets(7), models(), objectives)
def test_dp_and_patterns_and_columns_find_the_optimum_that_force_finds(
    fleet: Fleet, model: ModelShape, objective: Objective
) -> None:
    pool = pool_from(fleet, model)
    truth = {
        k: fewest_stages_by_force(expanded(pool), model.layers, k) for k in range(1, pool.k_max + 1)
    }
    best = max((objective.z(k, s) for k, s in truth.items() if s is not None), default=0.0)

    dp = Dp1(pool, STATES)
    assert {k: dp.fewest_stages(k) for k in truth} == truth
    by_dp = allocate_by_dp(pool, objective, STATES)
    by_patterns = allocate_by_patterns(pool, objective, PatternLimits())
    by_columns = allocate_by_patterns(pool, objective, PatternLimits(patterns=0))
    by_greed = allocate_greedily(pool, objective)

    assert by_dp.z == by_patterns.z == pytest.approx(best, rel=1e-12)
    assert by_dp.gap == 0 and by_patterns.gap <= 1e-12
    for cover in (by_dp, by_patterns, by_columns, by_greed):
        assert cover.z <= best * (1 + 1e-12)
        assert cover.z_at_most >= best * (1 - 1e-12)
        assert (cover.z > 0) == (best > 0)
        used = [t for pattern in cover.patterns for t in pattern]
        assert all(used.count(t) <= n for t, n in enumerate(pool.counts))
        for pattern in cover.patterns:
            assert holds_pipeline([pool.kinds[t] for t in pattern], model.layers)
        if cover.patterns:
            assert objective.z(len(cover.patterns), len(used)) == pytest.approx(cover.z)
        for scored in cover.scores:
            fewest = truth[scored.k]
            assert scored.stages_at_least <= (NO_WAY if fewest is None else fewest)
            if scored.stages is not None:
                assert fewest is not None and scored.stages >= fewest


@settings(max_examples=100, deadline=None)
@given(fleets(7), models())
def test_most_layers_and_minimal_agree_with_trying_every_choice_of_ends(
    fleet: Fleet, model: ModelShape
) -> None:
    pool = pool_from(fleet, model)
    stages = expanded(pool)
    assert covers(stages, model.layers) == (bool(stages) and holds_pipeline(stages, model.layers))
    everything = tuple(t for t, n in enumerate(pool.counts) for _ in range(n))
    if covers(stages, model.layers):
        kept = minimal(everything, pool)
        assert holds_pipeline([pool.kinds[t] for t in kept], model.layers)
        for gone in range(len(kept)):
            rest = [pool.kinds[t] for i, t in enumerate(kept) if i != gone]
            assert not rest or not holds_pipeline(rest, model.layers)


def test_every_minimal_pattern_is_listed_once() -> None:
    pool = pool_from(fleet_of(6, 4, 4, 3), toy_model(7))
    named = [tuple(pool.kinds[t].plain for t in p) for p in enumerate_patterns(pool, 99) or []]
    assert sorted(named) == [(4, 3), (4, 4), (6, 3), (6, 4)]
    assert enumerate_patterns(pool, 3) is None


def test_bound_without_solver_counts_the_largest_machines() -> None:
    pool = pool_from(fleet_of(10, 5, 5, 2), toy_model(10))
    assert fewest_stages_at_least(pool, 1) == 1
    assert fewest_stages_at_least(pool, 2) == 3
    assert fewest_stages_at_least(pool, 3) == NO_WAY


def test_six_equal_machines_make_two_pipelines_of_three() -> None:
    pool = pool_from(fleet_of(*[12] * 6), toy_model(36))
    for cover in (
        allocate_by_dp(pool, Objective(1, 0, 1), STATES),
        allocate_greedily(pool, Objective(1, 0, 1)),
        allocate_by_patterns(pool, Objective(1, 0, 1), PatternLimits()),
    ):
        assert [len(p) for p in cover.patterns] == [3, 3]


def test_dp_makes_two_triples_where_greed_by_twos_makes_one_pair() -> None:
    """22 layers on 13, 13, 6, 6, 3, 3: replication is worth two more stages each when α is large
    enough.
    """
    pool = pool_from(fleet_of(13, 13, 6, 6, 3, 3), toy_model(22))
    triples = allocate_by_dp(pool, Objective(2.0, 0.0, 1.0), STATES)
    assert [[pool.kinds[t].plain for t in p] for p in triples.patterns] == [[13, 6, 3]] * 2
    pair = allocate_by_dp(pool, Objective(0.5, 0.0, 1.0), STATES)
    assert [[pool.kinds[t].plain for t in p] for p in pair.patterns] == [[13, 13]]


def test_w1_forty_weak_machines_are_planned_with_the_proven_optimum() -> None:
    capacities = [32] * 4 + [13] * 6 + [9] * 18 + [6] * 12
    pool = pool_from(fleet_of(*capacities), toy_model(80, embedding_bytes=120))
    cover = allocate_by_patterns(pool, Objective(1, 0, 1), PatternLimits())
    assert cover.gap <= 1e-12
    with pytest.raises(TooManyStates):
        allocate_by_dp(pool, Objective(1, 0, 1), 2000)


def test_w13_single_machine_must_hold_both_ends() -> None:
    pool = pool_from(fleet_of(64), toy_model(64, embedding_bytes=100))
    assert most_layers(pool.kinds) == 62
    for cover in (
        allocate_by_dp(pool, Objective(1, 0, 1), STATES),
        allocate_by_patterns(pool, Objective(1, 0, 1), PatternLimits()),
        allocate_greedily(pool, Objective(1, 0, 1)),
    ):
        assert cover.patterns == () and cover.z == 0


def test_machines_that_hold_nothing_are_in_no_kind() -> None:
    pool = pool_of([holding("a", 0), holding("b", 2)], toy_model(2))
    assert pool.counts == (1,)
    assert greedy_patterns(pool) == ((0,),)


@pytest.mark.parametrize(
    "constants", [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0), (1.0, -1.0, 2.0), (1.0, float("nan"), 1.0)]
)
def test_undefined_objective_is_refused(constants: tuple[float, float, float]) -> None:
    with pytest.raises(FleetError):
        Objective(*constants)


def test_w1_all_different_machines_are_solved_by_column_generation_with_a_bound() -> None:
    pool = pool_from(fleet_of(*range(5, 45)), toy_model(64, embedding_bytes=130))
    objective = Objective(1, 0, 1)
    cover = allocate_by_patterns(pool, objective, PatternLimits(patterns=200))
    assert cover.method == "column generation"
    assert cover.gap <= 0.02
    assert cover.z >= allocate_greedily(pool, objective).z
    assert cover == allocate_by_patterns(pool, objective, PatternLimits(patterns=200))
