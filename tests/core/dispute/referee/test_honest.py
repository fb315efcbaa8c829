"""What float64 computes honestly, in any order of summation, satisfies every leaf; a part in 10^9 more does not.

One toy transformer layer with real operators, random weights and activations of a real model's spread, judged element by
element: numpy's own sums, sequential, permuted and blocked ones, with products rounded before adding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from core.dispute.referee import Kind, Leaf, Ruling, check
from tests.core.dispute.referee.leaves import bits, format_of, leaf

Summation = Callable[[np.ndarray], float]
PART = 256
SEEDS = range(6)


def _sequential(terms: np.ndarray) -> float:
    total = 0.0
    for term in terms:
        total += float(term)
    return total


def _permuted(terms: np.ndarray) -> float:
    return float(np.sum(np.random.default_rng(3).permutation(terms)))


def _blocked(terms: np.ndarray) -> float:
    return _sequential(np.array([np.sum(terms[i : i + 16]) for i in range(0, len(terms), 16)]))


SUMMATIONS: list[Summation] = [lambda terms: float(np.sum(terms)), _sequential, _permuted, _blocked]


@dataclass
class Layer:
    """Draws operators' operands and computes their elements with one way of summing."""

    rng: Any
    total: Summation

    def normal(self, *shape: int, spread: float = 1.5) -> np.ndarray:
        """Values with a few channels far larger than the rest, as hidden states have."""
        values = self.rng.normal(size=shape) * np.exp(self.rng.normal(size=shape) * spread)
        return np.asarray(values, dtype=np.float64)

    def tree(self, kind: Kind, params: tuple[int, ...], terms: Any, arrays: Any) -> list[Leaf]:
        """Partial sums over 256 terms each, and their sum."""
        found, parts = [], []
        for start in range(0, len(terms), PART):
            cut = slice(start, start + PART)
            part = self.total(terms[cut])
            n = len(terms[cut])
            trace, model = arrays(cut)
            found.append(leaf(kind, (*params, n), part, *trace, model=model))
            parts.append(part)
        return [*found, leaf(Kind.SUM, (len(parts),), self.total(np.array(parts)), parts)]


def _linear(layer: Layer) -> list[Leaf]:
    found = []
    for dtype in (np.float16, np.float32):
        for n in (3, 256, 1000):
            w, x = layer.normal(n, spread=0.5).astype(dtype), layer.normal(n)
            terms = w.astype(np.float64) * x
            found += layer.tree(
                Kind.LINEAR, (format_of(w),), terms, lambda cut, w=w, x=x: ((x[cut],), w[cut])
            )
    bias, parts = layer.normal(1).astype(np.float32), layer.normal(4)
    y = layer.total(np.append(parts, bias.astype(np.float64)))
    return [*found, leaf(Kind.BIAS_SUM, (format_of(bias), 4), y, parts, model=bias)]


def _norm(layer: Layer) -> list[Leaf]:
    n, epsilon = 640, 1e-6
    x, w = layer.normal(n), layer.normal(n, spread=0.2).astype(np.float32)
    found = layer.tree(Kind.SQUARES, (), x * x, lambda cut: ((x[cut],), None))
    q = layer.total(x * x)
    r = 1 / math.sqrt(q / n + epsilon)
    found.append(leaf(Kind.NORM_SCALE, (n, bits(epsilon)), r, q))
    wide = w.astype(np.float64)
    for i in range(0, n, 16):
        plain, offset = x[i] * r * wide[i], x[i] * (r * (1 + wide[i]))
        found.append(leaf(Kind.NORM, (2, 0), plain, x[i], r, model=w[i : i + 1]))
        found.append(leaf(Kind.NORM, (2, 1), offset, x[i], r, model=w[i : i + 1]))
    return found


def _rope(layer: Layer) -> list[Leaf]:
    found = []
    for _ in range(40):
        a, b = layer.normal(2)
        angle = layer.rng.uniform(0, 32_000)
        table = np.array([math.cos(angle), math.sin(angle)], dtype=np.float32)
        c, s = table.astype(np.float64)
        found.append(leaf(Kind.ROPE, (2, 1), a * c - b * s, a, b, model=table))
        found.append(leaf(Kind.ROPE, (2, 0), b * c + a * s, b, a, model=table))
    return found


def _attention(layer: Layer) -> list[Leaf]:
    heads, length = 128, 300
    scale = heads**-0.5
    q, k = layer.normal(heads, spread=0.5), layer.normal(length, heads, spread=0.5)
    v = layer.normal(length)
    scores = np.array([layer.total(q * k[j]) * scale for j in range(length)])
    found = [
        leaf(Kind.SCORE, (heads, bits(scale), length, j, 0), scores[j], q, k[j])
        for j in range(0, length, 10)
    ]
    found.append(leaf(Kind.SCORE, (1, bits(scale), 4, 5, 0), -math.inf, q[0], k[0, 0]))
    stabiliser = float(scores.max())
    found.append(leaf(Kind.STABILISER, (), stabiliser, scores.max()))
    e = np.exp(scores - stabiliser)
    z = layer.total(e)
    p = e / z
    for j in range(0, length, 5):
        found.append(leaf(Kind.EXP, (), e[j], stabiliser, scores[j]))
        found.append(leaf(Kind.PROBABILITY, (), p[j], e[j], z))
    found.append(leaf(Kind.EXP, (), 0.0, stabiliser, -math.inf))
    return found + layer.tree(Kind.MIX, (), p * v, lambda cut: ((p[cut], v[cut]), None))


