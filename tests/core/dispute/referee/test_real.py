"""The referee's numbers are exact while they fit, and lose no more than promised after."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from core.dispute.referee.real import Real, add, at_most, mul, sub, times

small = st.builds(Real, st.integers(-(2**60), 2**60), st.integers(-30, 30))
wide = st.builds(Real, st.integers(-(2**250), 2**250), st.integers(-3000, 3000))


def exact(a: Real) -> Fraction:
    return Fraction(a.m) * Fraction(2) ** a.e


@given(small, small)
def test_small_numbers_add_multiply_and_compare_exactly(a: Real, b: Real) -> None:
    assert exact(add(a, b)) == exact(a) + exact(b)
    assert exact(sub(a, b)) == exact(a) - exact(b)
    assert exact(mul(a, b)) == exact(a) * exact(b)
    assert exact(times(a, 1000)) == 1000 * exact(a)
    assert at_most(a, b) == (exact(a) <= exact(b))


@given(wide, wide)
def test_wide_numbers_lose_at_most_2_to_the_minus_123(a: Real, b: Real) -> None:
    larger = max(abs(exact(a)), abs(exact(b)))
    assert abs(exact(add(a, b)) - exact(a) - exact(b)) <= larger / 2**123
    product = exact(a) * exact(b)
    assert abs(exact(mul(a, b)) - product) <= abs(product) / 2**123


@given(wide, wide)
def test_mantissas_stay_below_2_to_the_251(a: Real, b: Real) -> None:
    for found in (add(a, b), sub(a, b), mul(a, b)):
        assert abs(found.m) < 2**251
