"""Which value does each operator have on its own operands? (`docs/trust.md` §5)

Every value of a trace is the nearest float64 to its operator's value, zero is +0, a stabiliser is
the largest score, and what the referee computes with (the grid of sums, exponentials in Q120)
belongs to the definition. So a trace has one set of bits on every machine. Twin:
contracts/src/referee/Referee.sol.
"""

from __future__ import annotations

from collections.abc import Callable

from core.dispute.referee.formats import MINUS_INFINITY, Format, decode
from core.dispute.referee.leaf import (
    Leaf,
    LeafError,
    LeafKind,
    MalformedOperand,
    Ruling,
    split,
    to_constant,
    to_flag,
    to_format,
    to_terms,
    words,
)
from core.dispute.referee.nearest import inverse_root, nearest, quotient
from core.dispute.referee.real import (
    ONE,
    ZERO,
    Real,
    add,
    at_most,
    magnitude,
    mul,
    scaled,
    sub,
    times,
    top,
)
from core.dispute.referee.sums import dot, exact_sum
from core.dispute.referee.transcend import POINT, decay, exp, exp_fixed, quotient_fixed

Params = tuple[int, ...]
#: The bytes that the result must have, or None where no number is right.
Value = Callable[[Params, bytes], bytes | None]


#: ⌊2 √(2/π) · 2^120⌋, and the cubic coefficient 0.044715 as a fraction of 10^6 in Q120.
TWO_ROOT = Real(0x19884533D436508D0FCB3C500BAB8E2, -POINT)
CUBIC = Real((44_715 << POINT) // 1_000_000, -POINT)
#: Below 2^-60, tanh z differs from z by less than 2^-120 of it.
_LINEAR_BELOW = -60
_MAX_WIDTH = 2**32 - 1
#: A shake of one is 2^-24 of the value: half the distance of float32 numbers.
SHAKE_BITS = 24


def exact_value(leaf: Leaf) -> bytes | None:
    """The right result of this leaf: eight bytes, or None if no number is right.

    The leaf's operands begin with any finite result. Raises LeafError for a leaf that there is not,
    MalformedOperand for an operand that is no number, KeyError for a verdict.
    """
    found = VALUES[leaf.kind](leaf.params, leaf.operands)
    value = decode(found, Format.F64) if found is not None and leaf.shake else None
    if not value:  # no number is right, none is shaken, or it is −∞
        return found
    return nearest(mul(value[0], Real((1 << SHAKE_BITS) + leaf.shake, -SHAKE_BITS)))


def _copy(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    split(operands, 2)
    return operands[8:]


def _input(params: Params, operands: bytes) -> bytes | None:
    (row,) = words(params, 1)
    return nearest(split(operands, 1, row=(to_format(row), 1)).row[0])


def _embed(params: Params, operands: bytes) -> bytes | None:
    fmt, constant = words(params, 2)
    factor = to_constant(constant)
    return nearest(mul(factor, split(operands, 1, (to_format(fmt), 1)).model[0]))


def _linear(params: Params, operands: bytes) -> bytes | None:
    fmt, n = words(params, 2)
    found = split(operands, 1 + to_terms(n), (to_format(fmt), n))
    return nearest(dot(found.model, found.trace[1:]))


def _mix(params: Params, operands: bytes) -> bytes | None:
    (n,) = words(params, 1)
    trace = split(operands, 1 + 2 * to_terms(n)).trace
    return nearest(dot(trace[1 : n + 1], trace[n + 1 :]))


def _squares(params: Params, operands: bytes) -> bytes | None:
    (n,) = words(params, 1)
    trace = split(operands, 1 + to_terms(n)).trace
    return nearest(dot(trace[1:], trace[1:]))


def _sum(params: Params, operands: bytes) -> bytes | None:
    (n,) = words(params, 1)
    return nearest(exact_sum(split(operands, 1 + to_terms(n)).trace[1:]))


def _bias_sum(params: Params, operands: bytes) -> bytes | None:
    fmt, n = words(params, 2)
    if n == 0:
        raise LeafError("a bias added to nothing")
    to_terms(n + 1)
    found = split(operands, 1 + n, (to_format(fmt), 1))
    return nearest(exact_sum([*found.trace[1:], *found.model]))


def _norm_scale(params: Params, operands: bytes) -> bytes | None:
    n, epsilon = words(params, 2)
    if not 1 <= n <= _MAX_WIDTH:
        raise LeafError(f"a norm over {n} values")
    floor = times(to_constant(epsilon), n)
    _, q = split(operands, 2).trace
    mean = add(q, floor)
    return None if q.m < 0 or mean.m <= 0 else nearest(inverse_root(n, mean))


def _norm(params: Params, operands: bytes) -> bytes | None:
    fmt, plus_one = words(params, 2)
    offset = ONE if to_flag(plus_one) else ZERO
    found = split(operands, 3, (to_format(fmt), 1))
    _, x, r = found.trace
    return nearest(mul(mul(x, r), add(offset, found.model[0])))


def _rope(params: Params, operands: bytes) -> bytes | None:
    fmt, flag = words(params, 2)
    minus = to_flag(flag)
    found = split(operands, 3, (to_format(fmt), 2))
    _, a, b = found.trace
    first, second = mul(a, found.model[0]), mul(b, found.model[1])
    return nearest(sub(first, second) if minus else add(first, second))


def _score(params: Params, operands: bytes) -> bytes | None:
    n, constant, query, key, window = words(params, 5)
    factor = to_constant(constant)
    if len(operands) != 8 * (1 + 2 * to_terms(n)):
        raise LeafError(f"{len(operands)} bytes of operands instead of {8 * (1 + 2 * n)}")
    if not is_visible(query, key, window):
        return MINUS_INFINITY
    trace = split(operands, 1 + 2 * n).trace
    return nearest(mul(dot(trace[1 : n + 1], trace[n + 1 :]), factor))


def is_visible(query: int, key: int, window: int) -> bool:
    """May the token at `query` look at the one at `key`? Causal, at most `window` wide if not 0."""
    return key <= query and (window == 0 or query - key < window)


def _stabiliser(params: Params, operands: bytes) -> bytes | None:
    """One of the scores, which the accuser names.

    That none is larger stands or falls with their exponentials.
    """
    return _copy(params, operands)


def _exponential(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    if operands[16:] == MINUS_INFINITY:
        split(operands[:16], 2)
        return bytes(8)
    _, m, s = split(operands, 3).trace
    return nearest(exp(sub(s, m))) if at_most(s, m) else None


def _probability(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    _, e, z = split(operands, 3).trace
    return None if e.m < 0 or z.m <= 0 else nearest(quotient(e, z))


def _silu(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    _, g = split(operands, 2).trace
    return _gated(g, g)


def _gelu_tanh(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    _, g = split(operands, 2).trace
    return _gated(g, mul(add(g, mul(mul(mul(g, g), g), CUBIC)), TWO_ROOT))


def _gated(g: Real, x: Real) -> bytes | None:
    e = decay(x)
    return nearest(quotient(g if x.m >= 0 else mul(g, e), add(ONE, e)))


def _softcap(params: Params, operands: bytes) -> bytes | None:
    (constant,) = words(params, 1)
    cap = to_constant(constant)
    if cap.m <= 0:
        raise LeafError("a soft cap that is not positive")
    if operands[8:] == MINUS_INFINITY:
        return MINUS_INFINITY
    _, x = split(operands, 2).trace
    if x.m == 0 or top(x) - top(cap) < _LINEAR_BELOW:
        return nearest(x)
    e = exp_fixed(-quotient_fixed(scaled(magnitude(x), 1), cap))
    capped = mul(cap, sub(ONE, e))
    return nearest(quotient(capped if x.m > 0 else Real(-capped.m, capped.e), add(ONE, e)))


def _product(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    _, a, b = split(operands, 3).trace
    return nearest(mul(a, b))


def _scale(params: Params, operands: bytes) -> bytes | None:
    (constant,) = words(params, 1)
    factor = to_constant(constant)
    return nearest(mul(factor, split(operands, 2).trace[1]))


def _add(params: Params, operands: bytes) -> bytes | None:
    words(params, 0)
    _, a, b = split(operands, 3).trace
    return nearest(add(a, b))


def _whiten_difference(params: Params, operands: bytes) -> bytes | None:
    row_format, sigma_format = words(params, 2)
    found = split(operands, 2, (to_format(sigma_format), 1), (to_format(row_format), 1))
    return _whitened(sub(found.row[0], found.trace[1]), found.model[0])


def _whiten_reference(params: Params, operands: bytes) -> bytes | None:
    (sigma_format,) = words(params, 1)
    found = split(operands, 2, (to_format(sigma_format), 1))
    return _whitened(found.trace[1], found.model[0])


def _whiten_change(params: Params, operands: bytes) -> bytes | None:
    (sigma_format,) = words(params, 1)
    found = split(operands, 3, (to_format(sigma_format), 1))
    return _whitened(sub(found.trace[1], found.trace[2]), found.model[0])


def _whitened(dividend: Real, sigma: Real) -> bytes | None:
    if sigma.m <= 0:
        raise MalformedOperand(Ruling.MODEL_MALFORMED)
    return nearest(quotient(dividend, sigma))


VALUES: dict[LeafKind, Value] = {
    LeafKind.COPY: _copy,
    LeafKind.INPUT: _input,
    LeafKind.EMBED: _embed,
    LeafKind.LINEAR: _linear,
    LeafKind.SUM: _sum,
    LeafKind.BIAS_SUM: _bias_sum,
    LeafKind.SQUARES: _squares,
    LeafKind.NORM_SCALE: _norm_scale,
    LeafKind.NORM: _norm,
    LeafKind.ROPE: _rope,
    LeafKind.SCORE: _score,
    LeafKind.STABILISER: _stabiliser,
    LeafKind.EXP: _exponential,
    LeafKind.PROBABILITY: _probability,
    LeafKind.MIX: _mix,
    LeafKind.SILU: _silu,
    LeafKind.GELU_TANH: _gelu_tanh,
    LeafKind.PRODUCT: _product,
    LeafKind.ADD: _add,
    LeafKind.SCALE: _scale,
    LeafKind.SOFTCAP: _softcap,
    LeafKind.WHITEN_DIFFERENCE: _whiten_difference,
    LeafKind.WHITEN_REFERENCE: _whiten_reference,
    LeafKind.WHITEN_CHANGE: _whiten_change,
}