def _mlp(layer: Layer) -> list[Leaf]:
    found = []
    for g, up in layer.normal(80, 2):
        with np.errstate(over="ignore"):
            silu = g / (1 + np.exp(-g))
        inner = math.sqrt(2 / math.pi) * (g + 0.044715 * g * g * g)
        gelu = 0.5 * g * (1 + math.tanh(inner))
        found.append(leaf(Kind.SILU, (), silu, g))
        found.append(leaf(Kind.GELU_TANH, (), gelu, g))
        found.append(leaf(Kind.PRODUCT, (), silu * up, silu, up))
        found.append(leaf(Kind.ADD, (), g + up, g, up))
        found.append(leaf(Kind.SOFTCAP, (bits(30.0),), 30 * math.tanh(g / 30), g))
        found.append(leaf(Kind.SCALE, (bits(0.3),), 0.3 * g, g))
        found.append(leaf(Kind.COPY, (), g, g))
    return found


def _boundary(layer: Layer) -> list[Leaf]:
    found = []
    s = layer.normal(60)
    y = (s * (1 + layer.rng.normal(size=60) * 1e-3)).astype(np.float32)
    sigma = np.exp(layer.rng.normal(size=60)).astype(np.float32)
    wide, scales = y.astype(np.float64), sigma.astype(np.float64)
    for i in range(60):
        cut = slice(i, i + 1)
        found.append(leaf(Kind.INPUT, (2,), wide[i], row=y[cut]))
        found.append(leaf(Kind.EMBED, (2, bits(25.3)), wide[i] * 25.3, model=y[cut]))
        d = (wide[i] - s[i]) / scales[i]
        found.append(leaf(Kind.WHITEN_DIFFERENCE, (2, 2), d, s[i], model=sigma[cut], row=y[cut]))
        found.append(leaf(Kind.WHITEN_REFERENCE, (2,), s[i] / scales[i], s[i], model=sigma[cut]))
    return found


OPERATORS = [_linear, _norm, _rope, _attention, _mlp, _boundary]


@pytest.mark.parametrize("total", SUMMATIONS, ids=["numpy", "sequential", "permuted", "blocked"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_honest_elements_hold(operator: Callable[[Layer], list[Leaf]], total: Summation) -> None:
    for seed in SEEDS:
        found = operator(Layer(np.random.default_rng(seed), total))
        assert [one for one in found if check(one) != Ruling.HOLDS] == []


#: A stabiliser is right anywhere in its range.
EXEMPT = {Kind.STABILISER}


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_part_in_ten_to_the_nine_is_seen(operator: Callable[[Layer], list[Leaf]]) -> None:
    """Forged by 10^-9 of the sum of magnitudes, or of the element and its operand, which no bound of any kind comes near."""
    found = operator(Layer(np.random.default_rng(11), SUMMATIONS[0]))
    for one in found:
        y = float(np.frombuffer(one.operands[:8])[0])
        if one.kind in EXEMPT or not math.isfinite(y) or y == 0:
            continue
        size = max(abs(y), _magnitude(one))
        forged = np.float64(y + 1e-9 * size).tobytes() + one.operands[8:]
        assert check(Leaf(one.kind, one.params, forged)) == Ruling.FAILS, one.kind.name


def _magnitude(one: Leaf) -> float:
    """Size that a kind's bound is relative to, from above."""
    operands = np.frombuffer(one.operands[8 : len(one.operands) // 8 * 8])
    if one.kind in (Kind.SUM, Kind.BIAS_SUM, Kind.ADD):
        return float(np.abs(operands).sum())
    if one.kind in (Kind.LINEAR, Kind.MIX, Kind.SCORE, Kind.SQUARES):
        return _dot_magnitude(one)
    if one.kind in (Kind.SILU, Kind.GELU_TANH, Kind.SOFTCAP):
        return float(abs(operands[0]))
    if one.kind in (Kind.ROPE, Kind.WHITEN_DIFFERENCE):
        return 10 * float(np.abs(operands[:2]).sum())
    return 0.0


def _dot_magnitude(one: Leaf) -> float:
    if one.kind is Kind.LINEAR:
        fmt, n = one.params
        x = np.frombuffer(one.operands[8 : 8 + 8 * n])
        w = np.frombuffer(one.operands[8 + 8 * n :], dtype={1: "<f2", 2: "<f4"}[fmt])
        return float(np.abs(x * w.astype(np.float64)).sum())
    n = one.params[0]
    operands = np.frombuffer(one.operands[8:])
    return float(np.abs(operands[:n] * operands[-n:]).sum())
