"""Random leaves for the two referees: honest, one bit off, and absurd.

Operands come in modes: numbers as a model has them, any bit pattern, subnormals and zeros, the ends
of the range, whole numbers whose products and sums lie halfway between two float64, and all of
these in one leaf. A result is what float64 arithmetic gives, the right one, one of its two
neighbours, some units in the last place off, or anything. A verdict has no right result; its result
lies on either side of its bound, which bisection with the Python twin finds. Now and then an
operand is an infinity or NaN, or a length or parameter is wrong.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.dispute.referee import Format, Leaf, LeafError, LeafKind, Ruling, exact_value, rule
from core.dispute.referee.exact import VALUES
from core.dispute.referee.formats import MINUS_INFINITY, decode_bits
from core.dispute.referee.leaf import MalformedOperand
from core.dispute.referee.noise import gumbel

MODEL_FORMATS = (Format.BF16, Format.FP16, Format.FP32)
_SIGN64 = 1 << 63
_ORDINARY, _ANY_BITS, _TINY, _ENDS, _HALFWAY, _MIXED = range(6)
#: Of odd mantissas: products of 27 and 27 or of 24 and 30 bits have 54, one too many for a float64.
_HALFWAY_BITS = {
    Format.F64: (1, 27, 30),
    Format.FP32: (1, 24),
    Format.FP16: (1, 11),
    Format.BF16: (1, 8),
}


def bits_of(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def float_of(bits: int) -> float:
    return float(struct.unpack("<d", bits.to_bytes(8, "little"))[0])


def to_float(bits: int, fmt: Format) -> float:
    """A value of any format as a float; infinities and NaN as NaN."""
    found = decode_bits(bits, fmt)
    return math.nan if found is None else math.ldexp(found.m, found.e)


def moved(bits: int, ulps: int) -> int:
    """The float64 that many units in the last place away, as bits; stops at the infinities."""
    key = bits ^ _SIGN64 if bits < _SIGN64 else ~bits & (2 * _SIGN64 - 1)
    highest = 0x7FF0000000000000 ^ _SIGN64
    key = max(2 * _SIGN64 - 1 - highest, min(highest, key + ulps))
    return key ^ _SIGN64 if key >= _SIGN64 else ~key & (2 * _SIGN64 - 1)


@dataclass(frozen=True)
class Draft:
    """A leaf before packing: values as bits, result first."""

    kind: LeafKind
    params: tuple[int, ...]
    trace: tuple[int, ...]
    model: tuple[Format, tuple[int, ...]] = (Format.F64, ())
    row: tuple[Format, tuple[int, ...]] = (Format.F64, ())
    shake: int = 0

    def leaf(self) -> Leaf:
        runs = ((Format.F64, self.trace), self.model, self.row)
        packed = (v.to_bytes(fmt.width_bytes, "little") for fmt, vs in runs for v in vs)
        return Leaf(self.kind, self.params, b"".join(packed), self.shake)

    def with_result(self, bits: int) -> Draft:
        return replace(self, trace=(bits, *self.trace[1:]))


class Cases:
    """Draws leaves of one kind after the other from one seed."""

    def __init__(self, seed: int, *, longest: int = 256) -> None:
        self._rng = random.Random(seed)
        self._longest = longest
        self._mode = 0

    def leaves(self, kind: LeafKind, count: int) -> list[Leaf]:
        """`count` leaves of this kind, several results to each draw of operands."""
        found: list[Leaf] = []
        while len(found) < count:
            self._mode = self._rng.choices(range(6), (5, 1, 1, 1, 1, 1))[0]
            draft = _BUILDERS[kind](self)
            if kind in VALUES and self._rng.random() < 0.3:
                draft = replace(draft, shake=self._shake())
            if self._rng.random() < 0.04:
                draft = self._poisoned(draft)
            drafts = self._with_results(draft)
            found += [self._spoiled(draft.leaf()) for draft in drafts]
        return found[:count]

    # --- values ---

    def value(self, fmt: Format = Format.F64) -> int:
        """Bits of a value in the current mode."""
        rng = self._rng
        width = 8 * fmt.width_bytes
        mode = rng.randrange(_MIXED) if self._mode == _MIXED else self._mode
        if mode == _ANY_BITS:
            bits = rng.getrandbits(width)
            return bits if decode_bits(bits, fmt) else bits & ~(1 << fmt.fraction_bits)
        if mode == _TINY:
            sign = rng.getrandbits(1) << (width - 1)
            return sign | rng.choice((0, 1, rng.getrandbits(fmt.fraction_bits)))
        if mode == _ENDS:
            limit = (1 << fmt.exponent_bits) - 2
            field = rng.choice((1, 2, limit // 2, limit // 2 + 1, limit - 1, limit))
            fraction = rng.choice((0, 1, (1 << fmt.fraction_bits) - 1))
            sign = rng.getrandbits(1) << (width - 1)
            return sign | field << fmt.fraction_bits | fraction
        if mode == _HALFWAY:
            return self.near(self._halfway(fmt), fmt)
        return self.near(rng.gauss(0, 1) * 10 ** rng.uniform(-2, 2), fmt)

    def _halfway(self, fmt: Format) -> float:
        """A short odd whole number, or an even one beside 2^53, where a float64's step is 2."""
        rng = self._rng
        sign = rng.choice((-1, 1))
        if fmt is Format.F64 and rng.random() < 0.3:
            return float(sign * (2**53 + 2 * rng.randrange(4)))
        bits = rng.choice(_HALFWAY_BITS[fmt])
        return float(sign * (rng.getrandbits(bits) | 1 | 1 << (bits - 1)))

    def near(self, value: float, fmt: Format) -> int:
        if fmt is Format.F64:
            return bits_of(value)
        if fmt is Format.FP16:
            clipped = max(-65504.0, min(65504.0, value))
            return int.from_bytes(struct.pack("<e", clipped), "little")
        single = int.from_bytes(struct.pack("<f", value), "little")
        return single if fmt is Format.FP32 else single >> 16

    def _poisoned(self, draft: Draft) -> Draft:
        """The draft with an infinity or NaN among its operands."""
        run = self._rng.choice(("trace", "model", "row"))
        fmt, values = (Format.F64, draft.trace) if run == "trace" else getattr(draft, run)
        if not values:
            return draft
        place = self._rng.randrange(len(values))
        spoilt = (*values[:place], self._not_finite(fmt), *values[place + 1 :])
        return replace(draft, **{run: spoilt if run == "trace" else (fmt, spoilt)})

    def _not_finite(self, fmt: Format) -> int:
        infinity = ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits
        sign = self._rng.getrandbits(1) << (8 * fmt.width_bytes - 1)
        return sign | infinity | self._rng.choice((0, 1, 1 << (fmt.fraction_bits - 1)))

    def values(self, count: int, fmt: Format = Format.F64) -> tuple[int, ...]:
        return tuple(self.value(fmt) for _ in range(count))

    def _shake(self) -> int:
        """A value's own sign in float32 or bfloat16, and what it shares."""
        own = self._rng.choice((1, 1 << 15))
        return sum(self._rng.choice((-step, 0, step)) for step in (own, 1, 4, 16))

    def terms(self) -> int:
        rng = self._rng
        return rng.randint(1, self._longest if rng.random() < 0.05 else min(24, self._longest))

    def model_format(self) -> Format:
        return self._rng.choice(MODEL_FORMATS)

    def positive(self, low: float = 0.01, high: float = 100.0) -> int:
        return bits_of(math.exp(self._rng.uniform(math.log(low), math.log(high))))

    # --- results ---

    def _with_results(self, draft: Draft) -> list[Draft]:
        """The drawn result, others some units or parts off, two of the edge, and an absurd one."""
        rng = self._rng
        result = draft.trace[0]
        near = moved(result, rng.choice((-1, 1)) * rng.randint(1, 1 << 14))
        factor = 1 + rng.choice((-1, 1)) * 2.0 ** rng.uniform(-60, -8)
        edge = self._beside(draft) if draft.kind in VALUES else self._at_the_bound(draft)
        others = [near, bits_of(float_of(result) * factor), *edge, self.value()]
        return [draft, *(draft.with_result(bits) for bits in others)]

    def _beside(self, draft: Draft) -> list[int]:
        """The right result and one of its two neighbours, if there is a right one."""
        try:
            right = exact_value(draft.with_result(0).leaf())
        except (LeafError, MalformedOperand):
            return []
        if right is None:
            return []
        bits = int.from_bytes(right, "little")
        return [bits, moved(bits, self._rng.choice((-1, 1)))]

    def _at_the_bound(self, draft: Draft) -> list[int]:
        """Two neighbouring results between which the ruling changes, if it does within reach."""
        here, away = 0, self._rng.choice((-1, 1)) * (1 << self._rng.randint(1, 54))
        ruling = self._ruling(draft, here)
        if self._ruling(draft, away) == ruling:
            return []
        while abs(away - here) > 1:
            middle = (here + away) // 2
            if self._ruling(draft, middle) == ruling:
                here = middle
            else:
                away = middle
        return [moved(draft.trace[0], here), moved(draft.trace[0], away)]

    def _ruling(self, draft: Draft, ulps: int) -> Ruling:
        return rule(draft.with_result(moved(draft.trace[0], ulps)).leaf())

    def _spoiled(self, leaf: Leaf) -> Leaf:
        """The leaf, or now and then one that no program would ask for."""
        rng = self._rng
        if rng.random() > 0.03:
            return leaf
        choice = rng.randrange(4)
        if choice == 0:
            return replace(leaf, operands=leaf.operands[: rng.randrange(len(leaf.operands))])
        if choice == 1:
            return replace(leaf, operands=leaf.operands + bytes(rng.randint(1, 40)))
        if choice == 2 or not leaf.params:
            return replace(leaf, params=(*leaf.params, 0))
        at = rng.randrange(len(leaf.params))
        wrong = rng.choice((0, 1, 257, 2**32, 2**64, 2**256 - 1, bits_of(math.inf)))
        return replace(leaf, params=(*leaf.params[:at], wrong, *leaf.params[at + 1 :]))

    @property
    def rng(self) -> random.Random:
        return self._rng


