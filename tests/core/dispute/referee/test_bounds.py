"""Each predicate is the inequality that its docstring states: recomputed here in fractions, on ordinary and absurd operands.

Inside the bound a leaf must hold, always. Outside it must fail as soon as the excess is larger than what the referee's
own arithmetic may forgive: 2^-20 of the bound, 2^-88 of the values, a few of the smallest float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest

from core.dispute.referee import Format, Kind, Leaf, LeafError, Ruling, check
from core.dispute.referee.attention import is_visible
from core.dispute.referee.formats import LAYOUTS, MINUS_INFINITY, decode
from core.dispute.referee.real import Real
from tests.core.dispute.referee.leaves import f64
from tests.twins.referee_cases import Cases, float_of

U = Fraction(1, 2**50)
ETA = Fraction(1, 2**1074)
LEAVES = 150
DIGITS = 60


@dataclass(frozen=True)
class Claim:
    """|left − right| ≤ bound, and how many of the smallest float64 are forgiven beyond."""

    left: Fraction
    right: Fraction
    bound: Fraction
    crumbs: Fraction = Fraction(8)

    def is_inside(self) -> bool:
        return abs(self.left - self.right) <= self.bound

    def is_outside(self) -> bool:
        forgiven = self.bound / 2**20 + self.crumbs * ETA
        forgiven += (abs(self.left) + abs(self.right)) / 2**88
        return abs(self.left - self.right) > self.bound + forgiven


Values = list[Fraction]
Exact = Callable[[tuple[int, ...], Values, Values, Values], Claim]


def fraction(value: Real) -> Fraction:
    return Fraction(value.m) * Fraction(2) ** value.e


def gamma(n: int) -> Fraction:
    return n * U / (1 - n * U)


def constant(bits: int) -> Fraction:
    return Fraction(float_of(bits))


def _sum(y: Fraction, terms: Values, n: int, factor: Fraction = Fraction(1)) -> Claim:
    size = abs(factor) * sum(map(abs, terms))
    crumbs = 2 * (n + 2) * max(Fraction(1), abs(factor))
    return Claim(y, factor * sum(terms), gamma(n) * size, crumbs)


def _dot(y: Fraction, a: Values, b: Values, n: int, factor: Fraction = Fraction(1)) -> Claim:
    return _sum(y, [p * q for p, q in zip(a, b, strict=True)], n, factor)


def _score(p: tuple[int, ...], t: Values, _m: Values, _r: Values) -> Claim:
    n = p[0]
    return _dot(t[0], t[1 : n + 1], t[n + 1 :], n + 2, constant(p[1]))


def _norm(p: tuple[int, ...], t: Values, m: Values, _r: Values) -> Claim:
    gain = m[0] + p[1]
    crumbs = abs(t[1]) + abs(t[2]) + abs(gain) + 1
    return Claim(t[0], t[1] * t[2] * gain, 4 * U * abs(t[0]) + crumbs * ETA, crumbs)


def _rope(p: tuple[int, ...], t: Values, m: Values, _r: Values) -> Claim:
    first, second = t[1] * m[0], t[2] * m[1]
    turned = first - second if p[1] else first + second
    return Claim(t[0], turned, 3 * U * (abs(first) + abs(second)) + 3 * ETA)


def _quotient(d: Fraction, dividend: Fraction, sigma: Fraction) -> Claim:
    bound = 4 * U * abs(d * sigma) + (1 + sigma) * ETA
    return Claim(d * sigma, dividend, bound, 8 * (1 + sigma))


def _product(y: Fraction, a: Fraction, b: Fraction) -> Claim:
    return Claim(y, a * b, U * abs(y) + ETA)


EXACT: dict[Kind, Exact] = {
    Kind.INPUT: lambda p, t, m, r: Claim(t[0], r[0], Fraction(0), Fraction(0)),
    Kind.EMBED: lambda p, t, m, r: _product(t[0], constant(p[1]), m[0]),
    Kind.LINEAR: lambda p, t, m, r: _dot(t[0], m, t[1:], p[1]),
    Kind.SUM: lambda p, t, m, r: _sum(t[0], t[1:], p[0]),
    Kind.BIAS_SUM: lambda p, t, m, r: _sum(t[0], [*t[1:], *m], p[1] + 1),
    Kind.SQUARES: lambda p, t, m, r: _dot(t[0], t[1:], t[1:], p[0]),
    Kind.NORM_SCALE: lambda p, t, m, r: Claim(
        t[0] ** 2 * (t[1] + p[0] * constant(p[1])), Fraction(p[0]), 16 * U * p[0]
    ),
    Kind.NORM: _norm,
    Kind.ROPE: _rope,
    Kind.SCORE: _score,
    Kind.PROBABILITY: lambda p, t, m, r: Claim(
        t[0] * t[2], t[1], 4 * U * t[1] + (1 + t[2]) * ETA, 8 * (1 + t[2])
    ),
    Kind.MIX: lambda p, t, m, r: _dot(t[0], t[1 : p[0] + 1], t[p[0] + 1 :], p[0]),
    Kind.PRODUCT: lambda p, t, m, r: _product(*t),
    Kind.ADD: lambda p, t, m, r: Claim(t[0], t[1] + t[2], U * abs(t[0]), Fraction(0)),
    Kind.SCALE: lambda p, t, m, r: _product(t[0], constant(p[0]), t[1]),
    Kind.WHITEN_DIFFERENCE: lambda p, t, m, r: _quotient(t[0], r[0] - t[1], m[0]),
    Kind.WHITEN_REFERENCE: lambda p, t, m, r: _quotient(t[0], t[1], m[0]),
}

#: Signs that a kind asks for besides its inequality, of trace values by index.
POSITIVE = {Kind.NORM_SCALE: (0,), Kind.PROBABILITY: (2,)}
NOT_NEGATIVE = {Kind.NORM_SCALE: (1,), Kind.PROBABILITY: (0, 1)}


def judged(leaf: Leaf) -> tuple[Values, Values, Values] | None:
    """Operands of a leaf of the right shape, whose values are all finite; else nothing."""
    try:
        if check(leaf) not in (Ruling.FAILS, Ruling.HOLDS):
            return None
    except LeafError:
        return None
    model, row = _runs(leaf)
    sizes = [LAYOUTS[fmt].width_bytes * count for fmt, count in (model, row)]
    end = len(leaf.operands) - sizes[0] - sizes[1]
    trace = decode(leaf.operands[:end], Format.F64)
    if trace is None:
        return None
    found_model = decode(leaf.operands[end : end + sizes[0]], model[0]) or []
    found_row = decode(leaf.operands[end + sizes[0] :], row[0]) or []
    return [*map(fraction, trace)], [*map(fraction, found_model)], [*map(fraction, found_row)]


def _runs(leaf: Leaf) -> tuple[tuple[Format, int], tuple[Format, int]]:
    none = (Format.F64, 0)
    p = leaf.params
    if leaf.kind is Kind.LINEAR:
        return (Format(p[0]), p[1]), none
    if leaf.kind is Kind.ROPE:
        return (Format(p[0]), 2), none
    if leaf.kind in (Kind.EMBED, Kind.BIAS_SUM, Kind.NORM, Kind.WHITEN_REFERENCE):
        return (Format(p[0]), 1), none
    if leaf.kind is Kind.INPUT:
        return none, (Format(p[0]), 1)
    if leaf.kind is Kind.WHITEN_DIFFERENCE:
        return (Format(p[1]), 1), (Format(p[0]), 1)
    return none, none


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_the_predicate_is_the_stated_inequality(kind: Kind) -> None:
    inside = outside = 0
    for leaf in Cases(40 + kind).leaves(kind, LEAVES):
        found = judged(leaf)
        if found is None or (kind is Kind.SCORE and not is_visible(*leaf.params[2:])):
            continue
        claim = EXACT[kind](leaf.params, *found)
        signs = all(found[0][i] > 0 for i in POSITIVE.get(kind, ()))
        signs &= all(found[0][i] >= 0 for i in NOT_NEGATIVE.get(kind, ()))
        if signs and claim.is_inside():
            assert check(leaf) == Ruling.HOLDS, leaf
            inside += 1
        elif not signs or claim.is_outside():
            assert check(leaf) == Ruling.FAILS, leaf
            outside += 1
    assert inside > 10
    assert outside > 10


def decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _logistic(g: Fraction, x: Fraction) -> Fraction:
    """g / (1 + e^-x) to sixty digits."""
    if x < -3000:
        return Fraction(0)
    return g / (1 + Fraction((-decimal(min(x, Fraction(3000)))).exp()))


def _gelu(g: Fraction) -> Fraction:
    root = Fraction(
        (2 / Decimal("3.14159265358979323846264338327950288419716939937510582097")).sqrt()
    )
    return _logistic(g, 2 * root * (g + Fraction(44_715, 10**6) * g**3))


def _softcap(x: Fraction, cap: Fraction) -> Fraction:
    z = abs(x) / cap
    if z > 3000:
        size = cap
    elif z < Fraction(1, 10**20):
        size = abs(x)
    else:
        e = Fraction((-2 * decimal(z)).exp())
        size = cap * (1 - e) / (1 + e)
    return size if x > 0 else -size


def _is_transcendental_claim(leaf: Leaf, t: Values) -> Claim:
    if leaf.kind is Kind.EXP:
        d = t[2] - t[1]
        exact = Fraction(0) if d < -3000 else Fraction(decimal(min(d, Fraction(3000))).exp())
        return Claim(t[0], exact, t[0] / 2**40 + ETA * 2**52)
    exact = {
        Kind.SILU: lambda: _logistic(t[1], t[1]),
        Kind.GELU_TANH: lambda: _gelu(t[1]),
        Kind.SOFTCAP: lambda: _softcap(t[1], constant(leaf.params[0])),
    }[leaf.kind]()
    return Claim(t[0], exact, (abs(t[0]) + abs(t[1])) / 2**40 + ETA)


@pytest.mark.parametrize(
    "kind", [Kind.EXP, Kind.SILU, Kind.GELU_TANH, Kind.SOFTCAP], ids=lambda kind: kind.name
)
def test_transcendental_predicates_are_the_stated_ones(kind: Kind) -> None:
    """Sixty digits leave a doubt of 10^-50: leaves that close to a bound are not judged here."""
    inside = outside = 0
    with localcontext() as context:
        context.prec = DIGITS
        for leaf in Cases(70 + kind).leaves(kind, LEAVES):
            found = judged(leaf)
            if found is None or MINUS_INFINITY in (leaf.operands[8:16], leaf.operands[16:24]):
                continue
            claim = _is_transcendental_claim(leaf, found[0])
            close = abs(claim.left - claim.right) - claim.bound
            doubt = (abs(claim.left) + abs(claim.right)) / 10**50
            if (kind is not Kind.EXP or found[0][0] >= 0) and close < -doubt:
                assert check(leaf) == Ruling.HOLDS, leaf
                inside += 1
            elif claim.is_outside():
                assert check(leaf) == Ruling.FAILS, leaf
                outside += 1
    assert inside > 10
    assert outside > 10


def test_exceeds_is_the_exact_comparison() -> None:
    seen = set()
    for leaf in Cases(91).leaves(Kind.EXCEEDS, 600):
        found = judged(leaf)
        if found is None:
            continue
        d2, s2 = found[0]
        tolerance = Fraction(leaf.params[0], 10**12)
        expected = s2 >= 0 and d2 >= Fraction(1, 2**512) and d2 > tolerance**2 * s2
        assert (check(leaf) == Ruling.HOLDS) == expected, leaf
        seen.add(expected)
    assert seen == {True, False}


def test_a_tolerance_is_strict_at_its_last_bit() -> None:
    """T = 1/2, S² = 4: D² = 1 does not exceed, the next float64 does."""
    for deviation, expected in ((1.0, Ruling.FAILS), (math.nextafter(1.0, 2), Ruling.HOLDS)):
        found = Leaf(Kind.EXCEEDS, (5 * 10**11,), f64(deviation, 4.0))
        assert check(found) == expected
