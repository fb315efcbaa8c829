"""Phase 1 for any N: the same s*(k) and Z(k) as dp₁, through the configuration formulation.

Minimise Σ s_p x_p subject to Σ_p x_p = k and Σ_p m_{tp} x_p ≤ n_t, x integer, where pattern p uses m_{tp} machines of
kind t and s_p machines in all (Gilmore and Gomory 1961; bin covering, Csirik et al. 2001). Its linear relaxation is a
convex piecewise-linear function of k, so a few solves bound s*(k) for every k at once, and the integer problem is
solved only for those k whose bound can still win. No clock is read: limits count nodes and columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.costs import Capacities
from scheduler.kinds import Pattern, Pool, covers, fewest_stages_at_least, minimal
from scheduler.master import Master
from scheduler.parallax_allocate import Cover, Objective, ScoredK
from scheduler.parametric import Edge, bounds, edges, whole_plan
from scheduler.pricing import cheapest_pattern

PRICE_TOLERANCE = 1e-7
ROUND_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class PatternLimits:
    """How hard to try. Past ``patterns`` minimal patterns, columns are generated instead of enumerated.

    For up to ``more_stages`` numbers of stages a whole plan is looked for beside the relaxation, before a solver is.
    """

    patterns: int = 2000
    integer_solves: int = 24
    mip_nodes: int = 5000
    pricing_rounds: int = 400
    more_stages: int = 3


@dataclass(slots=True)
class Columns:
    """The patterns in play; ``complete`` when no other minimal pattern exists."""

    patterns: list[Pattern]
    complete: bool
    known: set[Pattern] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.known = set(self.patterns)

    def add(self, pattern: Pattern) -> bool:
        """Add a pattern; False when it is already there."""
        if pattern in self.known:
            return False
        self.known.add(pattern)
        self.patterns.append(pattern)
        return True


def enumerate_patterns(pool: Pool, limit: int) -> list[Pattern] | None:
    """Every minimal pattern of the pool, or None when there are more than `limit` of them.

    Kinds are totally ordered, so a pattern grown largest kind first is minimal exactly when it covers and the pattern
    before its last machine did not.
    """
    counts, kinds, layers, found = pool.counts, pool.kinds, pool.layers, list[Pattern]()
    steps = 50 * limit  # growing past every dead end costs as much as finding a pattern
    # What two ends lose at least and at most decides nearly every pattern without choosing them.
    lost = [(kind.plain - kind.first, kind.plain - kind.last) for kind in kinds]
    least = sum(min((pair[end] for pair in lost), default=0) for end in (0, 1))
    most = sum(max((pair[end] for pair in lost), default=0) for end in (0, 1))
    any_ends = all(min(kind.first, kind.last) >= 1 for kind in kinds)

    def grow(pattern: Pattern, stages: list[Capacities], held: int) -> bool:
        nonlocal steps
        for t in range(pattern[-1] if pattern else 0, len(counts)):
            steps -= 1
            if steps < 0:
                return False
            if pattern.count(t) == counts[t]:
                continue
            longer, more = (*pattern, t), [*stages, kinds[t]]
            total = held + kinds[t].plain
            if (
                total >= layers
                and (len(longer) == 1 or total >= layers + least)
                and (
                    (any_ends and 1 < len(longer) <= layers and total >= layers + most)
                    or covers(more, layers)
                )
            ):
                found.append(longer)
                if len(found) > limit:
                    return False
            elif len(longer) < layers and not grow(longer, more, total):
                return False
        return True

    return found if grow((), [], 0) else None


def allocate_by_patterns(pool: Pool, objective: Objective, limits: PatternLimits) -> Cover:
    """k̂ = arg max Z(k) with a proven bound over every k; among equal scores the larger k.

    Raises ImportError when HiGHS is not installed.
    """
    every = enumerate_patterns(pool, limits.patterns)
    columns = Columns(every or [], complete=every is not None)
    curve = edges(pool.counts, columns.patterns) if columns.complete else None
    if curve is None:
        k_top = _most_pipelines(pool, columns, limits)
    else:
        k_top = int(curve[-1].k_to + ROUND_TOLERANCE) if curve else 0
    if k_top < 1:
        return Cover((), 0.0, 0.0, (), "patterns")
    ks = np.arange(1, k_top + 1)
    if curve is None:
        at_least = _stage_bounds(pool, columns, k_top, limits)
    else:
        at_least = np.ceil(bounds(curve, k_top) - ROUND_TOLERANCE).astype(np.int64)
    z_at_most = ks**objective.alpha / (objective.t_comp_ms + at_least / ks * objective.r_rtt_ms)

    best: tuple[float, int, tuple[Pattern, ...]] = (0.0, 0, ())
    scores: list[ScoredK] = []
    bound = 0.0
    for k in (int(ks[i]) for i in np.lexsort((-ks, -z_at_most))):
        ceiling = float(z_at_most[k - 1])
        if ceiling < best[0] or (ceiling == best[0] and k < best[1]):
            break
        if len(scores) >= limits.integer_solves and best[1]:
            bound = max(bound, ceiling)
            break
        if curve is None:
            patterns, fewest = solve_for_k(pool, columns, k, int(at_least[k - 1]), limits)
        else:
            patterns, fewest = _beside(pool, columns, curve, k, int(at_least[k - 1]), limits)
        ceiling = objective.z(k, fewest)
        stages = None if patterns is None else sum(map(len, patterns))
        z = 0.0 if stages is None else objective.z(k, stages)
        if patterns is not None and (z, k) > best[:2]:
            best = (z, k, patterns)
        if not (patterns is None and columns.complete):
            bound = max(bound, ceiling)
        scores.append(ScoredK(k, stages, fewest, z, ceiling))
    scores.sort(key=lambda scored: scored.k)
    method = "patterns" if columns.complete else "column generation"
    return Cover(best[2], best[0], max(best[0], bound), tuple(scores), method)


def _beside(
    pool: Pool,
    columns: Columns,
    curve: Sequence[Edge],
    k: int,
    at_least: int,
    limits: PatternLimits,
) -> tuple[tuple[Pattern, ...] | None, int]:
    """`solve_for_k` without a solver: a whole plan beside the relaxation's corner, one stage more at a time."""
    for _ in range(limits.more_stages):
        times, sure = whole_plan(curve, k, at_least, len(columns.patterns))
        if times is not None:
            return _repeated(columns.patterns, times), at_least
        if not sure:
            break
        at_least += 1
    return solve_for_k(pool, columns, k, at_least, limits)


