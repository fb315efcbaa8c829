"""Do activations hold? SiLU, GELU in its tanh form, and soft-capped scores and logits.

All three are x times a logistic function, and are compared after multiplying its denominator out. Twin:
contracts/src/referee/ActivationCheck.sol.
"""

from __future__ import annotations

from core.dispute.referee.formats import MINUS_INFINITY
from core.dispute.referee.leaf import LeafError, split, to_constant, words
from core.dispute.referee.real import (
    ETA,
    ONE,
    Real,
    add,
    magnitude,
    mul,
    scaled,
    sub,
    top,
    within,
)
from core.dispute.referee.transcend import POINT, decay, exp_fixed, quotient_fixed

_TRANSCENDENTAL = -40
#: ⌊2 √(2/π) · 2^120⌋, and the cubic coefficient 0.044715 as a fraction of 10^6 in Q120.
TWO_ROOT = Real(0x19884533D436508D0FCB3C500BAB8E2, -POINT)
CUBIC = Real((44_715 << POINT) // 1_000_000, -POINT)
#: Below 2^-60, tanh z differs from z by less than 2^-120 of it.
LINEAR_BELOW = -60


def silu(params: tuple[int, ...], operands: bytes) -> bool:
    """|y − g / (1 + e^-g)| ≤ 2^-40 (|g| + |y|) + η. Operands: y, g."""
    words(params, 0)
    y, g = split(operands, 2).trace
    return _is_gated(y, g, g)


def gelu_tanh(params: tuple[int, ...], operands: bytes) -> bool:
    """|y − g / (1 + e^-x)| ≤ 2^-40 (|g| + |y|) + η, x = 2 √(2/π) (g + 0.044715 g³). Operands: y, g.

    This is ½ g (1 + tanh(x/2)), the form that models are published with.
    """
    words(params, 0)
    y, g = split(operands, 2).trace
    cubed = mul(mul(mul(g, g), g), CUBIC)
    return _is_gated(y, g, mul(add(g, cubed), TWO_ROOT))


def softcap(params: tuple[int, ...], operands: bytes) -> bool:
    """|y − c·tanh(x/c)| ≤ 2^-40 (|x| + |y|) + η; −∞ stays −∞. Parameters: c > 0. Operands: y, x."""
    (constant,) = words(params, 1)
    cap = to_constant(constant)
    if cap.m <= 0:
        raise LeafError("a soft cap that is not positive")
    if operands[8:] == MINUS_INFINITY:
        return operands[:8] == MINUS_INFINITY
    y, x = split(operands, 2).trace
    tolerance = _tolerance(y, x)
    if x.m == 0 or top(x) - top(cap) < LINEAR_BELOW:
        return within(y, x, tolerance)
    e = exp_fixed(-quotient_fixed(scaled(magnitude(x), 1), cap))
    capped = mul(cap, sub(ONE, e))
    whole = add(ONE, e)
    return within(
        mul(y, whole), capped if x.m > 0 else Real(-capped.m, capped.e), mul(tolerance, whole)
    )


def _is_gated(y: Real, g: Real, x: Real) -> bool:
    """y = g / (1 + e^-x) within the tolerance, with the exponential of −|x| so that nothing overflows."""
    e = decay(x)
    whole = add(ONE, e)
    return within(mul(y, whole), g if x.m >= 0 else mul(g, e), mul(_tolerance(y, g), whole))


def _tolerance(y: Real, x: Real) -> Real:
    return add(scaled(add(magnitude(x), magnitude(y)), _TRANSCENDENTAL), ETA)
