"""One parametric run gives the relaxation of every k, and the group search the whole plans beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from benchmarks.scheduler.worlds import mixed, recipe_fleet
from scheduler.files import read_fleet
from scheduler.kinds import Pool, pool_of
from scheduler.parallax_allocate import Objective
from scheduler.parametric import bounds, edges, whole_plan
from scheduler.patterns import PatternLimits, allocate_by_patterns, enumerate_patterns
from tests.scheduler.worlds import fleet_of, toy_model


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    sizes = draw(st.lists(st.integers(2, 9), min_size=1, max_size=4, unique=True))
    counts = [draw(st.integers(1, 12)) for _ in sizes]
    machines = fleet_of(*[c for c, n in zip(sizes, counts, strict=True) for _ in range(n)]).machines
    return pool_of(machines, toy_model(draw(st.integers(5, 20)), draw(st.sampled_from([0, 100]))))


def matrix_of(pool: Pool, patterns: list[tuple[int, ...]]) -> np.ndarray:
    return np.array([[p.count(t) for p in patterns] for t in range(len(pool.kinds))], dtype=float)


@settings(max_examples=80, deadline=None)
@given(pools())
def test_the_curve_is_the_relaxation_at_every_k(pool: Pool) -> None:
    patterns = enumerate_patterns(pool, 500)
    assert patterns is not None
    if not patterns:
        return
    curve = edges(pool.counts, patterns)
    assert curve is not None
    uses, sizes = matrix_of(pool, patterns), np.array([len(p) for p in patterns], dtype=float)
    most = linprog(-np.ones(len(patterns)), uses, pool.counts)
    assert curve[-1].k_to == pytest.approx(-most.fun)
    stages = bounds(curve, int(curve[-1].k_to + 1e-6))
    for k, bound in enumerate(stages, start=1):
        truth = linprog(sizes, uses, pool.counts, np.ones((1, len(patterns))), [k])
        assert bound == pytest.approx(truth.fun)


@settings(max_examples=80, deadline=None)
@given(pools(), st.data())
def test_a_whole_plan_is_found_or_refuted_as_branch_and_bound_says(
    pool: Pool, data: st.DataObject
) -> None:
    patterns = enumerate_patterns(pool, 500)
    curve = edges(pool.counts, patterns) if patterns else None
    if not patterns or not curve or curve[-1].k_to < 1:
        return
    k = data.draw(st.integers(1, int(curve[-1].k_to + 1e-6)))
    uses, sizes = matrix_of(pool, patterns), np.array([len(p) for p in patterns], dtype=float)
    truth = milp(
        sizes,
        integrality=np.ones(len(patterns)),
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(uses, ub=pool.counts),
            LinearConstraint(np.ones((1, len(patterns))), k, k),
        ],
    )
    fewest = round(truth.fun) if truth.status == 0 else 10**6
    stages = int(np.ceil(bounds(curve, k)[-1] - 1e-6)) + data.draw(st.integers(0, 2))
    times, sure = whole_plan(curve, k, stages, len(patterns))
    if times is not None:
        assert sum(times) == k and sizes @ times <= stages
        assert (uses @ times <= np.array(pool.counts)).all()
        assert fewest <= stages
    elif sure:
        assert fewest > stages


@pytest.mark.parametrize(
    ("nodes", "name", "k", "score"),
    [(256, "32b", 84, 28.683), (1024, "70b", 144, 23.753)],
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
