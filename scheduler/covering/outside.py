"""Which patterns outside the relaxation's basis leave just what the basis can use up?

States, what is left of the supply after choosing some patterns, are followed level by level, one
more pattern each. Those of least waste, spent and still to come, are kept, and none that another
one is at least as good as.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.covering.corner import corner
from scheduler.fleet.arrays import Flags, Floats, Ints

TINY = 1e-9
#: What is so near to a whole number is one.
ROUNDING = 1e-6
#: Before the costly tests, this many times the states are kept that are kept after them.
FAN = 20
#: Patterns that are searched at most, and levels.
COLUMNS, DEPTH = 300, 60
#: Places to remember states in; of two that share one the cheaper is remembered.
PLACES = 1 << 16


@dataclass(frozen=True)
class Found:
    """Columns outside the basis, one a use, and how often each basis pattern fills the rest."""

    columns: Ints
    basis: Ints
    waste: float


class Outside:
    """The `columns` [kind, column] outside the basis, each with its `waste`, by what each entails.

    ``least`` is what every whole plan wastes. `limit` is a waste that is of no interest; `classes`
    are told apart at most.
    """

    def __init__(
        self, basic: Ints, columns: Ints, waste: Floats, supply: Ints, limit: float, classes: int
    ) -> None:
        self.basic, self.supply = basic, supply
        self.inverse = np.linalg.inv(basic).T
        self.corner = corner(basic, columns, waste, limit, classes)
        goal = self.corner.classes(supply[:, None])
        self.least = float(self.corner.waste(goal)[0])
        of = self.corner.classes(columns)
        entailed = waste + self.corner.waste_after(goal, of)[0]
        self.order = np.argsort(entailed, kind="stable")
        self.entailed, self.waste = entailed[self.order], waste[self.order]
        self.columns, self.classes = columns[:, self.order], of[:, self.order]
        self.weights = np.cumprod(np.append(1, self.corner.orders[:-1]))

    def search(self, limit: float, width: int) -> tuple[Found | None, float]:
        """(the best plan seen within `limit`, what every other plan wastes if that is less).

        With `width` states a level; where none had to be dropped the plan is the best there is.
        """
        many = int(np.searchsorted(self.entailed, limit - TINY))
        proven = limit
        if many > COLUMNS:
            many, proven = COLUMNS, float(self.entailed[COLUMNS])
        columns, waste, classes = self.columns.T[:many], self.waste[:many], self.classes[:, :many]
        ids = self.weights @ classes
        left, spent = self.supply[None, :], np.zeros(1)
        of, entailed = self.corner.classes(left.T), np.array([self.least])
        seen = _Seen(len(self.corner.orders), len(self.supply))
        history: list[tuple[Ints, Ints]] = []
        best: Found | None = None
        for _ in range(DEPTH):
            # The last pattern is the one whose class is that of what is left.
            row, column = np.nonzero((self.weights @ of)[:, None] == ids)
            total = spent[row] + waste[column]
            for at in np.argsort(total, kind="stable"):
                if total[at] >= limit - TINY:
                    break
                rest = left[row[at]] - columns[column[at]]
                times = np.rint(rest @ self.inverse).astype(np.int64)
                if (times >= 0).all() and np.array_equal(self.basic @ times, rest):
                    limit = float(total[at])
                    chosen = _chosen(history, int(row[at]), int(column[at]))
                    best = Found(self.order[chosen], times, limit)
                    break
            after = self.corner.waste_after(of, classes)
            after += waste
            after += spent[:, None]
            flat = np.flatnonzero(after < limit - TINY)
            entailed = after.ravel()[flat]
            if len(flat) > FAN * width:
                nearest = np.argpartition(entailed, FAN * width)
                proven = min(proven, float(entailed[nearest[FAN * width]]))
                nearest = np.sort(nearest[: FAN * width])
                flat, entailed = flat[nearest], entailed[nearest]
            row, column = np.divmod(flat, max(1, many))
            rest = left[row] - columns[column]
            good = np.flatnonzero((rest >= 0).all(axis=1))
            total = spent[row[good]] + waste[column[good]]
            good = good[np.argsort(total, kind="stable")]
            row, column, rest, entailed = row[good], column[good], rest[good], entailed[good]
            total = spent[row] + waste[column]
            now = (of[:, row] - classes[:, column]) % self.corner.orders[:, None]
            new = np.flatnonzero(seen.first(self.weights @ now, now, total, rest @ self.inverse))
            if not new.size:
                break
            new = new[np.argsort(entailed[new], kind="stable")]
            if len(new) > width:
                proven = min(proven, float(entailed[new[width]]))
                new = new[:width]
            left, spent, of, entailed = rest[new], total[new], now[:, new], entailed[new]
            history.append((row[new], column[new]))
        else:
            proven = min(proven, float(entailed.min()))
        return best, min(proven, limit)


def _chosen(history: list[tuple[Ints, Ints]], at: int, last: int) -> Ints:
    """The columns on the way to a state, and the last one."""
    chosen = [last]
    for rows, columns in reversed(history):
        chosen.append(int(columns[at]))
        at = int(rows[at])
    return np.array(chosen)


class _Seen:
    """States met so far: a state is no use where one of its class spent no more and has as much of
    every basis pattern left, for it can do whatever the first can.
    """

    def __init__(self, coordinates: int, kinds: int) -> None:
        self.place = np.full(PLACES, -1)
        self.classes = np.zeros((coordinates, 0), dtype=np.int64)
        self.spent = np.zeros(0)
        self.multiples = np.zeros((0, kinds))

    def first(self, ids: Ints, classes: Ints, spent: Floats, multiples: Floats) -> Flags:
        """The states, in order of what they spent, that no remembered one makes useless."""
        place = ids % PLACES
        useful = ~self._useless(self.place[place], classes, spent, multiples)
        kept = np.flatnonzero(useful)
        at = len(self.spent) + np.arange(len(kept))
        self.classes = np.concatenate([self.classes, classes[:, kept]], axis=1)
        self.spent = np.append(self.spent, spent[kept])
        self.multiples = np.concatenate([self.multiples, multiples[kept]])
        there = self.place[place[kept]]
        better = np.flatnonzero((there < 0) | (self.spent[there] > spent[kept]))[::-1]
        self.place[place[kept[better]]] = at[better]
        there = self.place[place[kept]]
        useless = self._useless(there, classes[:, kept], spent[kept], multiples[kept])
        useful[kept[useless & (there != at)]] = False
        return useful

    def _useless(self, there: Ints, classes: Ints, spent: Floats, multiples: Floats) -> Flags:
        if not len(self.spent):
            return np.zeros(len(there), dtype=np.bool_)
        worse: Flags = (there >= 0) & (self.spent[there] <= spent)
        worse &= (self.classes[:, there] == classes).all(axis=0)
        worse &= (self.multiples[there] >= multiples - ROUNDING).all(axis=1)
        return worse