def _finite(compute: Callable[[], float]) -> int:
    """Bits of an honest result; of zero where a float64 machine would have none."""
    try:
        value = compute()
    except (OverflowError, ZeroDivisionError, ValueError):
        return 0
    return bits_of(value) if math.isfinite(value) else 0


def _floats(bits: tuple[int, ...], fmt: Format = Format.F64) -> list[float]:
    return [to_float(b, fmt) for b in bits]


def _copy(c: Cases) -> Draft:
    x = c.value()
    return Draft(LeafKind.COPY, (), (x, x))


def _input(c: Cases) -> Draft:
    fmt = c.model_format()
    x = c.value(fmt)
    return Draft(LeafKind.INPUT, (fmt,), (_finite(lambda: to_float(x, fmt)),), row=(fmt, (x,)))


def _embed(c: Cases) -> Draft:
    fmt, scale = c.model_format(), c.positive()
    w = c.value(fmt)
    y = _finite(lambda: to_float(w, fmt) * float_of(scale))
    return Draft(LeafKind.EMBED, (fmt, scale), (y,), (fmt, (w,)))


def _linear(c: Cases) -> Draft:
    fmt, n = c.model_format(), c.terms()
    w, x = c.values(n, fmt), c.values(n)
    y = _finite(lambda: sum(a * b for a, b in zip(_floats(w, fmt), _floats(x), strict=True)))
    return Draft(LeafKind.LINEAR, (fmt, n), (y, *x), (fmt, w))


