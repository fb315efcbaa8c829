"""What is the nearest float64 to each operator's value, where C of ours is there to say it?

The kernels say it or leave it open, and prove what they say by a bound of their own. What is open
is asked of `nearest.py`. So the bits are the same, some ten times sooner.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from core.dispute.kernels.native import arithmetic
from core.dispute.play.doubles import coefficients, ln2_parts, table
from core.dispute.play.nearest import Nearest, pair_of_real
from core.dispute.play.operators import Floats
from core.dispute.referee.exact import CUBIC, TWO_ROOT


def nearest(part_terms: int) -> Nearest:
    """Operators whose values are the nearest float64, as quick as this machine has them."""
    library = arithmetic()
    return Nearest(part_terms) if library is None else NearestInC(part_terms, library)


class NearestInC(Nearest):
    """The operators of `Nearest`, in C where that settles a value."""

    is_shared = True

    def __init__(self, part_terms: int, library: ctypes.CDLL) -> None:
        super().__init__(part_terms)
        self._c = library

    def linear(self, x: Floats, weight: Any, bias: Any | None) -> Floats:
        wide = None if bias is None else np.ascontiguousarray(bias, np.float64)
        found, count = self._dots(x, np.asarray(weight, np.float64), wide, self._terms, 1.0)
        ask = super().linear
        return _asked_by_rows(
            found, count, lambda i, j: ask(x[i], weight[j], None if bias is None else bias[j])
        )

    def score(self, q: Floats, k: Floats, scale: float) -> Floats:
        found, count = self._dots(q, k, None, q.shape[1], scale)
        ask = super().score
        return _asked_by_rows(found, count, lambda i, j: ask(q[i], k[j], scale))

    def mix(self, p: Floats, v: Floats) -> Floats:
        found, count = self._dots(p, v, None, self._terms, 1.0)
        ask = super().mix
        return _asked_by_rows(found, count, lambda i, j: ask(p[i], v[j]))

    def squares(self, x: Floats) -> Floats:
        return self._sums(x, True, super().squares)

    def total(self, x: Floats) -> Floats:
        return self._sums(x, False, super().total)

    def norm(self, x: Floats, r: Floats, gain: Floats, plus: int) -> Floats:
        ask = super().norm
        return self._each(
            (x, r, gain),
            lambda a, out, n: self._c.norms(*a, float(plus), out, n),
            lambda x, r, gain: ask(x, r, gain, plus),
        )

    def rotate(self, a: Floats, b: Floats, c: Floats, s: Floats, minus: bool) -> Floats:
        ask = super().rotate
        return self._each(
            (a, b, c, s),
            lambda a, out, n: self._c.rotations(*a, int(minus), out, n),
            lambda a, b, c, s: ask(a, b, c, s, minus),
        )

    def exp(self, s: Floats, m: Floats) -> Floats:
        """s [N, T], m [N, 1]."""
        s, most = _in_rows(s), np.ascontiguousarray(m, np.float64)
        found = np.empty(s.shape)
        count = self._c.exponentials(
            _series().ctypes.data,
            s.ctypes.data,
            s.strides[0] // 8,
            most.ctypes.data,
            found.ctypes.data,
            s.shape[1],
            *s.shape,
        )
        ask = super().exp
        return _asked_by_rows(found, count, lambda i, j: ask(s[i, j], m[i]))

    def silu(self, g: Floats) -> Floats:
        return self._gates(g, None, super().silu)

    def gelu_tanh(self, g: Floats) -> Floats:
        return self._gates(g, _gelu().ctypes.data, super().gelu_tanh)

    def softcap(self, x: Floats, cap: float) -> Floats:
        ask, series = super().softcap, _series().ctypes.data
        return self._each(
            (x,),
            lambda a, out, n: self._c.soft_caps(series, *a, cap, out, n),
            lambda x: ask(x, cap),
        )

    def _whitened(self, a: Floats, b: Floats, sigma: Floats, ask: Any) -> Floats:
        sizes = a.shape
        a, b, wide = (np.ascontiguousarray(x, np.float64) for x in (a, b, sigma))
        found = np.empty(sizes)
        count = self._c.whitened(*(x.ctypes.data for x in (a, b, wide, found)), found.size)
        if count:
            for index in zip(*np.nonzero(np.isnan(found)), strict=True):
                self.asked += 1
                found[index] = ask(index)
        return found

    # --- calls ---

    def _dots(
        self, x: Floats, w: Floats, bias: Floats | None, terms: int, factor: float
    ) -> tuple[Floats, int]:
        """x [N, K] · w [M, K] + bias [M], and how many of these are open. Raises MemoryError."""
        x, w = _in_rows(x), _in_rows(w)
        found = np.empty((len(x), len(w)))
        count = self._c.dot_products(
            x.ctypes.data,
            x.strides[0] // 8,
            w.ctypes.data,
            w.strides[0] // 8,
            None if bias is None else bias.ctypes.data,
            found.ctypes.data,
            len(w),
            len(x),
            len(w),
            x.shape[1],
            terms,
            factor,
        )
        if count < 0:
            raise MemoryError(f"no memory for products of {x.shape} with {w.shape}")
        return found, count

    def _sums(self, x: Floats, squared: bool, ask: Callable[[Floats], Floats]) -> Floats:
        depth, terms = x.shape[-1], self._terms
        rows = _in_rows(x.reshape(-1, depth))
        parts = np.empty((len(rows), -(-depth // terms)))
        count = self._c.part_sums(
            rows.ctypes.data,
            rows.strides[0] // 8,
            parts.ctypes.data,
            len(rows),
            depth,
            terms,
            int(squared),
        )
        if count:
            for row, part in zip(*np.nonzero(np.isnan(parts)), strict=True):
                some = slice(part * terms, (part + 1) * terms)
                parts[row, part] = ask(rows[row : row + 1, some])[0]
        return self._sum(list(parts.T)).reshape(x.shape[:-1])

    def _gates(self, g: Floats, gelu: int | None, ask: Callable[[Floats], Floats]) -> Floats:
        series = _series().ctypes.data
        return self._each((g,), lambda a, out, n: self._c.gates(series, gelu, *a, out, n), ask)

    def _each(
        self,
        operands: tuple[Floats, ...],
        call: Callable[[list[int], int, int], int],
        ask: Callable[..., Floats],
    ) -> Floats:
        """`call` on addresses of the operands, all of one shape, and of what it makes."""
        wide = [np.ascontiguousarray(x, np.float64) for x in np.broadcast_arrays(*operands)]
        found = np.empty(wide[0].shape)
        if call([x.ctypes.data for x in wide], found.ctypes.data, found.size):
            unsettled = np.isnan(found)
            found[unsettled] = ask(*(x[unsettled] for x in wide))
        return found


def _asked_by_rows(found: Floats, count: int, ask: Callable[[Any, Any], Floats]) -> Floats:
    """`found` with what is open in it asked for: `ask` for one row, as a slice, and its columns."""
    if count:
        unsettled = np.isnan(found)
        for row in np.nonzero(unsettled.any(axis=1))[0]:
            columns = np.nonzero(unsettled[row])[0]
            found[row, columns] = np.reshape(ask(slice(row, row + 1), columns), -1)
    return found


def _in_rows(x: Floats) -> Floats:
    """The same numbers as float64, each row's one after another."""
    whole = x.dtype == np.float64 and x.strides[-1] == 8 and x.strides[0] % 8 == 0
    return x if whole else np.ascontiguousarray(x, np.float64)


@cache
def _series() -> Floats:
    """What exponentials are made of, as `elements.c` wants it."""
    parts = np.array(ln2_parts()), np.array(coefficients()).reshape(-1), table().reshape(-1)
    return np.concatenate(parts)


@cache
def _gelu() -> Floats:
    return np.array([*pair_of_real(TWO_ROOT), *pair_of_real(CUBIC)])
