"""What is the fewest stages of every number of pipelines in the relaxation, and which whole plan lies beside it?

The relaxation min Σ s_p x_p, Σ_p m_{tp} x_p ≤ n_t, Σ x_p = k is solved for all k at once by one parametric simplex run
over the price μ of a pipeline: it starts from the empty plan, and each pivot is one corner of the convex s(k). A whole
plan is then looked for in the corner's own group (Gomory 1969): columns outside the basis cost their reduced cost, so
only few combinations of them fit below the next whole number of stages, and each fixes the basis. No solver is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.kinds import Pattern

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
EPSILON = 1e-9
WHOLE = 1e-6
#: Combinations of columns outside the basis looked at for one k.
COMBINATIONS = 20_000


@dataclass(frozen=True, slots=True)
class Edge:
    """s(k) = stages + price · (k − k_from) for k_from ≤ k ≤ k_to, and the simplex tableau at k_from.

    Tableau columns are patterns, then the slack of each kind; ``entering`` is the column that grows along the edge.
    """

    k_from: float
    k_to: float
    stages: float
    price: float
    entering: int
    basis: Ints
    values: Floats
    tableau: Floats
    reduced: Floats
    pipelines: Floats

    def at(self, k: float) -> float:
        """The relaxation's stages at k."""
        return self.stages + self.price * (k - self.k_from)


def edges(counts: Sequence[int], patterns: Sequence[Pattern]) -> tuple[Edge, ...] | None:
    """The whole convex curve s(k) from k = 0 to the most pipelines; None when it does not end within its pivots."""
    kinds, many = len(counts), len(patterns)
    tableau = np.zeros((kinds, many + kinds))
    stages_row, k_row = np.zeros(many + kinds), np.zeros(many + kinds)
    for p, pattern in enumerate(patterns):
        for t in pattern:
            tableau[t, p] += 1.0
        stages_row[p] = len(pattern)
    k_row[:many] = 1.0
    tableau[:, many:] = np.eye(kinds)
    values = np.array(counts, dtype=np.float64)
    basis = np.arange(many, many + kinds)
    found: list[Edge] = []
    k = stages = 0.0
    for _ in range(50 + 10 * kinds):
        growing = np.flatnonzero(k_row > EPSILON)
        if not growing.size:
            return tuple(found)
        prices = stages_row[growing] / k_row[growing]
        entering = int(growing[int(np.argmin(prices))])
        price = float(prices.min())
        column = tableau[:, entering]
        rows = np.flatnonzero(column > EPSILON)
        if not rows.size:
            return None
        ratios = values[rows] / column[rows]
        step = float(ratios.min())
        leaving = int(min(rows[ratios <= step + EPSILON], key=lambda row: int(basis[row])))
        k_to = k + step * float(k_row[entering])
        if k_to > k + EPSILON:
            reduced = np.maximum(0.0, stages_row - price * k_row)
            found.append(
                Edge(k, k_to, stages, price, entering, basis.copy(), values.copy(),
                     tableau.copy(), reduced, k_row.copy())
            )  # fmt: skip
        stages += price * (k_to - k)
        k = k_to
        pivot_row = tableau[leaving] / tableau[leaving, entering]
        values[leaving] /= tableau[leaving, entering]
        others = np.arange(kinds) != leaving
        values[others] -= column[others] * values[leaving]
        tableau[others] -= np.outer(column[others], pivot_row)
        tableau[leaving] = pivot_row
        stages_row = stages_row - stages_row[entering] * pivot_row
        k_row = k_row - k_row[entering] * pivot_row
        basis[leaving] = entering
    return None


def bounds(curve: Sequence[Edge], k_top: int) -> Floats:
    """The relaxation's stages for k = 1 … k_top."""
    ks = np.arange(1, k_top + 1, dtype=np.float64)
    return np.interp(
        ks,
        [0.0, *(edge.k_to for edge in curve)],
        [0.0, *(edge.at(edge.k_to) for edge in curve)],
    )


def whole_plan(
    curve: Sequence[Edge], k: int, stages: int, many: int
) -> tuple[list[int] | None, bool]:
    """How often each of the `many` patterns is used by a plan of k pipelines and at most `stages` stages.

    (None, True) proves that there is none; (None, False) is a search that ended early.
    """
    edge = next((edge for edge in curve if k <= edge.k_to + EPSILON), None)
    if edge is None:
        return None, True
    growth = edge.pipelines[edge.entering]
    at_entering = (k - edge.k_from) / growth
    start = np.append(edge.values - edge.tableau[:, edge.entering] * at_entering, at_entering)
    slack = stages - edge.at(k) + WHOLE
    if slack < 0:
        return None, True
    outside = np.ones(len(edge.reduced), dtype=np.bool_)
    outside[edge.basis] = outside[edge.entering] = False
    near = np.flatnonzero(outside & (edge.reduced <= slack))
    near = near[np.argsort(-edge.reduced[near], kind="stable")]  # dearest first: the tree ends soon
    share = edge.pipelines[near] / growth
    moves = np.vstack(
        [edge.tableau[:, near] - np.outer(edge.tableau[:, edge.entering], share), share]
    ).T
    costs = edge.reduced[near]

    points, spent = start[None, :], np.zeros(1)
    first, used = np.zeros(1, dtype=np.int64), np.zeros((1, near.size), dtype=np.int16)
    looked_at = 0
    while len(points):
        good = (np.abs(points - np.rint(points)) < WHOLE).all(axis=1) & (points > -WHOLE).all(
            axis=1
        )
        hits = np.flatnonzero(good)
        if hits.size:
            hit = hits[int(np.argmin(spent[hits]))]
            return _counts(edge, near, points[hit], used[hit], many), True
        looked_at += len(points)
        if looked_at > COMBINATIONS:
            return None, False
        row, column = np.nonzero(
            (np.arange(near.size)[None, :] >= first[:, None])
            & (spent[:, None] + costs[None, :] <= slack)
        )
        if len(row) > COMBINATIONS:
            row, column = row[:COMBINATIONS], column[:COMBINATIONS]
            looked_at += COMBINATIONS
        points = points[row] - moves[column]
        spent = spent[row] + costs[column]
        used = used[row]
        used[np.arange(len(row)), column] += 1
        first = column
    return None, True


def _counts(edge: Edge, near: Ints, point: Floats, used: Ints, many: int) -> list[int]:
    times = np.zeros(len(edge.reduced), dtype=np.int64)
    times[edge.basis] = np.rint(point[:-1]).astype(np.int64)
    times[edge.entering] = round(float(point[-1]))
    times[near] += used
    return [int(n) for n in times[:many]]