def _sum(c: Cases) -> Draft:
    n = c.terms()
    x = c.values(n)
    return Draft(LeafKind.SUM, (n,), (_finite(lambda: sum(_floats(x))), *x))


def _bias_sum(c: Cases) -> Draft:
    fmt, n = c.model_format(), min(c.terms(), 255)
    x, b = c.values(n), c.value(fmt)
    y = _finite(lambda: sum(_floats(x)) + to_float(b, fmt))
    return Draft(LeafKind.BIAS_SUM, (fmt, n), (y, *x), (fmt, (b,)))


def _squares(c: Cases) -> Draft:
    n = c.terms()
    x = c.values(n)
    return Draft(LeafKind.SQUARES, (n,), (_finite(lambda: sum(v * v for v in _floats(x))), *x))


def _norm_scale(c: Cases) -> Draft:
    n = c.rng.choice((1, 64, 640, 8192, 2**32 - 1))
    epsilon = bits_of(c.rng.choice((1e-6, 1e-5, 1e-12)))
    q = c.value() & ~_SIGN64 if c.rng.random() < 0.9 else c.value()
    r = _finite(lambda: 1 / math.sqrt(float_of(q) / n + float_of(epsilon)))
    return Draft(LeafKind.NORM_SCALE, (n, epsilon), (r, q))


