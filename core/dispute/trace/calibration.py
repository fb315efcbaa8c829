"""How large must a tolerance be, for what honest machines were seen to do?

(`docs/trust.md`, shadow mode)
"""

from __future__ import annotations

import math

from core.dispute.trace.families import LEAST_DELTA_MICRO

#: Norm and head of whatever row come to half of this, or less, by sums one by one
#: (`docs/trust.md` §6).
_HEAD_STEP = 2.0**-25
#: T over the largest honest deviation, at least.
LEAST_ROOM = 2.0
_PARTS = 10**12


def delta_for(hidden: int, largest: float) -> int:
    """δ in 10^-6 nat, at least: what rounding in norm and head may come to on rows chosen for it.

    `largest` is the largest |g·w| of a factor of the final norm and a weight of its channel in the
    head. A normed row of D numbers is √D long, and D sums are rounded.
    """
    bound = hidden * math.sqrt(hidden) * largest * _HEAD_STEP
    return max(LEAST_DELTA_MICRO, math.ceil(bound * 10**6))


def tolerance_for(largest: float, published_parts: int) -> int:
    """T in parts per trillion, for the largest D/S that was measured.

    The published one, or where that leaves too little room a larger one of one digit, rounded up.
    """
    needed = LEAST_ROOM * largest * _PARTS
    if needed <= published_parts:
        return published_parts
    digit = int(10 ** (len(str(int(needed))) - 1))
    return int(-(-needed // digit)) * digit
