"""How does the referee compute with numbers of any size, so that two languages get the same bits?

A `Real` is an integer mantissa times a power of two. Sums and products are exact while they fit 250
bits; past that the last bits are dropped, towards zero. One operation loses at most 2^-124 of its
larger operand. Twin: contracts/src/referee/Real.sol.
"""

from __future__ import annotations

from typing import NamedTuple

_FACTOR_BITS = 125  # two such factors make a product of 250 bits
_SUM_BITS = 250
_KEPT_BITS = 251


class Real(NamedTuple):
    """m · 2^e. Not normalised: equal values may have different fields."""

    m: int
    e: int


ZERO = Real(0, 0)
ONE = Real(1, 0)


def shifted(mantissa: int, left: int) -> int:
    """mantissa · 2^left, dropped bits towards zero."""
    if left >= 0:
        return mantissa << left
    return -(-mantissa >> -left) if mantissa < 0 else mantissa >> -left


def trim(value: Real, bits: int) -> Real:
    """`value` with at most `bits` bits of mantissa."""
    excess = abs(value.m).bit_length() - bits
    return Real(shifted(value.m, -excess), value.e + excess) if excess > 0 else value


def mul(a: Real, b: Real) -> Real:
    a, b = trim(a, _FACTOR_BITS), trim(b, _FACTOR_BITS)
    return Real(a.m * b.m, a.e + b.e)


def add(a: Real, b: Real) -> Real:
    """a + b, exact unless their bits lie more than 250 apart."""
    if a.m == 0:
        return b
    if b.m == 0:
        return a
    high, low = (a, b) if a.e >= b.e else (b, a)
    apart = high.e - low.e
    left = max(min(apart, _SUM_BITS - abs(high.m).bit_length()), 0)
    total = (high.m << left) + shifted(low.m, left - apart)
    return trim(Real(total, high.e - left), _KEPT_BITS)


def neg(a: Real) -> Real:
    return Real(-a.m, a.e)


def sub(a: Real, b: Real) -> Real:
    return add(a, neg(b))


def magnitude(a: Real) -> Real:
    return Real(abs(a.m), a.e)


def times(a: Real, factor: int) -> Real:
    return mul(a, Real(factor, 0))


def scaled(a: Real, exponent: int) -> Real:
    """a · 2^exponent."""
    return Real(a.m, a.e + exponent)


def top(a: Real) -> int:
    """The t for which 2^(t−1) ≤ |a| < 2^t; `a` must not be zero."""
    return abs(a.m).bit_length() + a.e


def at_most(a: Real, b: Real) -> bool:
    """a ≤ b; exact for mantissas of up to 125 bits."""
    return sub(a, b).m <= 0
