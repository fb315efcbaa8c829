"""Do normalised values hold? RMSNorm of rows and of heads, without a square root.

q = Σ x² is a tree of SQUARES and SUM; r stands for (q/n + ε)^-½; y = x·r·g. Twin: contracts/src/referee/NormCheck.sol.
"""

from __future__ import annotations

from core.dispute.referee.leaf import LeafError, split, to_constant, to_flag, to_format, words
from core.dispute.referee.real import (
    ETA,
    ONE,
    ZERO,
    Real,
    add,
    magnitude,
    mul,
    scaled,
    times,
    within,
)

_U = -50
MAX_WIDTH = 2**32 - 1


def norm_scale(params: tuple[int, ...], operands: bytes) -> bool:
    """|r² (q + n·ε) − n| ≤ 16u·n and r > 0. Parameters: n, ε. Operands: r, q."""
    n, epsilon = words(params, 2)
    if not 1 <= n <= MAX_WIDTH:
        raise LeafError(f"a norm over {n} values")
    floor = times(to_constant(epsilon), n)
    r, q = split(operands, 2).trace
    if r.m <= 0 or q.m < 0:
        return False
    mean = add(q, floor)
    return within(mul(mul(r, r), mean), Real(n, 0), Real(16 * n, _U))


def norm(params: tuple[int, ...], operands: bytes) -> bool:
    """|y − x·r·g| ≤ 4u|y| + η(|x| + |r| + |g| + 1), g = w or 1 + w.

    Parameters: weight format, whether one is added. Operands: y, x, r; weight w. The last part is what an honest
    machine may lose where a product of two underflows, in whatever order it multiplies.
    """
    fmt, plus_one = words(params, 2)
    offset = ONE if to_flag(plus_one) else ZERO
    found = split(operands, 3, (to_format(fmt), 1))
    y, x, r = found.trace
    gain = add(offset, found.model[0])
    lost = add(add(magnitude(x), magnitude(r)), add(magnitude(gain), ONE))
    tolerance = add(scaled(magnitude(y), _U + 2), scaled(lost, ETA.e))
    return within(y, mul(mul(x, r), gain), tolerance)
