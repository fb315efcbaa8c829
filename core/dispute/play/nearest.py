"""What is the nearest float64 to each operator's value?

The arithmetic of traces, over whole arrays. Each value is computed to some 2^-80 of its operands'
size; where that does not settle how it rounds, the referee's own algorithm is asked, element by
element. So every machine gets the bits that `core.dispute.referee.exact` defines (`docs/trust.md`
§5).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from core.dispute.play.doubles import (
    PAIR_ERROR,
    Pair,
    Running,
    add_pairs,
    divided,
    exp_pair,
    rooted,
    times,
    two_product,
    two_sum,
)
from core.dispute.play.operators import Floats, Plain
from core.dispute.referee import Format, Leaf, LeafKind
from core.dispute.referee.exact import CUBIC, TWO_ROOT, exact_value
from core.dispute.referee.real import Real

_SLICE_BITS = 22  # two slices' products of 128 terms, and four of those together, fit 53 bits
_SLICES = 4
_DROPPED = (
    2.0**-78
)  # of the product of the largest operands: what slices beyond the fourth could add
_SMALL, _LARGE = 2.0**-900, 2.0**900  # outside, pairs may be no longer exact
_BLOCK_VALUES = 1 << 21
_NUMBER = struct.Struct("<d")
Fallback = Callable[[tuple[int, ...]], float]


class Nearest(Plain):
    """Operators on arrays, each value the nearest float64."""

    def __init__(self, part_terms: int) -> None:
        super().__init__(part_terms)
        self.asked = 0  # elements that the referee's algorithm had to settle

    def linear(self, x: Floats, weight: Any, bias: Any | None) -> Floats:
        found = np.empty((len(x), len(weight)))
        step = max(1, _BLOCK_VALUES // max(len(x), x.shape[1]))
        for at in range(0, len(weight), step):
            w = weight[at : at + step]
            b = None if bias is None else bias[at : at + step]
            found[:, at : at + step] = self._linear(x, w, b)
        return found

    def _linear(self, x: Floats, weight: Any, bias: Any | None) -> Floats:
        parts = []
        for at in range(0, x.shape[1], self._terms):
            a, w = x[:, at : at + self._terms], weight[:, at : at + self._terms]

            def ask(i: tuple[int, ...], a: Any = a, w: Any = w) -> float:
                return _asked(LeafKind.LINEAR, (Format.FP32, a.shape[1]), a[i[0]], w[i[1]])

            parts.append(self._dot(a, w.astype(np.float64), ask))
        if bias is None:
            return self._sum(parts)
        wide = np.broadcast_to(bias.astype(np.float64), parts[0].shape)
        ask_sum = _each(LeafKind.BIAS_SUM, (Format.FP32, len(parts)), parts, [wide])
        return self._sum_of([*parts, wide], ask_sum)

    def squares(self, x: Floats) -> Floats:
        """x [..., n], in parts as every reduction."""
        parts = []
        for at in range(0, x.shape[-1], self._terms):
            part = x[..., at : at + self._terms]
            high, low = two_product(part, part)

            def ask(i: tuple[int, ...], part: Any = part) -> float:
                return _asked(LeafKind.SQUARES, (part.shape[-1],), part[i])

            running = Running(high[..., 0])
            running.add(low[..., 0])
            for column in range(1, part.shape[-1]):
                running.add(high[..., column])
                running.add(low[..., column])
            small = np.abs(part).max(axis=-1) < 2.0**-450
            parts.append(self._settled(*running.result(), ask, doubt=small))
        return self._sum(parts)

    def total(self, x: Floats) -> Floats:
        parts = []
        for at in range(0, x.shape[-1], self._terms):
            parts.append(
                self._sum([x[..., i] for i in range(at, min(at + self._terms, x.shape[-1]))])
            )
        return self._sum(parts)

    def norm_scale(self, q: Floats, n: int, epsilon: float) -> Floats:
        (bits,) = struct.unpack("<Q", _NUMBER.pack(epsilon))
        whole, zero = np.full_like(q, float(n)), np.zeros_like(q)
        mean = add_pairs((q, zero), two_product(np.full_like(q, epsilon), whole))
        known = (q >= 0) & (mean[0] > _SMALL) & (mean[0] < _LARGE)
        mean = np.where(known, mean[0], 1.0), np.where(known, mean[1], 0.0)
        found = rooted(divided((whole, zero), mean))
        ask = _each(LeafKind.NORM_SCALE, (n, bits), [q])
        return self._settled(found, found[0] * PAIR_ERROR, ask, doubt=~known)

    def norm(self, x: Floats, r: Floats, gain: Floats, plus: int) -> Floats:
        sizes = np.broadcast(x, r, gain)
        wide = np.broadcast_to(gain, sizes.shape)
        x, r = np.broadcast_to(x, sizes.shape), np.broadcast_to(r, sizes.shape)
        product = times(two_product(x, r), two_sum(np.full(sizes.shape, float(plus)), wide))
        ask = _each(LeafKind.NORM, (Format.FP32, plus), [x, r], [wide])
        zero = (x == 0) | (plus + wide == 0)
        return self._settled(product, np.abs(product[0]) * PAIR_ERROR, ask, zero=zero)

    def rotate(self, a: Floats, b: Floats, c: Floats, s: Floats, minus: bool) -> Floats:
        c, s = np.broadcast_to(c, a.shape), np.broadcast_to(s, a.shape)
        first, second = two_product(a, c), two_product(b, s)
        if minus:
            second = (-second[0], -second[1])
        found = add_pairs(first, second)
        ask = _each(LeafKind.ROPE, (Format.FP32, int(minus)), [a, b], [c, s])
        off = (np.abs(first[0]) + np.abs(second[0])) * 2.0**-100
        return self._settled(found, off, ask, zero=(first[0] == 0) & (second[0] == 0))

    def score(self, q: Floats, k: Floats, scale: float) -> Floats:
        (bits,) = struct.unpack("<Q", _NUMBER.pack(scale))

        def ask(i: tuple[int, ...]) -> float:
            params = (q.shape[1], bits, 0, 0, 0)
            return _asked(LeafKind.SCORE, params, np.concatenate([q[i[0]], k[i[1]]]))

        if q.shape[1] <= 128:
            return self._dot(q, k, ask, factor=scale)
        # One leaf, but more terms than slices have room for: two halves, added before anything is
        # rounded.
        halves = [_sliced_dot(q[:, h], k[:, h]) for h in (slice(0, 128), slice(128, None))]
        found = add_pairs(halves[0][0], halves[1][0])
        off = (halves[0][1] + halves[1][1]) * 2
        return self._scaled(found, off, scale, ask)

    def exp(self, s: Floats, m: Floats) -> Floats:
        m = np.broadcast_to(m, s.shape)
        hidden = np.isneginf(s)
        x = two_sum(np.where(hidden, m, s), -m)
        far = x[0] < -600
        found, power = exp_pair((np.where(far, 0.0, x[0]), np.where(far, 0.0, x[1])))
        pair = (np.ldexp(found[0], power), np.ldexp(found[1], power))
        one = (x[0] == 0) & (x[1] == 0)
        ask, off = _each(LeafKind.EXP, (), [m, s]), np.abs(pair[0]) * PAIR_ERROR
        out = self._settled(pair, off, ask, zero=hidden, doubt=far, known=one)
        return np.where(one & ~hidden, 1.0, out)

    def probability(self, e: Floats, z: Floats) -> Floats:
        return _positive(e / z)

    def mix(self, p: Floats, v: Floats) -> Floats:
        parts = []
        for at in range(0, p.shape[1], self._terms):
            a, w = p[:, at : at + self._terms], v[:, at : at + self._terms]

            def ask(i: tuple[int, ...], a: Any = a, w: Any = w) -> float:
                return _asked(LeafKind.MIX, (a.shape[1],), np.concatenate([a[i[0]], w[i[1]]]))

            parts.append(self._dot(a, w, ask))
        return self._sum(parts)

    def silu(self, g: Floats) -> Floats:
        return self._gated(g, (g, np.zeros_like(g)), _each(LeafKind.SILU, (), [g]))

    def gelu_tanh(self, g: Floats) -> Floats:
        clipped = np.clip(g, -1e3, 1e3)
        whole: Pair = (clipped, np.zeros_like(g))
        cubed = times(times(times(whole, whole), whole), _constant(CUBIC, g))
        x = times(add_pairs(whole, cubed), _constant(TWO_ROOT, g))
        return self._gated(g, x, _each(LeafKind.GELU_TANH, (), [g]))

    def product(self, a: Floats, b: Floats) -> Floats:
        return _positive(a * b)

    def add(self, a: Floats, b: Floats) -> Floats:
        return _positive(a + b)

    def scale(self, x: Floats, factor: float) -> Floats:
        return _positive(factor * x)

    def softcap(self, x: Floats, cap: float) -> Floats:
        (bits,) = struct.unpack("<Q", _NUMBER.pack(cap))
        infinite = np.isneginf(x)
        size = np.where(infinite, 0.0, np.abs(x))
        capped = np.full_like(x, cap)
        zero = np.zeros_like(x)
        by = divided((2 * size, zero), (capped, zero))
        far = by[0] > 600
        near = (np.where(far, 0.0, -by[0]), np.where(far, 0.0, -by[1]))
        found, power = exp_pair(near)
        e = (np.ldexp(found[0], power), np.ldexp(found[1], power))
        one = (np.ones_like(x), zero)
        above = times(add_pairs(one, (-e[0], -e[1])), (capped, zero))
        pair = divided(above, add_pairs(one, e))
        sign = np.where(x < 0, -1.0, 1.0)
        # 1 − e loses digits where x is small, in the referee's algorithm as here.
        off = np.abs(pair[0]) * PAIR_ERROR + cap * PAIR_ERROR
        signed, doubt = (sign * pair[0], sign * pair[1]), far & ~infinite
        ask = _each(LeafKind.SOFTCAP, (bits,), [x])
        out = self._settled(signed, off, ask, zero=x == 0, doubt=doubt, known=infinite)
        return np.where(infinite, x, out)

    def whiten(self, s: Floats, sigma: Floats) -> Floats:
        return _positive(s / np.broadcast_to(sigma, s.shape))

    def whiten_served(self, served: Floats, s: Floats, sigma: Floats) -> Floats:
        formats, wide = (Format.FP32, Format.FP32), np.broadcast_to(sigma, s.shape)
        ask = _each(LeafKind.WHITEN_DIFFERENCE, formats, [s], [wide, served])
        return self._whitened(served, s, wide, ask)

    def whiten_change(self, shaken: Floats, s: Floats, sigma: Floats) -> Floats:
        wide = np.broadcast_to(sigma, s.shape)
        ask = _each(LeafKind.WHITEN_CHANGE, (Format.FP32,), [shaken, s], [wide])
        return self._whitened(shaken, s, wide, ask)

    def _whitened(self, a: Floats, b: Floats, sigma: Floats, ask: Fallback) -> Floats:
        difference = two_sum(a, -b)
        found = divided(difference, (np.array(sigma), np.zeros_like(b)))
        zero = (difference[0] == 0) & (difference[1] == 0)
        return self._settled(found, np.abs(found[0]) * PAIR_ERROR, ask, zero=zero)

    # --- sums ---

    def _sum(self, parts: Sequence[Floats]) -> Floats:
        return self._sum_of(parts, _each(LeafKind.SUM, (len(parts),), parts))

    def _sum_of(self, parts: Sequence[Floats], ask: Fallback) -> Floats:
        if len(parts) == 1:
            return _positive(parts[0])
        running = Running(parts[0])
        for part in parts[1:]:
            running.add(part)
        nothing = np.logical_and.reduce([part == 0 for part in parts])
        return self._settled(*running.result(), ask, zero=nothing)

    def _dot(self, x: Floats, w: Floats, ask: Fallback, factor: float = 1.0) -> Floats:
        found, off = _sliced_dot(x, w)
        return self._scaled(found, off, factor, ask)

    def _scaled(self, found: Pair, off: Floats, factor: float, ask: Fallback) -> Floats:
        nothing = (found[0] == 0) & (off == 0)
        if factor != 1.0:
            by = (np.full_like(found[0], factor), np.zeros_like(found[0]))
            found = times(found, by)
            off = (off + np.abs(found[0]) * PAIR_ERROR) * max(1.0, abs(factor))
        return self._settled(found, off, ask, zero=nothing)

    def _gated(self, g: Floats, x: Pair, ask: Fallback) -> Floats:
        """g / (1 + e^-x), with the exponential of −|x|."""
        sign = np.where(x[0] < 0, 1.0, -1.0)
        far = np.abs(x[0]) > 600
        e, power = exp_pair((np.where(far, 0.0, sign * x[0]), np.where(far, 0.0, sign * x[1])))
        e = (np.ldexp(e[0], power), np.ldexp(e[1], power))
        zero = np.zeros_like(g)
        above = times((g, zero), e)
        positive = x[0] >= 0
        above = (np.where(positive, g, above[0]), np.where(positive, zero, above[1]))
        found = divided(above, add_pairs((np.ones_like(g), zero), e))
        return self._settled(found, np.abs(found[0]) * PAIR_ERROR, ask, zero=g == 0, doubt=far)

    def _settled(
        self,
        found: Pair,
        off: Floats,
        ask: Fallback,
        zero: Any = False,
        doubt: Any = False,
        known: Any = False,
    ) -> Floats:
        """The float64 nearest to `found`, which may be `off`.

        Where that is not settled, what `ask` says.
        """
        high, low = two_sum(found[0], found[1])
        size = np.abs(high)
        gap = (size - np.nextafter(size, 0.0)) / 2
        # A pair that is the number itself is rounded as IEEE-754 rounds, ties to even.
        sure = (np.abs(low) + off < gap) | ((off == 0) & (size > 0))
        sure &= (size > _SMALL) & (size < _LARGE) & ~np.asarray(doubt)
        out = np.where(zero, 0.0, high)
        for index in zip(*np.nonzero(~(sure | zero | known)), strict=True):
            self.asked += 1
            out[index] = ask(index)
        return _positive(out)


def _sliced_dot(x: Floats, w: Floats) -> tuple[Pair, Floats]:
    """x [N, n] · w [M, n] as pairs [N, M] and how far they may be off, for n ≤ 128.

    Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication" (2012):
    operands are cut into slices whose products add up without rounding.
    """
    xs, x_power = _slices(x)
    ws, w_power = _slices(w)
    levels = []
    for level in range(_SLICES):
        pairs = [(i, level - i) for i in range(level + 1) if i < len(xs) and level - i < len(ws)]
        if not pairs:
            break
        left = np.concatenate([xs[i] for i, _ in pairs], axis=1)
        right = np.concatenate([ws[j] for _, j in pairs], axis=1)
        levels.append(np.ldexp(left @ right.T, -_SLICE_BITS * level))
    high, low = levels[0], np.zeros_like(levels[0])
    for value in levels[1:]:
        high, rest = two_sum(high, value)
        low = low + rest
    high, low = two_sum(high, low)
    shift = x_power[:, None] + w_power[None, :] - 2 * _SLICE_BITS
    nothing = (np.abs(x).max(axis=1) == 0)[:, None] | (np.abs(w).max(axis=1) == 0)[None, :]
    off = np.where(
        nothing, 0.0, np.ldexp(np.float64(_DROPPED), x_power[:, None] + w_power[None, :])
    )
    return (np.ldexp(high, shift), np.ldexp(low, shift)), off


def _slices(x: Floats) -> tuple[list[Floats], npt.NDArray[np.int64]]:
    """Slices of 22 bits of `x` [N, n], most significant first, and the rows' powers of two [N]."""
    _, power = np.frexp(np.abs(x).max(axis=1))
    left = np.ldexp(x, -power[:, None])
    found: list[Floats] = []
    while len(found) < _SLICES and (left.any() or not found):
        left = left * 2.0**_SLICE_BITS
        found.append(np.rint(left))
        left = left - found[-1]
    return found, power.astype(np.int64)


