"""How large must a tolerance be, for what honest machines were seen to do?

(`docs/trust.md`, shadow mode)
"""

from __future__ import annotations

#: T over the largest honest deviation, at least.
LEAST_ROOM = 2.0
_PARTS = 10**12


def tolerance_for(largest: float, published_parts: int) -> int:
    """T in parts per trillion, for the largest D/S that was measured.

    The published one, or where that leaves too little room a larger one of one digit, rounded up.
    """
    needed = LEAST_ROOM * largest * _PARTS
    if needed <= published_parts:
        return published_parts
    digit = int(10 ** (len(str(int(needed))) - 1))
    return int(-(-needed // digit)) * digit
