"""Each kind's value is the one that IReferee states, rounded once: recomputed here in fractions.

The referee drops bits far below the last one of a float64. Where a rounding turns on such bits,
either neighbour may be the right one, and the leaf is not judged here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest

from core.dispute.referee import Format, Leaf, LeafError, LeafKind, Ruling, exact_value, rule
from core.dispute.referee.exact import VALUES, is_visible
from core.dispute.referee.formats import decode
from core.dispute.referee.real import Real
from tests.core.dispute.referee.leaves import f64
from tests.twins.referee_cases import Cases, float_of

ETA = Fraction(1, 2**1074)
LEAVES = 300
DIGITS = 60
Values = list[Fraction]


@dataclass(frozen=True)
class Value:
    """What an operator's value is, and how far the referee's own arithmetic may be off."""

    exact: Fraction
    off: Fraction = Fraction(0)

    def result(self) -> bytes | None:
        """The nearest float64, none if that is an infinity.

        Raises ValueError where `off` decides.
        """
        low, high = _nearest(self.exact - self.off), _nearest(self.exact + self.off)
        if low != high:
            raise ValueError("either neighbour may be right")
        return low


def _nearest(value: Fraction) -> bytes | None:
    try:
        return struct.pack("<d", float(value) + 0.0)
    except OverflowError:
        return None


Exact = Callable[[tuple[int, ...], Values, Values, Values], Value | None]


def fraction(value: Real) -> Fraction:
    return Fraction(value.m) * Fraction(2) ** value.e


def constant(bits: int) -> Fraction:
    return Fraction(float_of(bits))


def _sum(terms: Sequence[Fraction]) -> Value:
    """A sum drops less than a step a term: 2^-80 of the largest one's unit."""
    largest = max(map(abs, terms))
    return Value(sum(terms, Fraction(0)), len(terms) * (largest / 2**130 + ETA))


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Value:
    return _sum([p * q for p, q in zip(a, b, strict=True)])


def _close(exact: Fraction, size: Fraction | None = None) -> Value:
    """A value that the referee has to some 2^-100 of itself, or of `size`."""
    return Value(exact, abs(exact if size is None else size) / 2**100)


def _score(p: tuple[int, ...], t: Values, _m: Values, _r: Values) -> Value:
    n, factor = p[0], constant(p[1])
    found = _dot(t[1 : n + 1], t[n + 1 :])
    exact = factor * found.exact
    return Value(exact, abs(factor) * found.off + abs(exact) / 2**100)


def _added(a: Fraction, b: Fraction) -> Value:
    """Exact, unless the bits of the two lie too far apart."""
    low, high = sorted((abs(a), abs(b)))
    return Value(a + b, Fraction(0) if high < low * 2**190 else high / 2**120)


def _norm_scale(p: tuple[int, ...], t: Values, _m: Values, _r: Values) -> Value | None:
    mean = t[1] + p[0] * constant(p[1])
    if t[1] < 0 or mean <= 0:
        return None
    return _close(Fraction(decimal(p[0] / mean).sqrt()))


def _rope(p: tuple[int, ...], t: Values, m: Values, _r: Values) -> Value:
    first, second = t[1] * m[0], t[2] * m[1]
    return _close(first - second if p[1] else first + second, abs(first) + abs(second))


def _exponential(_p: tuple[int, ...], t: Values, _m: Values, _r: Values) -> Value | None:
    below = t[2] - t[1]
    if below > 0:
        return None
    return _close(Fraction(0) if below < -3000 else Fraction(decimal(below).exp()))


def _capped(p: tuple[int, ...], t: Values, _m: Values, _r: Values) -> Value:
    x, cap = t[1], constant(p[0])
    return _close(_softcap(x, cap), min(abs(x), cap) if abs(x) < cap / 2**50 else cap)


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


EXACT: dict[LeafKind, Exact] = {
    LeafKind.COPY: lambda p, t, m, r: Value(t[1]),
    LeafKind.STABILISER: lambda p, t, m, r: Value(t[1]),
    LeafKind.INPUT: lambda p, t, m, r: Value(r[0]),
    LeafKind.EMBED: lambda p, t, m, r: Value(constant(p[1]) * m[0]),
    LeafKind.LINEAR: lambda p, t, m, r: _dot(m, t[1:]),
    LeafKind.SUM: lambda p, t, m, r: _sum(t[1:]),
    LeafKind.BIAS_SUM: lambda p, t, m, r: _sum([*t[1:], *m]),
    LeafKind.SQUARES: lambda p, t, m, r: _dot(t[1:], t[1:]),
    LeafKind.NORM_SCALE: _norm_scale,
    LeafKind.NORM: lambda p, t, m, r: _close(t[1] * t[2] * (m[0] + p[1])),
    LeafKind.ROPE: _rope,
    LeafKind.SCORE: _score,
    LeafKind.EXP: _exponential,
    LeafKind.PROBABILITY: lambda p, t, m, r: None if t[1] < 0 or t[2] <= 0 else _close(t[1] / t[2]),
    LeafKind.MIX: lambda p, t, m, r: _dot(t[1 : p[0] + 1], t[p[0] + 1 :]),
    LeafKind.SILU: lambda p, t, m, r: _close(_logistic(t[1], t[1])),
    LeafKind.GELU_TANH: lambda p, t, m, r: _close(_gelu(t[1])),
    LeafKind.PRODUCT: lambda p, t, m, r: Value(t[1] * t[2]),
    LeafKind.ADD: lambda p, t, m, r: _added(t[1], t[2]),
    LeafKind.SCALE: lambda p, t, m, r: Value(constant(p[0]) * t[1]),
    LeafKind.SOFTCAP: _capped,
    LeafKind.WHITEN_DIFFERENCE: lambda p, t, m, r: _close((r[0] - t[1]) / m[0]),
    LeafKind.WHITEN_REFERENCE: lambda p, t, m, r: _close(t[1] / m[0]),
    LeafKind.WHITEN_CHANGE: lambda p, t, m, r: _close((t[1] - t[2]) / m[0]),
}


