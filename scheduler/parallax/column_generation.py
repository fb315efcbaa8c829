"""Phase 1 for any N: the same s*(k) and Z(k) as dp₁, through the configuration formulation.

Minimise Σ s_p x_p subject to Σ_p x_p = k and Σ_p m_{tp} x_p ≤ n_t, x integer, where pattern p uses
m_{tp} machines of kind t and s_p machines in all (Gilmore and Gomory 1961; bin covering, Csirik et
al. 2001). Its linear relaxation is a convex piecewise-linear function of k. At a price μ of a
pipeline the relaxation gives a line below all of it (Eisner and Severance 1976), so a few prices
bound s*(k) for every k, and the integer problem is solved only for those k whose bound can still
win. No clock is read: limits count nodes and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from scheduler.covering.simplex import Mix, maximise
from scheduler.covering.whole import Search, best_whole
from scheduler.fleet.arrays import Floats, Ints
from scheduler.fleet.costs import Capacities
from scheduler.fleet.kinds import NO_WAY, Pattern, Pool, covers, fewest_stages_at_least, minimal
from scheduler.parallax.parallax_allocate import Cover, Objective, ScoredK
from scheduler.parallax.pricing import cheapest_pattern

PRICE_TOLERANCE = 1e-7
ROUND_TOLERANCE = 1e-6
#: Of a pipeline: less of a further one is not looked for, and may be missing from what is found.
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class PatternLimits:
    """How hard to try. Past ``patterns`` minimal patterns, columns are generated, not enumerated.

    A whole plan is looked for among ``classes`` classes of machines with ``width`` states first,
    and by a solver with ``mip_nodes`` nodes where that does not prove it.
    """

    patterns: int = 2000
    integer_solves: int = 24
    mip_nodes: int = 5000
    pricing_rounds: int = 400
    classes: int = 2048
    width: int = 100


class Columns:
    """The patterns in play, none twice; ``complete`` when no other minimal pattern exists.

    ``uses`` [kind, pattern] counts machines, ``sizes`` all of a pattern's.
    """

    def __init__(self, patterns: Sequence[Pattern], kinds: int, *, complete: bool) -> None:
        self.patterns, self.complete = list(patterns), complete
        self.uses: Ints = np.zeros((kinds, len(patterns)), dtype=np.int64)
        for p, pattern in enumerate(patterns):
            for t in pattern:
                self.uses[t, p] += 1

    @property
    def sizes(self) -> Ints:
        return np.asarray(self.uses.sum(axis=0))

    def add(self, pattern: Pattern) -> bool:
        """Add a pattern; False when it is already there."""
        if pattern in self.patterns:
            return False
        self.patterns.append(pattern)
        column = np.bincount(pattern, minlength=len(self.uses))
        self.uses = np.column_stack([self.uses, column])
        return True


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The best mix of those patterns that ``fit``, and what the ``cheapest`` pattern costs then.

    A machine costs 1 and the price of its kind.
    """

    mix: Mix
    fit: Ints
    cheapest: float

    @property
    def times(self) -> tuple[Ints, Floats]:
        """Patterns, by number, and how often each is used."""
        used = self.mix.basis >= 0
        return self.fit[self.mix.basis[used]], self.mix.amounts[used]


def relaxed(
    pool: Pool,
    columns: Columns,
    counts: Sequence[int],
    k: int,
    price: float,
    limits: PatternLimits,
    basis: Ints | None = None,
) -> Relaxed:
    """The mix of at most k pipelines, each worth `price` less its stages, by these machines.

    Columns are generated where not all are known. A `basis` of an answer for the same machines and
    k, when there were fewer columns, starts it warm.
    """
    supply = np.array([*counts, k], dtype=np.float64)
    for _ in range(limits.pricing_rounds):
        fit = np.flatnonzero((columns.uses <= supply[:-1, None]).all(axis=0))
        rows = np.vstack([columns.uses[:, fit], np.ones(len(fit))]).astype(np.float64)
        worth: Floats = price - columns.sizes[fit].astype(np.float64)
        mix = maximise(rows, worth, supply, basis, pivots=4000)
        basis, weights = mix.basis, 1.0 + mix.prices[:-1]
        if columns.complete:
            return Relaxed(mix, fit, float((weights @ columns.uses).min()))
        found = cheapest_pattern(pool, counts, weights)
        if found is None:
            return Relaxed(mix, fit, price)
        cheapest, pattern = found
        enough = cheapest >= price - mix.prices[-1] - PRICE_TOLERANCE
        if enough or not columns.add(minimal(pattern, pool)):
            break
    return Relaxed(mix, fit, cheapest)


