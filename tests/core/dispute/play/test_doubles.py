"""Pairs are good to the bits they promise, and sums know where they are exact."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from core.dispute.play.doubles import (
    PAIR_ERROR,
    Running,
    add_pairs,
    divided,
    exp_pair,
    rooted,
    times,
    two_product,
    two_sum,
)
from core.dispute.play.nearest import _DROPPED, _sliced_dot

RNG = np.random.default_rng(0)
ZERO = np.zeros(200)


def exact(pair: tuple[np.ndarray, np.ndarray], i: int) -> Fraction:
    return Fraction(float(pair[0][i])) + Fraction(float(pair[1][i]))


def test_sums_and_products_are_exact() -> None:
    a, b = (RNG.normal(size=200) * 2.0 ** RNG.integers(-60, 60, 200) for _ in range(2))
    total, product = two_sum(a, b), two_product(a, b)
    for i in range(200):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        assert exact(total, i) == x + y
        assert exact(product, i) == x * y


def test_pairs_are_good_to_what_they_promise() -> None:
    a, b = (RNG.normal(size=200) for _ in range(2))
    low_a, low_b = (RNG.normal(size=200) * 2.0**-55 for _ in range(2))
    x, y = two_sum(a, low_a), two_sum(b, low_b)
    for found, operation in (
        (times(x, y), lambda p, q: p * q),
        (divided(x, y), lambda p, q: p / q),
    ):
        for i in range(200):
            want = operation(exact(x, i), exact(y, i))
            assert abs(exact(found, i) - want) <= abs(want) * Fraction(PAIR_ERROR)
    square = times(x, x)
    root = rooted(square)
    for i in range(200):
        want = abs(exact(x, i))
        assert abs(exact(root, i) - want) <= want * Fraction(PAIR_ERROR)
    found = add_pairs(x, y)
    for i in range(200):
        size = abs(exact(x, i)) + abs(exact(y, i))
        assert abs(exact(found, i) - exact(x, i) - exact(y, i)) <= size * Fraction(2) ** -100


def test_exponentials_are_good_to_what_they_promise() -> None:
    x = np.concatenate([RNG.uniform(-700, 20, 150), RNG.normal(size=49) * 1e-9, [0.0]])
    found, power = exp_pair((x, ZERO))
    with localcontext() as context:
        context.prec = 60
        for i in range(200):
            want = Fraction(Decimal(float(x[i])).exp()) / Fraction(2) ** int(power[i])
            assert abs(exact(found, i) - want) <= want * Fraction(PAIR_ERROR), x[i]


@pytest.mark.parametrize("spread", [0, 20, 200])
def test_running_sums_know_where_they_are_exact(spread: int) -> None:
    terms = [
        RNG.normal(size=200) * 2.0 ** RNG.integers(-spread - 1, spread + 1, 200) for _ in range(128)
    ]
    running = Running(terms[0])
    for term in terms[1:]:
        running.add(term)
    pair, off = running.result()
    for i in range(200):
        want = sum((Fraction(float(term[i])) for term in terms), Fraction(0))
        assert abs(exact(pair, i) - want) <= Fraction(float(off[i]))


def test_a_tie_is_told_from_a_near_tie() -> None:
    running = Running(np.array([1.0, 1.0]))
    running.add(np.array([2.0**-53, 2.0**-53]))
    running.add(np.array([0.0, 2.0**-70]))
    (high, low), off = running.result()
    assert list(off) == [0.0, 0.0]
    assert list(high + low) == [1.0, 1.0 + 2.0**-52]


@pytest.mark.parametrize("terms", [1, 64, 128])
def test_products_of_matrices_are_off_by_no_more_than_they_say(terms: int) -> None:
    x = RNG.normal(size=(9, terms)) * 2.0 ** RNG.integers(-30, 4, (9, terms))
    w = RNG.normal(size=(7, terms)).astype(np.float32).astype(np.float64)
    x[3] = 0.0
    (high, low), off = _sliced_dot(x, w)
    for n in range(9):
        for m in range(7):
            want = sum(
                (
                    Fraction(a) * Fraction(b)
                    for a, b in zip(x[n].tolist(), w[m].tolist(), strict=True)
                ),
                Fraction(0),
            )
            got = Fraction(float(high[n, m])) + Fraction(float(low[n, m]))
            assert abs(got - want) <= Fraction(float(off[n, m]))
    assert not off[3].any()
    assert off[0].max() < _DROPPED * 2.0**12
