"""The simplex equals a solver, scores equal brute force, and no whole plan passes the bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from scheduler.covering.corner import corner, diagonal
from scheduler.covering.simplex import maximise
from scheduler.covering.whole import Search, best_whole, dive
from scheduler.fleet.costs import Capacities
from scheduler.utility.columns import every_pattern
from scheduler.utility.kinds import MachineKind, steps_of
from scheduler.utility.score import fastest_ms, rate
from scheduler.utility.split import choices


@st.composite
def programs(
    draw: st.DrawFn, most_columns: int = 8, most_machines: int = 7
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, most_columns))
    counts = np.array(
        [[draw(st.integers(0, 3)) for _ in range(columns)] for _ in range(rows)], dtype=np.int64
    )
    counts[0, counts.sum(axis=0) == 0] = 1
    worth = np.array([draw(st.integers(1, 20)) for _ in range(columns)], dtype=np.float64)
    supply = np.array([draw(st.integers(0, most_machines)) for _ in range(rows)], dtype=np.int64)
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


def fitting(
    program: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Without the columns that the supply does not even have room for once."""
    counts, worth, supply = program
    fits = (counts <= supply[:, None]).all(axis=0)
    return counts[:, fits], worth[fits], supply


def optimum(counts: np.ndarray, worth: np.ndarray, supply: np.ndarray) -> float:
    """By HiGHS."""
    if not worth.size:
        return 0.0
    truth = milp(
        -worth,
        integrality=np.ones(len(worth)),
        bounds=Bounds(0, np.inf),
        constraints=LinearConstraint(counts, ub=supply),
    )
    return float(-truth.fun)


@settings(max_examples=300, deadline=None)
@given(
    programs(most_columns=12, most_machines=12),
    st.sampled_from([1, 3, 20, 100_000]),
    st.sampled_from([1, 2, 6, 2048]),
)
def test_whole_plans_fit_and_no_plan_passes_their_bound(
    program: tuple[np.ndarray, np.ndarray, np.ndarray], width: int, classes: int
) -> None:
    counts, worth, supply = fitting(program)
    mix = maximise(counts.astype(float), worth, supply.astype(float))
    bound = float(mix.prices @ supply)
    plan = best_whole(
        counts, worth, supply, mix, bound, (Search(width, 0.0),), classes, 0.005 * bound
    )
    truth = optimum(counts, worth, supply)
    assert (counts @ plan.times <= supply).all() and (plan.times >= 0).all()
    assert plan.value == pytest.approx(float(worth @ plan.times))
    assert plan.value <= truth + 1e-6 <= plan.bound + 2e-6
    if width == 100_000:
        assert plan.value == pytest.approx(plan.bound, rel=1e-12)  # sums in another order
        assert plan.value == pytest.approx(truth)


@settings(max_examples=100, deadline=None)
@given(programs(), st.lists(st.floats(0.0, 9.0), min_size=4, max_size=4), st.booleans())
def test_no_plan_passes_the_bound_under_any_prices(
    program: tuple[np.ndarray, np.ndarray, np.ndarray], extra: list[float], cut: bool
) -> None:
    counts, worth, supply = fitting(program)
    mix = maximise(counts.astype(float), worth, supply.astype(float), pivots=1 if cut else 400)
    prices = mix.prices + np.array(extra[: len(supply)])
    over = max(0.0, float((worth - prices @ counts).max(initial=0.0)))
    bound = float(prices @ supply) + over * float(supply.sum())
    plan = best_whole(
        counts,
        worth,
        supply,
        replace(mix, prices=prices),
        bound,
        (Search(100_000, 0.0),),
        64,
        0.005 * bound,
    )
    truth = optimum(counts, worth, supply)
    assert plan.value <= truth + 1e-6 <= plan.bound + 2e-6