def _norm(c: Cases) -> Draft:
    fmt, plus_one = c.model_format(), c.rng.getrandbits(1)
    x, r, w = c.value(), c.value(), c.value(fmt)
    gain = to_float(w, fmt) + plus_one
    y = _finite(lambda: float_of(x) * float_of(r) * gain)
    return Draft(LeafKind.NORM, (fmt, plus_one), (y, x, r), (fmt, (w,)))


def _rope(c: Cases) -> Draft:
    fmt, minus = c.rng.choice((Format.FP32, Format.F64)), c.rng.getrandbits(1)
    angle = c.rng.uniform(0, 7)
    turn = (c.near(math.cos(angle), fmt), c.near(math.sin(angle), fmt))
    table = turn if c.rng.random() < 0.8 else c.values(2, fmt)
    a, b = c.values(2)
    cos, sin = _floats(table, fmt)
    second = -float_of(b) * sin if minus else float_of(b) * sin
    y = _finite(lambda: float_of(a) * cos + second)
    return Draft(LeafKind.ROPE, (fmt, minus), (y, a, b), (fmt, table))


def _score(c: Cases) -> Draft:
    n, scale = c.terms(), c.positive()
    q, k = c.values(n), c.values(n)
    position = c.rng.randint(0, 50)
    key, window = c.rng.randint(0, position + 3), c.rng.choice((0, 0, 16))
    params = (n, scale, position, key, window)
    if c.rng.random() < 0.1:
        return Draft(LeafKind.SCORE, params, (int.from_bytes(MINUS_INFINITY, "little"), *q, *k))
    pairs = zip(_floats(q), _floats(k), strict=True)
    y = _finite(lambda: sum(a * b for a, b in pairs) * float_of(scale))
    return Draft(LeafKind.SCORE, params, (y, *q, *k))


def _stabiliser(c: Cases) -> Draft:
    s = c.value()
    m = _finite(lambda: float_of(s) + c.rng.choice((0.0, -1.0, 60.0, c.rng.uniform(-3, 70))))
    return Draft(LeafKind.STABILISER, (), (m, s))


def _exp(c: Cases) -> Draft:
    m = c.value()
    below = c.rng.choice((c.rng.uniform(-1, 60), c.rng.uniform(0, 1200), 0.0))
    s = _finite(lambda: float_of(m) - below)
    if c.rng.random() < 0.05:
        s = int.from_bytes(MINUS_INFINITY, "little")
        return Draft(LeafKind.EXP, (), (c.rng.choice((0, _SIGN64, 1)), m, s))
    return Draft(LeafKind.EXP, (), (_finite(lambda: math.exp(float_of(s) - float_of(m))), m, s))