def _repeated(patterns: Sequence[Pattern], times: Sequence[int]) -> tuple[Pattern, ...]:
    return tuple(sorted(p for p, n in zip(patterns, times, strict=True) for _ in range(n)))


def solve_for_k(
    pool: Pool, columns: Columns, k: int, at_least: int, limits: PatternLimits
) -> tuple[tuple[Pattern, ...] | None, int]:
    """Patterns of a plan with exactly k pipelines (None if none was found) and a proven lower bound on s*(k)."""
    plan = None if columns.complete else _dive(pool, columns, k, limits)
    if plan is not None and sum(map(len, plan)) <= at_least:
        return plan, at_least
    master = Master(pool.counts, columns.patterns, integer=True, node_limit=limits.mip_nodes)
    chosen, bound = master.solve_integer(k)
    if columns.complete:
        at_least = max(at_least, bound)
    if chosen is not None:
        exact = _repeated(columns.patterns, chosen)
        if plan is None or sum(map(len, exact)) < sum(map(len, plan)):
            plan = exact
    return (None if plan is None else tuple(sorted(plan))), at_least


def _most_pipelines(pool: Pool, columns: Columns, limits: PatternLimits) -> int:
    """An upper bound on k: ⌊max Σ x_p⌋ of the relaxation, seeded so that every smaller k is feasible in it."""
    if not columns.complete:
        seed = cheapest_pattern(pool, pool.counts, np.ones(len(pool.kinds)))
        if seed is None:
            return 0
        columns.add(minimal(seed[1], pool))
    if not columns.patterns:
        return 0
    master = Master(pool.counts, columns.patterns)
    for _ in range(limits.pricing_rounds):
        value, prices, _ = master.maximise()
        if columns.complete:
            break
        found = cheapest_pattern(pool, pool.counts, prices)
        if found is None or found[0] >= 1 - PRICE_TOLERANCE:
            break
        pattern = minimal(found[1], pool)
        if not columns.add(pattern):
            break
        master.add([pattern])
    else:
        return pool.k_max  # not converged: the capacity bound still holds
    return min(pool.k_max, int(value + ROUND_TOLERANCE))


