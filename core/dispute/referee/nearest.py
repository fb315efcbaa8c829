"""Which float64 is nearest to a number, to a quotient, to an inverse root? Ties to even.

Zero is +0 whatever its sign was. A quotient and a root are cut at 124 bits or more before they are
rounded: enough for quotients of float64 values to round as IEEE-754 has it. Twin:
contracts/src/referee/Nearest.sol.
"""

from __future__ import annotations

from math import isqrt

from core.dispute.referee.real import Real, shifted, top, trim

_MANTISSA_BITS = 53
_LOWEST = -1074
_HIGHEST = 971  # exponent of the last bit of the largest float64
_WORK_BITS = 125


def nearest(x: Real) -> bytes | None:
    """The float64 nearest to `x`, little-endian; None where that is an infinity."""
    if x.m == 0:
        return bytes(8)
    m, unit = abs(x.m), max(top(x) - _MANTISSA_BITS, _LOWEST)
    drop = unit - x.e
    if drop <= 0:
        m <<= -drop
    else:
        half, rest = 1 << (drop - 1), m & ((1 << drop) - 1)
        m >>= drop
        if rest > half or (rest == half and m & 1):
            m += 1
        if m == 1 << _MANTISSA_BITS:
            m, unit = m >> 1, unit + 1
    if m == 0:
        return bytes(8)
    if unit > _HIGHEST:
        return None
    hidden = 1 << (_MANTISSA_BITS - 1)
    bits = m if m < hidden else (unit - _LOWEST + 1) << (_MANTISSA_BITS - 1) | (m - hidden)
    return (bits | (x.m < 0) << 63).to_bytes(8, "little")


def quotient(a: Real, b: Real) -> Real:
    """a / b, cut towards zero; `b` must be positive."""
    dividend, divisor = _full(a), trim(b, _WORK_BITS)
    m = (abs(dividend.m) << _WORK_BITS) // divisor.m
    return Real(-m if a.m < 0 else m, dividend.e - divisor.e - _WORK_BITS)


def inverse_root(n: int, mean: Real) -> Real:
    """(n / mean)^½, cut towards zero; both must be positive."""
    dividend, divisor = _full(Real(n, 0)), _full(mean)
    square = (dividend.m << _WORK_BITS) // divisor.m
    e = dividend.e - divisor.e - _WORK_BITS
    widened = _WORK_BITS - 1 - (e & 1)
    return Real(isqrt(square << widened), (e - widened) // 2)


def _full(a: Real) -> Real:
    """`a` with exactly 125 bits of mantissa, unless it is zero."""
    missing = _WORK_BITS - abs(a.m).bit_length()
    return Real(shifted(a.m, missing), a.e - missing) if a.m else a
