"""Which patterns should the machines of one scope form, and how far from the best is that?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.gap import relative_gap
from scheduler.utility.kinds import Floats, Ints
from scheduler.utility.simplex import Mix, maximise
from scheduler.utility.table import Table
from scheduler.utility.whole import Search, Whole, branch, dive, round_mix


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits in counts.

    ``rows`` patterns are listed at most. The first relaxation looks ``stages_more`` above the fewest stages; then at most
    ``rounds`` of pricing, in which a missing pattern matters from ``loose`` times the best utility on. The whole plan also
    sees patterns that cost up to ``near`` of it. ``searches`` are tried in order until the ``gap`` to the bound is
    reached. Where the relaxation has fewer than ``few`` pipelines only the first of them is, and with ``nodes`` HiGHS then
    branches over ``near_columns`` patterns, and over all that a better plan could use if they are at most ``columns``.
    """

    rows: int = 6_000
    stages_more: int = 1
    rounds: int = 30
    loose: float = 1e-4
    near: float = 0.05
    gap: float = 0.01
    searches: tuple[Search, ...] = (Search(), Search(200, 0.1), Search(200))
    few: float = 5.0
    nodes: int = 20
    near_columns: int = 200
    columns: int = 200


@dataclass(frozen=True)
class Solved:
    """Patterns (rows of the table) and how often, their utility, and an upper bound of what the scope can reach."""

    rows: Ints
    times: Ints
    value: float
    bound: float
    exhaustive: bool

    @property
    def gap(self) -> float:
        return relative_gap(self.value, self.bound)


NOTHING = Solved(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0, 0.0, True)


def solve(
    table: Table, supply: Ints, beta: float, hop_ms: float, effort: Effort, above_all: float = 0.0
) -> Solved:
    """Maximise Σ u_p x_p within the supply, over the patterns of the table; nothing when `above_all` is out of reach."""
    rows = np.flatnonzero((table.counts <= supply[:, None]).all(axis=0))
    if not rows.size:
        return NOTHING
    stages = table.stages[rows]
    seeds = rows[stages <= stages.min() + effort.stages_more]
    table.score(seeds)
    active = rows[~np.isnan(table.compute_ms[rows])]
    slots = supply.astype(np.float64)
    worth = table.worth(active, beta, hop_ms)
    mix = maximise(table.counts[:, active].astype(np.float64), worth, slots)
    above, most = 0.0, _most_pipelines(table, supply)
    for _ in range(effort.rounds):
        above = effort.loose * float(worth.max(initial=0.0))
        found = table.promising(rows, mix.prices, beta, hop_ms, above)
        table.score(found)
        gains = table.worth(found, beta, hop_ms) - mix.prices @ table.counts[:, found]
        found = found[gains > above]
        if not found.size:
            bound = float(mix.prices @ slots) + most * above
            break
        active = np.append(active, found)
        worth = table.worth(active, beta, hop_ms)
        mix = maximise(table.counts[:, active].astype(np.float64), worth, slots, mix.basis)
    else:
        bound = float(mix.prices @ slots) + most * _largest_gain(table, rows, mix, beta, hop_ms)
    if bound <= above_all:
        return Solved(rows[:0], rows[:0], 0.0, bound, True)
    # The whole plan also wants columns that the fractional one can do without.
    near = table.promising(
        rows, mix.prices, beta, hop_ms, -effort.near * float(worth.max(initial=0.0))
    )
    table.score(near)
    active = np.append(active, near)
    worth = table.worth(active, beta, hop_ms)
    counts, whole = table.counts[:, active], None
    many = float(mix.amounts[mix.basis >= 0].sum())
    for how in effort.searches if many >= effort.few else effort.searches[:1]:
        for look in (round_mix, dive):
            found_plan = look(counts, worth, supply, mix, how)
            if whole is None or found_plan.value > whole.value:
                whole = found_plan
            if whole.exhaustive or whole.value >= (1 - effort.gap) * bound:
                break
        else:
            continue
        break
    if whole is None:
        return Solved(rows[:0], rows[:0], 0.0, bound, False)
    if whole.exhaustive and bound - whole.value <= effort.near * float(worth.max(initial=0.0)):
        bound = whole.value  # every pattern that a better plan could use was among those searched
    small = many < effort.few
    if small and effort.nodes and not whole.exhaustive and whole.value < (1 - effort.gap) * bound:
        active, whole, bound = _branched(
            table, supply, beta, hop_ms, effort, rows, active, mix, whole, bound
        )
    used = np.flatnonzero(whole.times)
    return Solved(
        active[used], whole.times[used], whole.value, max(whole.value, bound), whole.exhaustive
    )


def _branched(
    table: Table,
    supply: Ints,
    beta: float,
    hop_ms: float,
    effort: Effort,
    rows: Ints,
    active: Ints,
    mix: Mix,
    whole: Whole,
    bound: float,
) -> tuple[Ints, Whole, float]:
    """Branch and bound over every pattern that a better plan could use: none whose reduced cost is beyond the gap."""
    more = table.promising(rows, mix.prices, beta, hop_ms, whole.value - bound)
    table.score(more)
    active = np.append(active, more)
    worth = table.worth(active, beta, hop_ms)
    counts = table.counts[:, active]
    reduced = worth - mix.prices @ counts
    best, value = np.append(whole.times, np.zeros(len(more), dtype=np.int64)), whole.value
    nearest = np.argsort(-reduced, kind="stable")
    for most in (effort.near_columns, effort.columns):
        needed = int((reduced >= value - bound).sum())
        if value >= (1 - effort.gap) * bound or (most == effort.columns and needed > most):
            break
        asked = np.union1d(nearest[: min(most, needed)], np.flatnonzero(best))
        found = branch(
            counts[:, asked], worth[asked], supply, nodes=effort.nodes, gap=effort.gap / 2
        )
        if found is None:
            break
        if float(worth[asked] @ found[0]) > value:
            value = float(worth[asked] @ found[0])
            best = np.zeros(len(active), dtype=np.int64)
            best[asked] = found[0]
        if needed <= most:  # every pattern that a better plan could use was there
            bound = max(value, min(bound, found[1]))
            break
    return active, Whole(best, value, False), bound


def _most_pipelines(table: Table, supply: Ints) -> int:
    return min(int(supply.sum()), int(table.steps.plain[:, 0] @ supply) // table.steps.layers)


def _largest_gain(table: Table, rows: Ints, mix: Mix, beta: float, hop_ms: float) -> float:
    """An upper bound of every row's reduced cost, scored or not."""
    scored = ~np.isnan(table.compute_ms[rows])
    known = table.worth(rows[scored], beta, hop_ms) - mix.prices @ table.counts[:, rows[scored]]
    rest = rows[~scored & (table.step[rows] != -1)]
    loose: Floats = table.area[rest] * table.factor(rest, table.least_ms[rest], beta, hop_ms)
    unknown = loose - mix.prices @ table.counts[:, rest]
    return float(max(0.0, known.max(initial=0.0), unknown.max(initial=0.0)))