def enumerate_patterns(pool: Pool, limit: int) -> list[Pattern] | None:
    """Every minimal pattern of the pool, or None when there are more than `limit` of them.

    Kinds are totally ordered, so a pattern grown largest kind first is minimal exactly when it
    covers and the pattern before its last machine did not.
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


class StageCurve:
    """The relaxation's stages by k, as far as it was asked for: lines below it, and its corners.

    The first line is that of a price at which a thousandth of a further pipeline pays, whatever
    stages it costs: its corner is the most pipelines, within that.
    """

    def __init__(self, pool: Pool, columns: Columns, limits: PatternLimits) -> None:
        self.pool, self.columns, self.limits = pool, columns, limits
        self.corners: list[tuple[float, float]] = [(0.0, 0.0)]
        self.lines: list[tuple[float, float]] = []
        self._basis: Ints | None = None
        if columns.patterns or not columns.complete:
            self._ask((sum(pool.counts) + 1) / LEAST_SHARE)
        ks = range(1, self.k_top + 1)
        self._simple = np.array([fewest_stages_at_least(pool, k) for k in ks], dtype=np.float64)

    @property
    def k_top(self) -> int:
        """No plan has more pipelines."""
        return min(self.pool.k_max, int(self.corners[-1][0] + LEAST_SHARE))

    def stages_at_least(self) -> Floats:
        """For k = 1 … k_top: no plan of k pipelines has fewer stages."""
        ks = np.arange(1, self.k_top + 1)
        bound = self._simple
        for slope, intercept in self.lines:
            bound = np.maximum(bound, np.ceil(slope * ks + intercept - ROUND_TOLERANCE))
        return bound

    def refine(self, k: int) -> bool:
        """Ask for one more line near k; False where nothing more is to be known there."""
        at = next(i for i, (end, _) in enumerate(self.corners) if end >= k - LEAST_SHARE)
        (k_from, low), (k_to, high) = self.corners[at - 1], self.corners[at]
        price = (high - low) / (k_to - k_from)
        known = any(abs(slope - price) <= ROUND_TOLERANCE for slope, _ in self.lines)
        if known or len(self.lines) > self.limits.pricing_rounds:
            return False
        self._ask(price)
        return True

    def _ask(self, price: float) -> None:
        """Add the line of this price of a pipeline, and the corner that it touches.

        The line is valid whether or not pricing converged: what the last pricing found missing is
        taken off the slope.
        """
        counts = self.pool.counts
        more = sum(counts) + 1
        found = relaxed(self.pool, self.columns, counts, more, price, self.limits, self._basis)
        self._basis = found.mix.basis
        rents = float(found.mix.prices[:-1] @ np.array(counts))
        self.lines.append((min(price, found.cheapest), -rents))
        used, times = found.times
        k, stages = float(times.sum()), float(self.columns.sizes[used] @ times)
        if all(abs(k - known) > ROUND_TOLERANCE for known, _ in self.corners):
            self.corners = sorted([*self.corners, (k, stages)])


def allocate_by_patterns(pool: Pool, objective: Objective, limits: PatternLimits) -> Cover:
    """k̂ = arg max Z(k) with a proven bound over every k; among equal scores the larger k."""
    every = enumerate_patterns(pool, limits.patterns)
    columns = Columns(every or [], len(pool.kinds), complete=every is not None)
    curve = StageCurve(pool, columns, limits)
    method = "patterns" if columns.complete else "column generation"
    if curve.k_top < 1:
        return Cover((), 0.0, 0.0, (), "patterns")
    ks = np.arange(1, curve.k_top + 1)
    best: tuple[float, int, tuple[Pattern, ...]] = (0.0, 0, ())
    scores: dict[int, ScoredK] = {}
    bound = 0.0
    at_least = curve.stages_at_least()
    while len(scores) < len(ks):
        z_at_most = ks**objective.alpha / (objective.t_comp_ms + at_least / ks * objective.r_rtt_ms)
        z_at_most[[k - 1 for k in scores]] = -1.0
        k = int(ks[np.lexsort((-ks, -z_at_most))[0]])
        ceiling = float(z_at_most[k - 1])
        if ceiling < best[0] or (ceiling == best[0] and k < best[1]):
            break
        if curve.refine(k):
            at_least = curve.stages_at_least()
            continue
        if len(scores) >= limits.integer_solves and best[1]:
            bound = max(bound, ceiling)
            break
        patterns, fewest = solve_for_k(pool, columns, k, int(at_least[k - 1]), limits)
        stages = None if patterns is None else sum(map(len, patterns))
        z = 0.0 if stages is None else objective.z(k, stages)
        if patterns is not None and (z, k) > best[:2]:
            best = (z, k, patterns)
        if fewest < NO_WAY:
            bound = max(bound, objective.z(k, fewest))
        scores[k] = ScoredK(k, stages, fewest, z, ceiling)
    return Cover(
        best[2], best[0], max(best[0], bound), tuple(scores[k] for k in sorted(scores)), method
    )


def solve_for_k(
    pool: Pool, columns: Columns, k: int, at_least: int, limits: PatternLimits
) -> tuple[tuple[Pattern, ...] | None, int]:
    """Patterns of a plan with exactly k pipelines (None if none was found), and a proven bound.

    The bound is on s*(k), NO_WAY where no such plan exists.
    """
    if columns.complete:
        times, fewest = _beside(columns.uses, pool.counts, k, limits)
        at_least = max(at_least, fewest)
    else:
        times = _dived(pool, columns, k, limits)
    if times is None or columns.sizes @ times > at_least:
        exact, fewest = _branched(columns.uses, pool.counts, k, limits)
        at_least = max(at_least, fewest) if columns.complete else at_least
        if exact is not None and (times is None or columns.sizes @ exact < columns.sizes @ times):
            times = exact
    if times is None:
        return None, at_least
    plan = (p for p, n in zip(columns.patterns, times.tolist(), strict=True) for _ in range(n))
    return tuple(sorted(plan)), at_least


def _dived(pool: Pool, columns: Columns, k: int, limits: PatternLimits) -> Ints | None:
    """How often each pattern is used: the mix rounded down, then priced anew for the rest."""
    left, dear = np.array(pool.counts), float(sum(pool.counts) + 1)
    times = list[int]()
    while k:
        found = relaxed(pool, columns, left.tolist(), k, dear, limits)
        times += [0] * (len(columns.patterns) - len(times))
        used, amounts = found.times
        if not len(used):
            return None
        whole = (amounts + ROUND_TOLERANCE).astype(np.int64)
        if not whole.any():
            whole[np.argmax(amounts)] = 1
        for p, many in zip(used.tolist(), whole.tolist(), strict=True):
            times[p] += many
        left = left - columns.uses[:, used] @ whole
        k -= int(whole.sum())
    return np.array(times, dtype=np.int64)


def _beside(
    uses: Ints, counts: Sequence[int], k: int, limits: PatternLimits
) -> tuple[Ints | None, int]:
    """How often each pattern is used by a plan beside the relaxation's, and a bound on its stages.

    Each pipeline is worth more than all machines, so that k of them are found where that can be.
    """
    sizes = uses.sum(axis=0)
    dear = sum(counts) + 1
    rows = np.vstack([uses, np.ones(uses.shape[1], dtype=np.int64)])
    supply = np.array([*counts, k], dtype=np.int64)
    fits = np.flatnonzero((rows <= supply[:, None]).all(axis=0))
    worth = (dear - sizes[fits]).astype(np.float64)
    slots = supply.astype(np.float64)
    mix = maximise(rows[:, fits].astype(np.float64), worth, slots)
    over = max(0.0, float((worth - mix.prices @ rows[:, fits]).max()))
    bound = float(mix.prices @ slots) + over * k
    searches = (Search(limits.width, (1 - ROUND_TOLERANCE) / bound),)
    found = best_whole(rows[:, fits], worth, supply, mix, bound, searches, limits.classes, 1.0)
    at_least = int(np.ceil(k * dear - found.bound - ROUND_TOLERANCE))
    if found.times.sum() < k:
        return None, at_least
    times = np.zeros(uses.shape[1], dtype=np.int64)
    times[fits] = found.times
    return times, at_least


def _branched(
    uses: Ints, counts: Sequence[int], k: int, limits: PatternLimits
) -> tuple[Ints | None, int]:
    """The same by branch and bound; (None, NO_WAY) proves that these patterns make no such plan."""
    found = milp(
        uses.sum(axis=0),
        integrality=np.ones(uses.shape[1]),
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(uses, ub=np.array(counts)),
            LinearConstraint(np.ones((1, uses.shape[1])), k, k),
        ],
        options={"node_limit": limits.mip_nodes, "mip_rel_gap": 0.0},
    )
    if found.status == 2:
        return None, NO_WAY
    bound = 0 if found.mip_dual_bound is None else int(np.ceil(found.mip_dual_bound - 1e-6))
    return None if found.x is None else np.rint(found.x).astype(np.int64), bound
