"""Is the served output too far from the reference? Whitened deviations and the one comparison that accuses.

D² = Σ ((y − s)/σ)² and S² = Σ (s/σ)² are trees of SQUARES and SUM over the elements judged here; σ is the model's scale of
each channel. Twin: contracts/src/referee/WindowCheck.sol.
"""

from __future__ import annotations

from core.dispute.referee.leaf import LeafError, Malformed, Ruling, split, to_format, words
from core.dispute.referee.real import (
    ETA,
    Real,
    add,
    at_most,
    magnitude,
    mul,
    scaled,
    sub,
    within,
)

_U = -50
#: A tolerance is a whole number of 10^-12.
TOLERANCE_UNIT = 10**12
_MAX_TOLERANCE = 2**50
#: A window whose D² is below 2^-512 convicts nobody: there, underflow decides and not the machine.
_SMALLEST_EVIDENCE = Real(1, -512)


def whiten_difference(params: tuple[int, ...], operands: bytes) -> bool:
    """|d·σ − (y − s)| ≤ 4u |d·σ| + η(1 + σ). Parameters: row format, σ's format. Operands: d, s; σ; row y."""
    row_format, sigma_format = words(params, 2)
    found = split(operands, 2, (to_format(sigma_format), 1), (to_format(row_format), 1))
    return _is_quotient(found.trace[0], sub(found.row[0], found.trace[1]), found.model[0])


def whiten_reference(params: tuple[int, ...], operands: bytes) -> bool:
    """|d·σ − s| ≤ 4u |d·σ| + η(1 + σ). Parameters: σ's format. Operands: d, s; σ."""
    (sigma_format,) = words(params, 1)
    found = split(operands, 2, (to_format(sigma_format), 1))
    return _is_quotient(found.trace[0], found.trace[1], found.model[0])


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


def _is_quotient(d: Real, dividend: Real, sigma: Real) -> bool:
    if sigma.m <= 0:
        raise Malformed(Ruling.MODEL_MALFORMED)
    found = mul(d, sigma)
    lost = add(Real(1, 0), sigma)
    return within(found, dividend, add(scaled(magnitude(found), _U + 2), scaled(lost, ETA.e)))
