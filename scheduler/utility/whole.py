"""Which whole numbers of patterns waste least?

With prices w of the relaxation, a plan falls short of the bound by exactly Σ −(reduced cost of what it uses) + w · (what
it leaves): its *waste*. The fractional mix is rounded down except for its last few pipelines, and the rest is searched
by waste, level by level, keeping the best states; exhaustive when no state had to be dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from scheduler.highs import open_highs
from scheduler.utility.kinds import Floats, Ints
from scheduler.utility.simplex import Mix, maximise

TINY = 1e-9


@dataclass(frozen=True)
class Whole:
    """How often each column is used, what that is worth, and whether every better choice has been ruled out."""

    times: Ints
    value: float
    exhaustive: bool


@dataclass(frozen=True, slots=True)
class Search:
    """``width`` states are kept per level, those of least waste plus ``lean`` times the worth of what they leave;
    ``columns`` of least reduced cost are searched, ``keep_open`` whole pipelines of every column of the mix with them."""

    width: int = 100
    lean: float = 0.0
    columns: int = 150
    keep_open: int = 1
    depth: int = 40


def round_mix(counts: Ints, worth: Floats, supply: Ints, mix: Mix, how: Search) -> Whole:
    """A whole plan near the mix."""
    times = np.zeros(counts.shape[1], dtype=np.int64)
    for j, amount in zip(mix.basis, mix.amounts, strict=True):
        if j >= 0:
            times[j] = max(0, int(amount + TINY) - how.keep_open)
    complete = not times.any()
    left = supply - counts @ times
    reduced = np.minimum(0.0, worth - mix.prices @ counts)
    fits = np.flatnonzero((counts <= left[:, None]).all(axis=0) & (worth > 0))
    near = fits[np.argsort(reduced[fits], kind="stable")[::-1]]
    if len(near) > how.columns:
        near, complete = near[: how.columns], False
    if not near.size:
        return Whole(times, float(worth @ times), complete)
    more, finished = _search(counts[:, near], -reduced[near], left, mix.prices, how)
    times[near] += more
    return Whole(times, float(worth @ times), complete and finished)


def dive(counts: Ints, worth: Floats, supply: Ints, mix: Mix, how: Search) -> Whole:
    """Round the mix down, solve the relaxation of what is left, and so on; search the rest."""
    times = np.zeros(counts.shape[1], dtype=np.int64)
    left, fits = supply.copy(), np.arange(counts.shape[1])
    while True:
        whole = [
            (int(j), int(x + TINY))
            for j, x in zip(mix.basis, mix.amounts, strict=True)
            if j >= 0 and int(x + TINY)
        ]
        if not whole:
            break
        for j, n in whole:
            times[fits[j]] += n
            left = left - n * counts[:, fits[j]]
        fits = np.flatnonzero((counts <= left[:, None]).all(axis=0) & (worth > 0))
        if not fits.size:
            return Whole(times, float(worth @ times), False)
        mix = maximise(counts[:, fits].astype(np.float64), worth[fits], left.astype(np.float64))
    rest = round_mix(counts[:, fits], worth[fits], left, mix, how)
    times[fits] += rest.times
    return Whole(times, float(worth @ times), False)


def branch(
    counts: Ints, worth: Floats, supply: Ints, *, nodes: int, gap: float
) -> tuple[Ints, float] | None:
    """(how often each column, a bound no plan of these columns passes) by HiGHS; None without it or in vain."""
    try:
        api, solver = open_highs(
            mip_rel_gap=gap, mip_max_nodes=nodes, presolve="off", mip_detect_symmetry=False
        )
    except ImportError:
        return None
    rows, many = counts.shape
    problem = api.HighsLp()
    problem.num_col_, problem.num_row_ = many, rows
    problem.col_cost_ = worth
    problem.col_lower_, problem.col_upper_ = np.zeros(many), np.full(many, np.inf)
    problem.row_lower_, problem.row_upper_ = np.full(rows, -np.inf), supply.astype(np.float64)
    column, row = np.nonzero(counts.T)
    problem.a_matrix_.format_ = api.MatrixFormat.kColwise
    problem.a_matrix_.start_ = np.searchsorted(column, np.arange(many + 1)).astype(np.int32)
    problem.a_matrix_.index_ = row.astype(np.int32)
    problem.a_matrix_.value_ = counts.T[column, row].astype(np.float64)
    problem.sense_ = api.ObjSense.kMaximize
    problem.integrality_ = [api.HighsVarType.kInteger] * many
    solver.passModel(problem)
    solver.run()
    info = solver.getInfo()
    bound = float(info.mip_dual_bound)
    if info.primal_solution_status != 2 or not math.isfinite(bound):  # 2: a feasible point is there
        return None
    times = np.rint(np.array(solver.getSolution().col_value)).astype(np.int64)
    if (times < 0).any() or (counts @ times > supply).any():
        return None
    return times, bound


def _search(
    counts: Ints, waste: Floats, supply: Ints, prices: Floats, how: Search
) -> tuple[Ints, bool]:
    """(how often each column, whether nothing was dropped): least waste, columns taken in non-decreasing order."""
    many = counts.shape[1]
    left = supply[None, :]
    spent, first = np.zeros(1), np.zeros(1, dtype=np.int64)
    best, best_at = float(prices @ supply), (-1, 0)
    history: list[tuple[Ints, Ints]] = []
    finished = True
    for level in range(how.depth + 1):
        total = spent + left @ prices
        at = int(np.argmin(total))
        if total[at] < best - TINY or level == 0:
            best, best_at = float(total[at]), (level - 1, at)
        open_: Ints = np.flatnonzero(spent < best - TINY)
        allowed = (np.arange(many)[None, :] >= first[open_, None]) & (
            spent[open_, None] + waste[None, :] < best - TINY
        )
        row, column = np.nonzero(allowed)
        if not row.size:
            break
        if level == how.depth:
            finished = False
            break
        parent = open_[row]
        after = left[parent] - counts[:, column].T
        legal = (after >= 0).all(axis=1)
        parent, column, after = parent[legal], column[legal], after[legal]
        if not parent.size:
            break
        cost = spent[parent] + waste[column]
        if len(cost) > how.width:
            finished = False
            order = np.argsort(cost + how.lean * (after @ prices), kind="stable")[: how.width]
            parent, column, after, cost = parent[order], column[order], after[order], cost[order]
        history.append((parent, column))
        left, spent, first = after, cost, column
    times = np.zeros(many, dtype=np.int64)
    level, at = best_at
    while level >= 0:
        parents, columns = history[level]
        times[columns[at]] += 1
        level, at = level - 1, int(parents[at])
    return times, finished