def pair_of_real(value: Real) -> tuple[float, float]:
    """A number of the referee's as a pair."""
    exact = Fraction(value.m) * Fraction(2) ** value.e
    high = float(exact)
    return high, float(exact - Fraction(high))


def _constant(value: Real, like: Floats) -> Pair:
    high, low = pair_of_real(value)
    return np.full_like(like, high), np.full_like(like, low)


def _each(
    kind: LeafKind, params: Sequence[int], trace: Sequence[Any], model: Sequence[Any] = ()
) -> Fallback:
    """Asks the referee's algorithm for one element of arrays of one shape."""

    def ask(i: tuple[int, ...]) -> float:
        return _asked(kind, params, np.array([x[i] for x in trace]), [x[i] for x in model])

    return ask


def _asked(
    kind: LeafKind, params: Sequence[int], trace: Floats, model: Sequence[Any] | Floats = ()
) -> float:
    """What the referee's algorithm makes of these operands. NaN where no number is right."""
    tail = np.asarray(model, dtype="<f4").tobytes()
    operands = bytes(8) + np.asarray(trace, dtype="<f8").tobytes() + tail
    found = exact_value(Leaf(kind, tuple(params), operands))
    return float("nan") if found is None else float(_NUMBER.unpack(found)[0])


def _positive(x: Floats) -> Floats:
    """The same numbers with every zero positive."""
    return x + 0.0
