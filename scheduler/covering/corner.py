"""What must every whole plan waste that the relaxation's own patterns alone cannot avoid?

Gomory's relaxation (1965, 1969): with the basis B of the relaxation, only the class of what is left
modulo the lattice that B spans is watched, not whether B would have to be used less than never.
Whole numbers of basis patterns neither change the class nor waste anything, so the least waste of
using up a class is a shortest path over all other patterns. Where there are too many classes a
coarser grouping of them is taken: a weaker bound, but still a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.fleet.arrays import Floats, Ints


@dataclass(frozen=True)
class Corner:
    """``rows`` · machines mod ``orders`` is the class of a choice of machines, ``least`` what using
    up that class wastes at least, known up to where it was cut off; it is indexed by the
    coordinates ``kept``, each modulo its ``parts``.
    """

    rows: Ints
    orders: Ints
    kept: Ints
    parts: Ints
    least: Floats

    def classes(self, machines: Ints) -> Ints:
        """[coordinate, column]: the class of every column of machines [kind, column]."""
        found: Ints = self.rows @ machines % self.orders[:, None]
        return found

    def waste(self, classes: Ints) -> Floats:
        """The least waste of using up each of these classes [coordinate, column]."""
        found: Floats = self.least[tuple(classes[self.kept] % self.parts[:, None])]
        return found

    def waste_after(self, classes: Ints, columns: Ints) -> Floats:
        """[class, column]: the least waste of what a column of that class leaves of each."""
        flat = np.zeros((classes.shape[1], columns.shape[1]), dtype=np.int64)
        for i, part in zip(self.kept.tolist(), self.parts.tolist(), strict=True):
            after = (classes[i] % part)[:, None] - columns[i] % part
            after[after < 0] += part
            flat *= part
            flat += after
        found: Floats = self.least.ravel()[flat]
        return found


def corner(basis: Ints, columns: Ints, waste: Floats, limit: float, most: int) -> Corner:
    """The least waste of each class, up to `limit`, by `columns` [kind, column] not in the `basis`.

    At most `most` classes are told apart, by the coordinates of lowest order first: they belong to
    the machines of which few make a pipeline, and tell most apart for their number.
    """
    rows, orders = diagonal(basis)
    kept, parts, room = list[int](), list[int](), most
    for order, i in sorted((order, i) for i, order in enumerate(orders)):
        part = next(d for d in range(min(order, room), 0, -1) if order % d == 0)
        if part > 1 or not kept:
            kept.append(i)
            parts.append(part)
            room //= part
    least = np.full(parts, limit, dtype=np.float64)
    made = Corner(rows, np.array(orders), np.array(kept), np.array(parts), least)
    _shortest(least, made.classes(columns)[kept] % made.parts[:, None], waste, limit)
    return made


def diagonal(square: Ints) -> tuple[Ints, list[int]]:
    """(rows, orders): v is a whole combination of the columns just when rows · v ≡ 0 mod orders.

    By whole row and column operations down to a diagonal (Smith's, without its divisibility);
    orders of 1 are left out, but for a last one.
    """
    size = len(square)
    # Row operations are recorded in the identity appended on the right.
    left = [[*map(int, row), *(int(i == j) for j in range(size))] for i, row in enumerate(square)]
    for t in range(size):
        while True:
            rest = [(i, j) for i in range(t, size) for j in range(t, size) if left[i][j]]
            i, j = min(rest, key=lambda at: abs(left[at[0]][at[1]]))
            left[t], left[i] = left[i], left[t]
            for row in left:
                row[t], row[j] = row[j], row[t]
            head, pivot = left[t], left[t][t]
            for i in range(t + 1, size):
                if times := left[i][t] // pivot:
                    left[i] = [a - times * b for a, b in zip(left[i], head, strict=True)]
            for j in range(t + 1, size):
                if times := head[j] // pivot:
                    for row in left[t:]:
                        row[j] -= times * row[t]
            if not any(left[i][t] or head[i] for i in range(t + 1, size)):
                break
    found = [(abs(left[t][t]), left[t][size:]) for t in range(size) if abs(left[t][t]) > 1]
    found = found or [(1, [0] * size)]
    rows = [[entry % order for entry in row] for order, row in found]
    return np.array(rows, dtype=np.int64), [order for order, _ in found]


def _shortest(least: Floats, classes: Ints, waste: Floats, limit: float) -> None:
    """Shortest paths from class 0: columns join one after the other, cheapest first, any number of
    times each; one that those before it do as cheaply is left out.
    """
    least[(0,) * least.ndim] = 0.0
    cheap = np.argsort(waste, kind="stable")
    flat = np.ravel_multi_index(tuple(classes[:, cheap]), least.shape)
    cheap = cheap[np.sort(np.unique(flat, return_index=True)[1])]  # one a class
    for once, *step in zip(waste[cheap].tolist(), *classes[:, cheap].tolist(), strict=True):
        if once >= limit:
            break
        times, at = 1, tuple(step)
        while least[at] > times * once:
            ways = ((np.arange(d) - s) % d for d, s in zip(least.shape, at, strict=True))
            np.minimum(least, least[np.ix_(*ways)] + times * once, out=least)
            times *= 2
            at = tuple(2 * s % d for d, s in zip(least.shape, at, strict=True))
