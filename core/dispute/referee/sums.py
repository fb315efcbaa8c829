"""What is the sum of at most 256 numbers?

All terms are laid on one grid whose step is 2^-80 of the largest term's unit, never finer than the
smallest float64, and are summed there. What lies below the grid is dropped towards zero, less than
one step a term. Twin: contracts/src/referee/ExactSum.sol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.dispute.referee.real import Real, shifted

MAX_TERMS = 256
#: Bits below the largest term's unit that stay exact: products have at most 106, so 194 in all with
#: 256 terms.
_DEPTH = 80
_FLOOR = -1074


def exact_sum(terms: Sequence[Real]) -> Real:
    """Sum of at most 257 terms of at most 106 bits each."""
    highest = max((term.e for term in terms if term.m), default=_FLOOR)
    step = max(highest - _DEPTH, _FLOOR)
    return Real(sum(shifted(term.m, term.e - step) for term in terms), step)


def dot(a: Iterable[Real], b: Iterable[Real]) -> Real:
    """Σ a·b."""
    return exact_sum([Real(x.m * y.m, x.e + y.e) for x, y in zip(a, b, strict=True)])
