"""Do attention's elements hold? Rotation, scores and their mask, and the three parts of a softmax.

A softmax is a stabiliser M, e_j = exp(s_j − M), Z = Σ e (a tree of SUM) and p_j = e_j / Z. Twin:
contracts/src/referee/AttentionCheck.sol.
"""

from __future__ import annotations

from core.dispute.referee.formats import MINUS_INFINITY
from core.dispute.referee.leaf import (
    LeafError,
    split,
    to_constant,
    to_flag,
    to_format,
    to_terms,
    words,
)
from core.dispute.referee.real import (
    ETA,
    ONE,
    Real,
    add,
    at_most,
    magnitude,
    mul,
    scaled,
    sub,
    times,
    within,
)
from core.dispute.referee.sums import dot, holds_gamma
from core.dispute.referee.transcend import exp

_U = -50
_TRANSCENDENTAL = -40
#: Math libraries may flush a subnormal exponential to zero.
_SMALLEST_NORMAL = Real(1, -1022)
_ZEROES = (bytes(8), bytes(7) + b"\x80")


def rope(params: tuple[int, ...], operands: bytes) -> bool:
    """|y − (a·c ± b·s)| ≤ 3u (|a·c| + |b·s|) + 3η. Parameters: table format, whether minus. Operands: y, a, b; table c, s."""
    fmt, flag = words(params, 2)
    minus = to_flag(flag)
    found = split(operands, 3, (to_format(fmt), 2))
    y, a, b = found.trace
    first, second = mul(a, found.model[0]), mul(b, found.model[1])
    size = add(magnitude(first), magnitude(second))
    turned = sub(first, second) if minus else add(first, second)
    return within(y, turned, add(scaled(times(size, 3), _U), times(ETA, 3)))


def score(params: tuple[int, ...], operands: bytes) -> bool:
    """|y − c·Σ q·k| ≤ γ_{n+2} |c| Σ|q·k| + η; exactly −∞ where the mask hides the key.

    Parameters: n, c, query position, key position, window (0: none). Operands: y, q[n], k[n].
    """
    n, constant, query, key, window = words(params, 5)
    factor = to_constant(constant)
    if len(operands) != 8 * (1 + 2 * to_terms(n)):
        raise LeafError(f"{len(operands)} bytes of operands instead of {8 * (1 + 2 * n)}")
    if not is_visible(query, key, window):
        return operands[:8] == MINUS_INFINITY
    trace = split(operands, 1 + 2 * n).trace
    return holds_gamma(trace[0], dot(trace[1 : n + 1], trace[n + 1 :]), n + 2, factor)


def is_visible(query: int, key: int, window: int) -> bool:
    """May the token at `query` look at the one at `key`? Causal, and at most `window` positions wide if that is not 0."""
    return key <= query and (window == 0 or query - key < window)


def stabiliser(params: tuple[int, ...], operands: bytes) -> bool:
    """−60 ≤ s − M ≤ 1 for one score that the accuser names. Operands: M, s."""
    words(params, 0)
    m, s = split(operands, 2).trace
    above = sub(s, m)
    return at_most(Real(-60, 0), above) and at_most(above, ONE)


def exponential(params: tuple[int, ...], operands: bytes) -> bool:
    """|e − exp(s − M)| ≤ 2^-40 e + 2^-1022; zero for a masked score. Operands: e, M, s."""
    words(params, 0)
    if operands[16:] == MINUS_INFINITY:
        split(operands[:16], 2)
        return operands[:8] in _ZEROES
    e, m, s = split(operands, 3).trace
    if e.m < 0:
        return False
    return within(e, exp(sub(s, m)), add(scaled(e, _TRANSCENDENTAL), _SMALLEST_NORMAL))


def probability(params: tuple[int, ...], operands: bytes) -> bool:
    """|p·Z − e| ≤ 4u·e + η(1 + Z), with p, e ≥ 0 and Z > 0. Operands: p, e, Z."""
    words(params, 0)
    p, e, z = split(operands, 3).trace
    if p.m < 0 or e.m < 0 or z.m <= 0:
        return False
    tolerance = add(scaled(e, _U + 2), scaled(add(ONE, z), ETA.e))
    return within(mul(p, z), e, tolerance)
