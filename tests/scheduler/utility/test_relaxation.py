"""The simplex equals a solver, scores equal brute force, and no whole plan passes the bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from scheduler.costs import Capacities
from scheduler.utility.kinds import Kind, steps_of
from scheduler.utility.score import fastest_ms, rate
from scheduler.utility.simplex import maximise
from scheduler.utility.split import choices
from scheduler.utility.whole import Search, branch, dive, round_mix


@st.composite
def programs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    counts = np.array(
        [[draw(st.integers(0, 3)) for _ in range(columns)] for _ in range(rows)], dtype=np.int64
    )
    counts[0, counts.sum(axis=0) == 0] = 1
    worth = np.array([draw(st.integers(1, 20)) for _ in range(columns)], dtype=np.float64)
    supply = np.array([draw(st.integers(0, 7)) for _ in range(rows)], dtype=np.int64)
    return counts, worth, supply


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_mix_is_optimal_and_its_prices_prove_it(
    program: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    counts, worth, supply = program
    mix = maximise(counts.astype(float), worth, supply.astype(float))
    truth = linprog(-worth, counts, supply)
    assert mix.value == pytest.approx(-truth.fun, abs=1e-6)
    assert mix.prices @ supply == pytest.approx(mix.value, abs=1e-6)
    assert (worth - mix.prices @ counts <= 1e-6).all() and (mix.prices >= 0).all()


@settings(max_examples=150, deadline=None)
@given(programs())
def test_whole_plans_fit_and_an_exhaustive_search_is_optimal(
    program: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    counts, worth, supply = program
    mix = maximise(counts.astype(float), worth, supply.astype(float))
    truth = milp(
        -worth,
        integrality=np.ones(len(worth)),
        bounds=Bounds(0, np.inf),
        constraints=LinearConstraint(counts, ub=supply),
    )
    for plan in (
        round_mix(counts, worth, supply, mix, Search()),
        dive(counts, worth, supply, mix, Search()),
        round_mix(counts, worth, supply, mix, Search(width=2, lean=0.3)),
    ):
        assert (counts @ plan.times <= supply).all() and (plan.times >= 0).all()
        assert plan.value == pytest.approx(float(worth @ plan.times))
        assert plan.value <= mix.value + 1e-6
        if plan.exhaustive:
            assert plan.value == pytest.approx(-truth.fun)
    found = branch(counts, worth, supply, nodes=1000, gap=0.0)
    assert found is not None
    assert worth @ found[0] == pytest.approx(-truth.fun)
    assert found[1] >= -truth.fun - 1e-6


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    plain = draw(st.integers(1, 6))
    first, last = (draw(st.integers(max(0, plain - 2), plain)) for _ in range(2))
    both = draw(st.integers(max(0, first + last - plain), min(first, last)))
    if draw(st.booleans()):
        speed = draw(st.integers(1, 9))
        rates = [60.0 * speed / k for k in range(1, plain + 1)]
    else:  # a measured table
        rates = sorted((float(draw(st.integers(1, 99))) for _ in range(plain)), reverse=True)
    tau, head = draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.sampled_from([0.0, 2.0]))
    return Kind(Capacities(plain, first, last, both), tuple(rates), tau, head)


@settings(max_examples=200, deadline=None)
@given(st.lists(kinds(), min_size=1, max_size=3), st.integers(1, 9), st.data())
def test_theta_and_compute_time_equal_every_split_and_choice_of_ends(
    listed: list[Kind], layers: int, data: st.DataObject
) -> None:
    listed.sort(key=lambda kind: (kind.tau_ms, kind.head_ms))
    counts = [data.draw(st.integers(0, 2)) for _ in listed]
    if not 1 <= sum(counts) <= 4:
        return
    steps = steps_of(listed, layers)
    column = np.array([counts], dtype=np.int64).T
    step = rate(column, steps)
    stages = [kind for kind, n in zip(listed, counts, strict=True) for _ in range(n)]
    best: tuple[float, float] | None = None
    n = len(stages)
    for i, j in product(range(n), repeat=2):
        if (i == j) != (n == 1):
            continue
        most = [kind.capacities.plain for kind in stages]
        most[i], most[j] = stages[i].capacities.first, stages[j].capacities.last
        if n == 1:
            most = [stages[0].capacities.both]
        for split in product(*(range(1, m + 1) for m in most)):
            if sum(split) == layers:
                theta = min(kind.rates[x - 1] for kind, x in zip(stages, split, strict=True))
                time_ms = sum(kind.tau_ms * x for kind, x in zip(stages, split, strict=True))
                best = max(best or (0.0, 0.0), (theta, -time_ms - stages[j].head_ms))
    ends = choices(tuple(stages), layers)
    if best is None:
        assert step[0] == -1 and not ends
        return
    assert steps.rates[step[0]] == best[0]
    assert fastest_ms(column, step, steps)[0] == pytest.approx(-best[1])
    theta, minus_ms = max((one.theta, -one.compute_ms) for one in ends.values())
    assert (theta, -minus_ms) == (best[0], pytest.approx(-best[1]))