def _stage_bounds(
    pool: Pool, columns: Columns, k_top: int, limits: PatternLimits
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A lower bound on s*(k) for each k = 1 … k_top: the relaxation's value, rounded up."""
    ks = np.arange(1, k_top + 1)
    master = Master(pool.counts, columns.patterns)
    simple = np.array([fewest_stages_at_least(pool, int(k)) for k in ks], dtype=np.float64)
    lines: list[tuple[float, float]] = []

    def tangent(k: float) -> tuple[float, float] | None:
        """(slope, intercept) of a line below the relaxation that touches it at k."""
        line = _relax(pool, pool.counts, columns, master, k, limits)
        if line is None:
            return None
        lines.append(line[:2])
        return line[:2]

    def refine(low: tuple[float, float], high: tuple[float, float]) -> None:
        if high[0] - low[0] < 1e-9 or len(lines) > 200:
            return
        k = (low[1] - high[1]) / (high[0] - low[0])
        middle = tangent(k)
        if middle is not None and middle[0] * k + middle[1] > low[0] * k + low[1] + 1e-6:
            refine(low, middle)
            refine(middle, high)

    low, high = tangent(1.0), tangent(float(k_top))
    if low is not None and high is not None:
        refine(low, high)
    bound = simple
    for slope, intercept in lines:
        bound = np.maximum(bound, np.ceil(slope * ks + intercept - ROUND_TOLERANCE))
    return bound.astype(np.int64)


def _relax(
    pool: Pool,
    counts: Sequence[int],
    columns: Columns,
    master: Master,
    k: float,
    limits: PatternLimits,
) -> tuple[float, float, list[float]] | None:
    """Solve the relaxation at k: (slope, intercept) of the dual line, valid for every k, and x. None if infeasible.

    The line is valid whether or not pricing converged: what the last pricing found missing is taken off the slope.
    """
    for _ in range(limits.pricing_rounds):
        solved = master.minimise(k)
        if solved is None:
            return None
        prices, slope, x = solved
        rents = float(np.dot(prices, counts))
        if columns.complete:
            return slope, rents, x
        found = cheapest_pattern(pool, counts, 1.0 - prices)
        if found is None:
            return None
        pattern = minimal(found[1], pool)
        if found[0] >= slope - PRICE_TOLERANCE or pattern in master.patterns:
            return min(slope, found[0]), rents, x
        columns.add(pattern)
        master.add([pattern])
    found = cheapest_pattern(pool, counts, 1.0 - prices)
    return (min(slope, found[0]), rents, x) if found else None


def _dive(
    pool: Pool, columns: Columns, k: int, limits: PatternLimits
) -> tuple[Pattern, ...] | None:
    """A plan by rounding the relaxation down, pricing anew over what is left, and so on; its columns are kept."""
    left, plan = list(pool.counts), list[Pattern]()
    while len(plan) < k:
        usable = [p for p in columns.patterns if _fits(p, left)]
        master = Master(left, usable)
        if not usable or master.maximise()[0] < k - len(plan) - ROUND_TOLERANCE:
            grown = _grow_until_feasible(pool, left, columns, master, k - len(plan), limits)
            if not grown:
                return None
        solved = _relax(pool, left, columns, master, float(k - len(plan)), limits)
        if solved is None:
            return None
        x = solved[2]
        order = sorted(range(len(x)), key=lambda p: (-x[p], master.patterns[p]))
        wanted = [(master.patterns[p], int(x[p] + ROUND_TOLERANCE)) for p in order]
        if not any(times for _, times in wanted):
            wanted = [(master.patterns[order[0]], 1)]
        taken = list(_take(wanted, left, k - len(plan)))
        if not taken:
            return None
        plan += taken
    return tuple(plan)


def _grow_until_feasible(
    pool: Pool, left: Sequence[int], columns: Columns, master: Master, k: int, limits: PatternLimits
) -> bool:
    """Add columns until the relaxation over the machines left can hold k pipelines."""
    for _ in range(limits.pricing_rounds):
        value, prices, _ = master.maximise()
        if value >= k - ROUND_TOLERANCE:
            return True
        found = cheapest_pattern(pool, left, prices)
        if found is None or found[0] >= 1 - PRICE_TOLERANCE:
            return False
        pattern = minimal(found[1], pool)
        if pattern in master.patterns:
            return False
        columns.add(pattern)
        master.add([pattern])
    return False


def _fits(pattern: Pattern, left: Sequence[int]) -> bool:
    return all(left[t] >= pattern.count(t) for t in set(pattern))


def _take(
    wanted: Iterable[tuple[Pattern, int]], left: list[int], at_most: int
) -> Iterable[Pattern]:
    """Take patterns out of the machines left, as often as wanted and possible."""
    for pattern, times in wanted:
        for _ in range(times):
            if at_most == 0 or not _fits(pattern, left):
                break
            for t in pattern:
                left[t] -= 1
            at_most -= 1
            yield pattern
