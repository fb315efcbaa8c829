"""Is the served output too far from the reference? The one comparison that accuses.

D² = Σ ((y − s)/σ)² and S² = Σ (s/σ)² are trees of SQUARES and SUM over the elements judged here; σ
is the model's scale of each channel. Twin: contracts/src/referee/Verdicts.sol.
"""

from __future__ import annotations

from core.dispute.referee.leaf import LeafError, split, words
from core.dispute.referee.real import Real, at_most

#: A tolerance is a whole number of 10^-12.
TOLERANCE_UNIT = 10**12
_MAX_TOLERANCE = 2**50
#: A window whose D² is below 2^-512 convicts no machine: there, underflow decides.
_SMALLEST_EVIDENCE = Real(1, -512)


def exceeds(params: tuple[int, ...], operands: bytes) -> bool:
    """D² > T²·S², exactly, S² ≥ 0 and D² ≥ 2^-512. Parameters: T in 10^-12. Operands: D², S²."""
    (tolerance,) = words(params, 1)
    if tolerance > _MAX_TOLERANCE:
        raise LeafError(f"a tolerance of {tolerance} units")
    deviation, reference = split(operands, 2).trace
    if reference.m < 0 or not at_most(_SMALLEST_EVIDENCE, deviation):
        return False
    left = Real(deviation.m * TOLERANCE_UNIT**2, deviation.e)
    return not at_most(left, Real(reference.m * tolerance**2, reference.e))