def _probability(c: Cases) -> Draft:
    e, z = c.value() & ~_SIGN64, c.value() & ~_SIGN64
    return Draft(LeafKind.PROBABILITY, (), (_finite(lambda: float_of(e) / float_of(z)), e, z))


def _mix(c: Cases) -> Draft:
    n = c.terms()
    p, v = c.values(n), c.values(n)
    pairs = zip(_floats(p), _floats(v), strict=True)
    return Draft(LeafKind.MIX, (n,), (_finite(lambda: sum(a * b for a, b in pairs)), *p, *v))


def _silu(c: Cases) -> Draft:
    g = c.value()
    return Draft(LeafKind.SILU, (), (_finite(lambda: silu(float_of(g))), g))


def silu(g: float) -> float:
    return g / (1 + math.exp(-g)) if g >= 0 else g * math.exp(g) / (1 + math.exp(g))


def _gelu(c: Cases) -> Draft:
    g = c.value()
    return Draft(LeafKind.GELU_TANH, (), (_finite(lambda: gelu(float_of(g))), g))


def gelu(g: float) -> float:
    inner = math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)
    return 0.5 * g * (1 + math.tanh(inner))


def _product(c: Cases) -> Draft:
    a, b = c.values(2)
    return Draft(LeafKind.PRODUCT, (), (_finite(lambda: float_of(a) * float_of(b)), a, b))


def _add(c: Cases) -> Draft:
    a, b = c.values(2)
    if c.rng.random() < 0.2:
        b = moved(a ^ _SIGN64, c.rng.randint(-5, 5))
    return Draft(LeafKind.ADD, (), (_finite(lambda: float_of(a) + float_of(b)), a, b))


def _scale(c: Cases) -> Draft:
    scale, x = c.positive(), c.value()
    return Draft(LeafKind.SCALE, (scale,), (_finite(lambda: float_of(scale) * float_of(x)), x))


def _softcap(c: Cases) -> Draft:
    cap = bits_of(c.rng.choice((30.0, 50.0, 0.1, 5e-324, 1e300)))
    infinity = int.from_bytes(MINUS_INFINITY, "little")
    if c.rng.random() < 0.05:
        return Draft(LeafKind.SOFTCAP, (cap,), (infinity, infinity))
    x = c.value()
    bound = float_of(cap)
    y = _finite(lambda: bound * math.tanh(float_of(x) / bound))
    return Draft(LeafKind.SOFTCAP, (cap,), (y, x))


def _whiten_difference(c: Cases) -> Draft:
    row_format, sigma_format = c.model_format(), c.rng.choice((Format.FP32, Format.F64))
    y, s = c.value(row_format), c.value()
    if c.rng.random() < 0.5:
        s = bits_of(to_float(y, row_format) * (1 + c.rng.gauss(0, 1e-3)))
    sigma = c.value(sigma_format)
    if c.rng.random() < 0.95:
        sigma &= (1 << (8 * sigma_format.width_bytes - 1)) - 1
    d = _finite(lambda: (to_float(y, row_format) - float_of(s)) / to_float(sigma, sigma_format))
    return Draft(
        LeafKind.WHITEN_DIFFERENCE,
        (row_format, sigma_format),
        (d, s),
        (sigma_format, (sigma,)),
        (row_format, (y,)),
    )


def _whiten_reference(c: Cases) -> Draft:
    fmt = c.rng.choice((Format.FP32, Format.F64))
    s, sigma = c.value(), c.value(fmt)
    if c.rng.random() < 0.95:
        sigma &= (1 << (8 * fmt.width_bytes - 1)) - 1
    d = _finite(lambda: float_of(s) / to_float(sigma, fmt))
    return Draft(LeafKind.WHITEN_REFERENCE, (fmt,), (d, s), (fmt, (sigma,)))


