"""How is arithmetic done over arrays of numbers with twice a float64's digits?

A number is a pair (high, low) whose sum it is. Results are good to about 2^-100 of themselves: far
enough below a float64's last bit to know the nearest float64 nearly always, and to know when it is
not known. Sources: Dekker, "A floating-point technique for extending the available precision"
(1971); Shewchuk, "Adaptive precision floating-point arithmetic" (1997).
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Pair = tuple[Floats, Floats]
#: Relative error of `exp_pair` and of the quotients made of it, with room.
PAIR_ERROR = 2.0**-96
_SPLIT = 2.0**27 + 1
_STEPS = 64  # of the table of exponentials, to one
_TAIL_TERMS = 7  # of the exponential's series from which float64 alone is enough


def two_sum(a: Any, b: Any) -> Pair:
    """a + b exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Any, b: Any) -> Pair:
    """a · b exactly, unless it or a half of it leaves the range of normal numbers."""
    product = a * b
    ah, al = _halves(a)
    bh, bl = _halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _halves(a: Any) -> Pair:
    wide = _SPLIT * a
    high = wide - (wide - a)
    return high, a - high


def add_pairs(a: Pair, b: Pair) -> Pair:
    high, low = two_sum(a[0], b[0])
    tail, rest = two_sum(a[1], b[1])
    high, low = two_sum(high, low + tail)
    return two_sum(high, low + rest)


def times(a: Pair, b: Pair) -> Pair:
    high, low = two_product(a[0], b[0])
    return two_sum(high, low + (a[0] * b[1] + a[1] * b[0]))


def divided(a: Pair, b: Pair) -> Pair:
    """a / b by three steps of long division."""
    first = a[0] / b[0]
    rest = add_pairs(a, _negative(times((first, np.zeros_like(first)), b)))
    second = rest[0] / b[0]
    rest = add_pairs(rest, _negative(times((second, np.zeros_like(second)), b)))
    high, low = two_sum(first, second)
    return two_sum(high, low + rest[0] / b[0])


def rooted(a: Pair) -> Pair:
    """√a of a positive pair, by one step of Newton's."""
    first = np.sqrt(a[0])
    rest = add_pairs(a, _negative(two_product(first, first)))
    return two_sum(first, rest[0] / (2 * first))


def _negative(a: Pair) -> Pair:
    return -a[0], -a[1]


def pair_of(value: Decimal) -> tuple[float, float]:
    """A number of many digits as a pair."""
    high = float(value)
    return high, float(value - Decimal(high))


def exp_pair(x: Pair) -> tuple[Pair, npt.NDArray[np.int64]]:
    """e^x as a pair near one and a power of two, for |x| ≤ 5000."""
    turns = np.rint(x[0] / ln2_parts()[0])
    rest = x
    for part in ln2_parts()[1:]:
        rest = add_pairs(rest, two_product(-turns, np.float64(part)))
    steps = np.rint(rest[0] * _STEPS)
    rest = add_pairs(rest, (-steps / _STEPS, np.zeros_like(steps)))
    terms = coefficients()
    tail = np.full_like(rest[0], terms[-1][0])
    for high, _ in terms[-2 : _TAIL_TERMS - 1 : -1]:
        tail = tail * rest[0] + high
    found: Pair = (tail, np.zeros_like(tail))
    for high, low in terms[_TAIL_TERMS - 1 :: -1]:
        one: Pair = (np.full_like(tail, high), np.full_like(tail, low))
        found = add_pairs(times(found, rest), one)
    steps_of_e = table()
    index = steps.astype(np.int64) + len(steps_of_e) // 2
    return times(found, (steps_of_e[index, 0], steps_of_e[index, 1])), turns.astype(np.int64)


@cache
def ln2_parts() -> tuple[float, ...]:
    """ln 2 rounded, its parts of 32 bits, whose multiples are exact, and what is left."""
    with localcontext() as context:
        context.prec = 80
        left = Decimal(2).ln()
        found = [float(left)]
        for bits in (32, 64, 96):
            part = Decimal(int(left * 2**bits)) / 2**bits
            found.append(float(part))
            left -= part
        return (*found, float(left))


@cache
def coefficients() -> list[tuple[float, float]]:
    """1 / n! as pairs; the last term is below 2^-110 for arguments up to 2^-7."""
    with localcontext() as context:
        context.prec = 50
        found, factorial = [], Decimal(1)
        for n in range(14):
            factorial *= max(n, 1)
            found.append(pair_of(1 / factorial))
        return found


@cache
def table() -> Floats:
    """e^(j/64) as pairs, for j from −24 to 24."""
    with localcontext() as context:
        context.prec = 50
        reach = range(-24, 25)
        return np.array([pair_of((Decimal(j) / _STEPS).exp()) for j in reach])


class Running:
    """A running sum over arrays, and where it is exact."""

    def __init__(self, first: Floats) -> None:
        self._sums = [np.array(first), np.zeros_like(first), np.zeros_like(first)]
        self._lost = np.zeros(np.shape(first), dtype=bool)
        self._largest = np.abs(first)
        self._least = np.where(first == 0, np.inf, self._largest)
        self._count = 1

    def add(self, value: Any) -> None:
        size = np.abs(value)
        self._largest = np.maximum(self._largest, size)
        self._least = np.minimum(self._least, np.where(size == 0, np.inf, size))
        self._count += 1
        for level in range(3):
            self._sums[level], value = two_sum(self._sums[level], value)
        self._lost |= value != 0

    def result(self) -> tuple[Pair, Floats]:
        """The sum as a pair, and what it may be off: 0 where the pair is the sum."""
        a, b, c = self._sums
        a, b = two_sum(a, b)
        b, c = two_sum(b, c)
        high, b = two_sum(a, b)
        low, rest = two_sum(b, c)
        # What lies 80 bits below the largest term is not on the referee's grid.
        exact = ~self._lost & (rest == 0) & (self._least >= self._largest * 2.0**-79)
        off = self._largest * (self._count**3 * 2.0**-130) + np.abs(low) * 2.0**-52
        return (high, low), np.where(exact, 0.0, off)