@settings(max_examples=60, deadline=None)
@given(programs())
def test_a_dive_fits_and_leaves_room_for_no_further_pattern(
    program: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    counts, worth, supply = fitting(program)
    times = dive(counts, worth, supply, maximise(counts.astype(float), worth, supply.astype(float)))
    left = supply - counts @ times
    assert (left >= 0).all()
    assert not (counts <= left[:, None]).all(axis=0).any()


@st.composite
def bases(draw: st.DrawFn) -> np.ndarray:
    size = draw(st.integers(1, 3))
    entries = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    square = np.array([draw(entries) for _ in range(size)], dtype=np.int64)
    return square if abs(np.linalg.det(square)) > 0.5 else np.diag(np.arange(2, 2 + size))


@settings(max_examples=150, deadline=None)
@given(bases(), st.data())
def test_two_choices_are_of_one_class_exactly_when_whole_patterns_lie_between(
    square: np.ndarray, data: st.DataObject
) -> None:
    rows, orders = diagonal(square)
    assert np.prod(orders) == pytest.approx(abs(np.linalg.det(square)))
    entries = st.lists(st.integers(-9, 9), min_size=len(square), max_size=len(square))
    between = np.array(data.draw(entries))
    times = np.linalg.solve(square, between)
    whole = bool(np.allclose(times, np.rint(times), atol=1e-6))
    assert whole == (not (rows @ between % orders).any())


@settings(max_examples=100, deadline=None)
@given(bases(), st.data(), st.sampled_from([1, 4, 4096]), st.sampled_from([3.0, 100.0]))
def test_the_least_waste_of_a_class_is_that_of_the_cheapest_columns_that_use_it_up(
    square: np.ndarray, data: st.DataObject, most: int, limit: float
) -> None:
    size = len(square)
    many = data.draw(st.integers(1, 4))
    entry = st.lists(st.integers(0, 3), min_size=many, max_size=many)
    columns = np.array([data.draw(entry) for _ in range(size)], dtype=np.int64)
    waste = np.array(data.draw(st.lists(st.integers(1, 9), min_size=many, max_size=many))) * 0.5
    made = corner(square, columns, waste, limit, most)
    assert made.least.size <= max(1, most)
    # Bellman and Ford over the full classes
    rows, orders = diagonal(square)
    start = (0,) * len(orders)
    cost, fresh = {start: 0.0}, [start]
    while fresh:
        at = fresh.pop()
        for step, price in zip((rows @ columns % np.array(orders)[:, None]).T, waste, strict=True):
            to = tuple(int(x) for x in (np.array(at) + step) % orders)
            if cost[at] + price < cost.get(to, limit):
                cost[to] = cost[at] + price
                fresh.append(to)
    for point in product(*(range(order) for order in orders)):
        least = float(made.waste(np.array(point)[:, None])[0])
        truth = cost.get(point, limit)
        assert least <= truth + 1e-9
        if np.prod(orders) <= most:
            assert least == pytest.approx(truth)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=3), st.data())
def test_every_pattern_up_to_some_length_is_listed_once(
    cards: list[tuple[int, int]], data: st.DataObject
) -> None:
    layers, limit = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([3, 20, 10_000]))
    cards = [(many, min(room, layers)) for many, room in cards]
    most, rooms = [many for many, _ in cards], [room for _, room in cards]
    listed_kinds = [
        MachineKind(
            Capacities(room, room, room, room), tuple(9.0 / k for k in range(1, room + 1)), t, 0.0
        )
        for t, room in enumerate(rooms)
    ]
    found = every_pattern(steps_of(listed_kinds, layers), most, limit).T.tolist()
    truth = [
        list(counts)
        for counts in product(*(range(many + 1) for many in most))
        if 1 <= sum(counts) <= layers and np.dot(counts, rooms) >= layers
    ]
    assert len({tuple(one) for one in found}) == len(found)
    assert all(one in truth for one in found)
    if limit == 10_000:
        assert sorted(found) == sorted(truth)
    for stages in sorted({sum(one) for one in truth}):
        up_to = [one for one in truth if sum(one) <= stages]
        if len(up_to) <= limit:
            assert all(one in found for one in up_to)


@st.composite
def kinds(draw: st.DrawFn) -> MachineKind:
    plain = draw(st.integers(1, 6))
    first, last = (draw(st.integers(max(0, plain - 2), plain)) for _ in range(2))
    both = draw(st.integers(max(0, first + last - plain), min(first, last)))
    if draw(st.booleans()):
        speed = draw(st.integers(1, 9))
        rates = [60.0 * speed / k for k in range(1, plain + 1)]
    else:  # a measured table
        rates = sorted((float(draw(st.integers(1, 99))) for _ in range(plain)), reverse=True)
    tau, head = draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.sampled_from([0.0, 2.0]))
    return MachineKind(Capacities(plain, first, last, both), tuple(rates), tau, head)


@settings(max_examples=200, deadline=None)
@given(st.lists(kinds(), min_size=1, max_size=3), st.integers(1, 9), st.data())
def test_theta_and_compute_time_equal_every_split_and_choice_of_ends(
    listed: list[MachineKind], layers: int, data: st.DataObject
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
        assert step[0] == -1 and not ends.first.size
        return
    assert steps.rates[step[0]] == best[0]
    assert fastest_ms(column, step, steps)[0] == pytest.approx(-best[1])
    assert (ends.layers.sum(axis=1) == layers).all()
    theta, minus_ms = max(zip(ends.theta, -ends.compute_ms, strict=True))
    assert (theta, -minus_ms) == (best[0], pytest.approx(-best[1]))
