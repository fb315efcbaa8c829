"""Lines at a few prices give the relaxation of any k, and whole plans are found or refuted beside
it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from benchmarks.scheduler.worlds import mixed, recipe_fleet
from scheduler.fleet.files import read_fleet
from scheduler.fleet.kinds import NO_WAY, Pool, pool_of
from scheduler.parallax.column_generation import (
    Columns,
    PatternLimits,
    StageCurve,
    allocate_by_patterns,
    enumerate_patterns,
    solve_for_k,
)
from scheduler.parallax.parallax_allocate import Objective
from tests.scheduler.worlds import fleet_of, toy_model


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    sizes = draw(st.lists(st.integers(2, 9), min_size=1, max_size=4, unique=True))
    counts = [draw(st.integers(1, 12)) for _ in sizes]
    machines = fleet_of(*[c for c, n in zip(sizes, counts, strict=True) for _ in range(n)]).machines
    return pool_of(machines, toy_model(draw(st.integers(5, 20)), draw(st.sampled_from([0, 100]))))


def columns_of(pool: Pool, limit: int) -> Columns:
    """Every pattern of the pool, or those that pricing finds where `limit` is 0."""
    every = enumerate_patterns(pool, limit)
    return Columns(every or [], len(pool.kinds), complete=every is not None)


@pytest.mark.parametrize("limit", [500, 0])
def test_a_further_part_of_a_pipeline_counts_however_many_stages_it_costs(limit: int) -> None:
    """A quarter more costs two stages, eight for a whole one: more than there are machines."""
    pool = pool_of(fleet_of(3, 3, 3, 3, 2, 2).machines, toy_model(12, 0))
    curve = StageCurve(pool, columns_of(pool, limit), PatternLimits())
    assert curve.corners[-1] == (pytest.approx(1.25), pytest.approx(6))


@settings(max_examples=80, deadline=None)
@given(pools(), st.sampled_from([500, 0]))
def test_the_curve_is_the_relaxation_at_every_k(pool: Pool, limit: int) -> None:
    every = columns_of(pool, 500)
    if not every.patterns:
        return
    curve = StageCurve(pool, columns_of(pool, limit), PatternLimits())
    most = linprog(-np.ones(len(every.patterns)), every.uses, pool.counts)
    assert curve.corners[-1][0] == pytest.approx(-most.fun)
    for k in range(1, curve.k_top + 1):
        while curve.refine(k):
            pass
        truth = linprog(every.sizes, every.uses, pool.counts, np.ones((1, len(every.sizes))), [k])
        assert curve.stages_at_least()[k - 1] >= np.ceil(truth.fun - 1e-6)
        assert max(a * k + b for a, b in curve.lines) == pytest.approx(truth.fun)


@settings(max_examples=80, deadline=None)
@given(pools(), st.data(), st.sampled_from([500, 0]), st.integers(1, 100))
def test_a_whole_plan_is_found_or_refuted_as_branch_and_bound_says(
    pool: Pool, data: st.DataObject, limit: int, width: int
) -> None:
    every, columns = columns_of(pool, 500), columns_of(pool, limit)
    limits = PatternLimits(width=width)
    if not every.patterns or StageCurve(pool, columns, limits).k_top < 1:
        return
    k = data.draw(st.integers(1, pool.k_max))
    truth = milp(
        every.sizes,
        integrality=np.ones(len(every.sizes)),
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(every.uses, ub=pool.counts),
            LinearConstraint(np.ones((1, len(every.sizes))), k, k),
        ],
    )
    plan, at_least = solve_for_k(pool, columns, k, k, limits)
    if plan is not None:
        assert len(plan) == k and at_least <= sum(map(len, plan))
        used = [sum(p.count(t) for p in plan) for t in range(len(pool.kinds))]
        assert all(n <= most for n, most in zip(used, pool.counts, strict=True))
    if truth.status == 0:
        assert at_least <= round(truth.fun)
        assert not columns.complete or (plan is not None and at_least == sum(map(len, plan)))
    elif columns.complete:
        assert plan is None and at_least == NO_WAY


@pytest.mark.parametrize(
    ("nodes", "name", "k", "score"), [(256, "32b", 84, 28.683), (1024, "70b", 144, 23.753)]
)
def test_the_known_optima_of_the_mixed_fleets_are_proven(
    nodes: int, name: str, k: int, score: float
) -> None:
    fleet, model = mixed(nodes, name)
    cover = allocate_by_patterns(
        pool_of(fleet.machines, model), Objective(1, 0, 1), PatternLimits()
    )
    assert cover.gap == 0
    assert len(cover.patterns) == k
    assert cover.z == pytest.approx(score, abs=5e-4)


def test_ten_thousand_machines_are_proven() -> None:
    fleet, model = read_fleet(recipe_fleet(10_000), "70b")
    pool = pool_of(fleet.machines, model)
    cover = allocate_by_patterns(pool, Objective(1, 0, 1), PatternLimits())
    assert cover.gap == 0
    assert len(cover.patterns) > 1000