def _whiten_change(c: Cases) -> Draft:
    fmt = c.rng.choice((Format.FP32, Format.F64))
    a, b, sigma = c.value(), c.value(), c.value(fmt)
    if c.rng.random() < 0.95:
        sigma &= (1 << (8 * fmt.width_bytes - 1)) - 1
    d = _finite(lambda: (float_of(a) - float_of(b)) / to_float(sigma, fmt))
    return Draft(LeafKind.WHITEN_CHANGE, (fmt,), (d, a, b), (fmt, (sigma,)))


def _exceeds(c: Cases) -> Draft:
    tolerance = c.rng.choice((0, 1, 10**7, 15 * 10**9, 10**12, 2**50))
    s2 = c.value() & ~_SIGN64 if c.rng.random() < 0.9 else c.value()
    d2 = _finite(lambda: (tolerance / 1e12) ** 2 * float_of(s2))
    return Draft(LeafKind.EXCEEDS, (tolerance,), (d2, s2))


def _greedy(c: Cases) -> Draft:
    delta = c.rng.choice((0, 10_000, 1_000_000))
    served = c.value()
    preferred = _finite(lambda: float_of(served) + delta / 1e6)
    return Draft(LeafKind.GREEDY, (delta,), (preferred, served))


def _gumbel(c: Cases) -> Draft:
    rng = c.rng
    delta, tau = rng.choice((0, 10_000, 1_000_000)), rng.choice((1, 300_000, 800_000, 2_000_000))
    key = (rng.getrandbits(32), rng.getrandbits(32))
    step, j, token = rng.randrange(2048), rng.getrandbits(18), rng.getrandbits(18)
    min_p, top_k = rng.choice((0, 50_000, 999_999)), rng.choice((0, 1, 50))
    served = c.value()
    ahead = (gumbel(key, step, token) - gumbel(key, step, j)) / 2**120 + delta / 1e6
    preferred = _finite(lambda: float_of(served) + ahead * tau / 1e6)
    value = float_of(preferred)
    largest = _finite(lambda: value + rng.choice((0, 1, 3)))
    theta = _finite(lambda: value - rng.choice((0.5, 1, 2)) * delta * tau / 1e12)
    params = (delta, tau, *key, step, j, token, min_p, top_k)
    counted = bits_of(float(top_k + rng.choice((-1, 0, 1))))
    return Draft(LeafKind.GUMBEL, params, (preferred, served, largest, theta, counted))


def _outside_min_p(c: Cases) -> Draft:
    delta, tau = c.rng.choice((0, 10_000)), c.rng.choice((1, 800_000))
    min_p = c.rng.choice((1, 50_000, 10**6))
    served = c.value()
    gap = (delta / 1e6 - math.log(min_p / 1e6)) * tau / 1e6
    return Draft(
        LeafKind.OUTSIDE_MIN_P,
        (delta, tau, min_p),
        (_finite(lambda: float_of(served) + gap), served),
    )


_BUILDERS: dict[LeafKind, Callable[[Cases], Draft]] = {
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
    LeafKind.EXP: _exp,
    LeafKind.PROBABILITY: _probability,
    LeafKind.MIX: _mix,
    LeafKind.SILU: _silu,
    LeafKind.GELU_TANH: _gelu,
    LeafKind.PRODUCT: _product,
    LeafKind.ADD: _add,
    LeafKind.SCALE: _scale,
    LeafKind.SOFTCAP: _softcap,
    LeafKind.WHITEN_DIFFERENCE: _whiten_difference,
    LeafKind.WHITEN_REFERENCE: _whiten_reference,
    LeafKind.WHITEN_CHANGE: _whiten_change,
    LeafKind.EXCEEDS: _exceeds,
    LeafKind.GREEDY: _greedy,
    LeafKind.GUMBEL: _gumbel,
    LeafKind.OUTSIDE_MIN_P: _outside_min_p,
}