def judged(leaf: Leaf) -> tuple[Values, Values, Values] | None:
    """Operands of a leaf of the right shape, whose values are all finite; else nothing."""
    try:
        if rule(leaf) not in (Ruling.FAILS, Ruling.HOLDS):
            return None
    except LeafError:
        return None
    model, row = _runs(leaf)
    sizes = [fmt.width_bytes * count for fmt, count in (model, row)]
    end = len(leaf.operands) - sizes[0] - sizes[1]
    trace = decode(leaf.operands[:end], Format.F64)
    if trace is None:
        return None
    found_model = decode(leaf.operands[end : end + sizes[0]], model[0]) or []
    found_row = decode(leaf.operands[end + sizes[0] :], row[0]) or []
    return [*map(fraction, trace)], [*map(fraction, found_model)], [*map(fraction, found_row)]


_ONE_OF_THE_MODEL = {
    LeafKind.EMBED,
    LeafKind.BIAS_SUM,
    LeafKind.NORM,
    LeafKind.WHITEN_REFERENCE,
    LeafKind.WHITEN_CHANGE,
}


def _runs(leaf: Leaf) -> tuple[tuple[Format, int], tuple[Format, int]]:
    none = (Format.F64, 0)
    p = leaf.params
    if leaf.kind is LeafKind.LINEAR:
        return (Format(p[0]), p[1]), none
    if leaf.kind is LeafKind.ROPE:
        return (Format(p[0]), 2), none
    if leaf.kind in _ONE_OF_THE_MODEL:
        return (Format(p[0]), 1), none
    if leaf.kind is LeafKind.INPUT:
        return none, (Format(p[0]), 1)
    if leaf.kind is LeafKind.WHITEN_DIFFERENCE:
        return (Format(p[1]), 1), (Format(p[0]), 1)
    return none, none


def test_a_shaken_value_is_the_product_that_float64_machines_have() -> None:
    seen = 0
    for kind in VALUES:
        for leaf in Cases(7 + kind).leaves(kind, 60):
            if not leaf.shake or judged(leaf) is None:
                continue
            plain, shaken = exact_value(replace(leaf, shake=0)), exact_value(leaf)
            if plain is None:
                assert shaken is None
                continue
            product = struct.unpack("<d", plain)[0] * (1 + leaf.shake / 2**24)
            want = None if math.isinf(product) and plain[-2:] != b"\xf0\xff" else product + 0.0
            assert shaken == (None if want is None else struct.pack("<d", want))
            seen += 1
    assert seen > 200


def test_every_value_has_its_statement() -> None:
    assert set(EXACT) == set(VALUES)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_the_right_result_is_the_stated_value_rounded_once(kind: LeafKind) -> None:
    right = wrong = doubtful = 0
    with localcontext() as context:
        context.prec = DIGITS
        for shaken in Cases(40 + kind).leaves(kind, LEAVES):
            leaf = replace(shaken, shake=0)
            found = judged(leaf)
            if found is None or (kind is LeafKind.SCORE and not is_visible(*leaf.params[2:])):
                continue
            if (
                kind in (LeafKind.COPY, LeafKind.STABILISER)
                and leaf.operands[8:] == bytes(7) + b"\x80"
            ):
                continue  # -0 is copied as it is
            value = EXACT[kind](leaf.params, *found)
            try:
                want = None if value is None else value.result()
            except ValueError:
                doubtful += 1
                continue
            is_right = leaf.operands[:8] == want
            assert rule(leaf) == (Ruling.HOLDS if is_right else Ruling.FAILS), leaf
            right, wrong = right + is_right, wrong + (not is_right)
    assert right > 20
    assert wrong > 20
    assert doubtful < LEAVES / 3


def test_exceeds_is_the_exact_comparison() -> None:
    seen = set()
    for leaf in Cases(91).leaves(LeafKind.EXCEEDS, 600):
        found = judged(leaf)
        if found is None:
            continue
        d2, s2 = found[0]
        tolerance = Fraction(leaf.params[0], 10**12)
        expected = s2 >= 0 and d2 >= Fraction(1, 2**512) and d2 > tolerance**2 * s2
        assert (rule(leaf) == Ruling.HOLDS) == expected, leaf
        seen.add(expected)
    assert seen == {True, False}


def test_a_tolerance_is_strict_at_its_last_bit() -> None:
    """T = 1/2, S² = 4: D² = 1 does not exceed, the next float64 does."""
    for deviation, expected in ((1.0, Ruling.FAILS), (math.nextafter(1.0, 2), Ruling.HOLDS)):
        found = Leaf(LeafKind.EXCEEDS, (5 * 10**11,), f64(deviation, 4.0))
        assert rule(found) == expected
