"""What does each operator of a program make of its operands, in float64?

Numpy's own sums and exponentials. σ is measured with these operators: it is rounded to eight bits,
and `core/dispute/play/nearest.py`, which makes the one set of bits that a trace has, takes longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_TWO_ROOT = 2 * np.sqrt(2 / np.pi)
_CUBIC = 0.044715


class Plain:
    """Operators on arrays. Reductions run over the last axis, in parts of `part_terms`.

    N counts rows; arrays without a shape here are of one shape, or broadcast to one.
    """

    #: Whether each core is to make a part; numpy's products use all cores by themselves.
    is_shared = False

    def __init__(self, part_terms: int) -> None:
        self._terms = part_terms

    def linear(self, x: Floats, weight: Any, bias: Any | None) -> Floats:
        """x [N, K], weight [M, K] → [N, M]."""
        terms, width = self._terms, x.shape[1]
        found = np.zeros((len(x), len(weight)))
        for at in range(0, width, terms):
            found += x[:, at : at + terms] @ weight[:, at : at + terms].astype(np.float64).T
        return found if bias is None else found + bias.astype(np.float64)

    def squares(self, x: Floats) -> Floats:
        """x [..., n] → [...], Σ x²."""
        return np.einsum("...i,...i->...", x, x)

    def total(self, x: Floats) -> Floats:
        """x [..., n] → [...], Σ x."""
        return np.asarray(x.sum(axis=-1))

    def norm_scale(self, q: Floats, n: int, epsilon: float) -> Floats:
        """(q / n + ε)^-½, of sums of `n` squares."""
        return np.asarray(1.0 / np.sqrt(q / n + epsilon))

    def norm(self, x: Floats, r: Floats, gain: Floats, plus: int) -> Floats:
        return np.asarray(x * r * (gain + plus))

    def rotate(self, a: Floats, b: Floats, c: Floats, s: Floats, minus: bool) -> Floats:
        return a * c - b * s if minus else a * c + b * s

    def score(self, q: Floats, k: Floats, scale: float) -> Floats:
        """q [N, d], k [M, d] → [N, M]."""
        return np.asarray(scale * (q @ k.T))

    def exp(self, s: Floats, m: Floats) -> Floats:
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(s - m))

    def probability(self, e: Floats, z: Floats) -> Floats:
        return np.asarray(e / z)

    def mix(self, p: Floats, v: Floats) -> Floats:
        """p [N, T], v [d, T] → [N, d]."""
        return np.asarray(p @ v.T)

    def silu(self, g: Floats) -> Floats:
        return g * _logistic(g)

    def gelu_tanh(self, g: Floats) -> Floats:
        return g * _logistic(_TWO_ROOT * (g + _CUBIC * g**3))

    def product(self, a: Floats, b: Floats) -> Floats:
        return a * b

    def add(self, a: Floats, b: Floats) -> Floats:
        return a + b

    def scale(self, x: Floats, factor: float) -> Floats:
        return factor * x

    def softcap(self, x: Floats, cap: float) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.where(np.isneginf(x), x, cap * np.tanh(x / cap))

    def whiten(self, s: Floats, sigma: Floats) -> Floats:
        """s / σ."""
        return s / sigma

    def whiten_served(self, served: Floats, s: Floats, sigma: Floats) -> Floats:
        """(y − s) / σ of a signed row, which holds float32."""
        return np.asarray((served - s) / sigma)

    def whiten_change(self, shaken: Floats, s: Floats, sigma: Floats) -> Floats:
        """(s~ − s) / σ."""
        return np.asarray((shaken - s) / sigma)


def _logistic(x: Floats) -> Floats:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)
