"""What is the sum of at most 256 numbers, and of their magnitudes, as integers?

All terms are laid on one grid whose step is 2^-80 of the largest term's unit (never finer than the smallest float64), and summed there.
What lies below the grid is dropped towards zero, less than one step a term; `Sum.slack` holds it and the float64
underflow that an honest machine may have had. Twin: contracts/src/referee/ExactSum.sol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from core.dispute.referee.real import ETA, ONE, Real, add, mul, scaled, shifted, times, within

MAX_TERMS = 256
#: Bits below the largest term's unit that stay exact: products have at most 106, so 194 in all with 256 terms.
_DEPTH = 80
_FLOOR = -1074
#: u = 2^-50, eight times the unit roundoff of float64, to allow for imperfect hardware.
ROUNDOFF_BITS = 50


class Sum(NamedTuple):
    """Σ t, Σ |t|, and what an honest evaluation may be off beyond relative rounding."""

    total: Real
    magnitude: Real
    slack: Real


def exact_sum(terms: Sequence[Real]) -> Sum:
    """Sum of at most 256 terms of at most 106 bits each."""
    highest = max((term.e for term in terms if term.m), default=_FLOOR)
    step = max(highest - _DEPTH, _FLOOR)
    positive = negative = 0
    for mantissa, exponent in terms:
        if mantissa >= 0:
            positive += shifted(mantissa, exponent - step)
        else:
            negative += shifted(-mantissa, exponent - step)
    return Sum(
        Real(positive - negative, step),
        Real(positive + negative, step),
        Real(2 * (len(terms) + 1), step),
    )


def dot(a: Iterable[Real], b: Iterable[Real]) -> Sum:
    """Σ a·b."""
    return exact_sum([Real(x.m * y.m, x.e + y.e) for x, y in zip(a, b, strict=True)])


def holds_gamma(y: Real, found: Sum, n: int, factor: Real = ONE) -> bool:
    """|y − c Σt| ≤ γ_n |c| Σ|t| + η with γ_n = n·u / (1 − n·u), multiplied through by (1 − n·u) / u."""
    left = (1 << ROUNDOFF_BITS) - n
    size = Real(abs(factor.m), factor.e)
    bound = times(mul(found.magnitude, size), n)
    slack = scaled(add(mul(found.slack, size), ETA), ROUNDOFF_BITS)
    return within(times(y, left), times(mul(found.total, factor), left), add(bound, slack))
