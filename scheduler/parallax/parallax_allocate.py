"""Phase 1 as printed (Parallax §3.2): how many pipelines, and which machines make up each?

`fewest_stages` is dp₁ itself; `Objective.z` is Z(k); `allocate_by_dp` picks k̂ = arg max Z(k) and
reconstructs. dp₁ enumerates multisets of residuals, so its states grow exponentially with k:
`allocate_by_dp` gives up at a state limit. `scheduler.parallax.column_generation` solves the same
problem for any N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.fleet.errors import FleetError
from scheduler.fleet.gap import relative_gap
from scheduler.fleet.kinds import NO_WAY, Pattern, Pool

HAS_FIRST, HAS_LAST = 1, 2
#: (i, r, waiting): cursor over sorted machines, residuals of partial pipelines, pipelines still to
#: start.
State: TypeAlias = tuple[int, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Objective:
    """Z(k) = k^α / (T_comp + (s*(k)/k) r_RTT), to be maximised; (1, 0, 1) gives k²/stages."""

    alpha: float
    t_comp_ms: float
    r_rtt_ms: float

    def __post_init__(self) -> None:
        for name, value in (("t_comp_ms", self.t_comp_ms), ("r_rtt_ms", self.r_rtt_ms)):
            if not (math.isfinite(value) and value >= 0):
                raise FleetError(f"{name} is {value}, must not be negative")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise FleetError(f"alpha is {self.alpha}, must be above 0")
        if self.t_comp_ms + self.r_rtt_ms <= 0:
            raise FleetError("t_comp_ms and r_rtt_ms are both 0: Z(k) is undefined")

    def z(self, k: int, stages: float) -> float:
        """Z(k) for k pipelines of `stages` stages in all."""
        return float(k**self.alpha / (self.t_comp_ms + stages / k * self.r_rtt_ms))


@dataclass(frozen=True, slots=True)
class ScoredK:
    """A number of pipelines that was considered. ``stages`` is None when no plan was found."""

    k: int
    stages: int | None
    stages_at_least: int
    z: float
    z_at_most: float


@dataclass(frozen=True, slots=True)
class Cover:
    """The chosen patterns of one scope and the proof of how good they are.

    ``z_at_most`` bounds Z over every k; the plan is proven optimal when it equals ``z``.
    """

    patterns: tuple[Pattern, ...]
    z: float
    z_at_most: float
    scores: tuple[ScoredK, ...]
    method: str

    @property
    def gap(self) -> float:
        """Relative distance to the bound, 0 for a proven optimum or an empty scope."""
        return relative_gap(self.z, self.z_at_most)


class TooManyStates(Exception):
    """dp₁ reached its state limit."""


class Dp1:
    """dp₁(i, r, f) with skip, extend and start, memoised with back-pointers.

    The printed state (i, r, f) for a target k is kept as (i, r, waiting = k − f − |r|), which no
    longer depends on k, so one table serves every k. A partial pipeline is `residual × 4 + roles`:
    which of its ends (embedding, head) has already been given to one of its machines. The table
    gives the exact s*(k), ends included.
    """

    def __init__(self, pool: Pool, state_limit: int) -> None:
        self.layers = pool.layers
        self.kind_of = [t for t, count in enumerate(pool.counts) for _ in range(count)]
        self.caps = [pool.kinds[t] for t in self.kind_of]
        self.suffix = [0] * (len(self.caps) + 1)
        for i in range(len(self.caps) - 1, -1, -1):
            self.suffix[i] = self.suffix[i + 1] + self.caps[i].plain
        # Where both ends weigh the same, naming them in one order halves the states.
        self.ends_alike = all(c.first == c.last for c in self.caps)
        self.state_limit = state_limit
        self.table: dict[State, tuple[int, tuple[int, int] | None]] = {}

    def fewest_stages(self, k: int) -> int | None:
        """s*(k) = dp₁(0, ∅, 0), None when k pipelines do not fit. Raises TooManyStates."""
        stages = self._dp1(0, (), k)
        return None if stages >= NO_WAY else stages

    def _dp1(self, i: int, r: tuple[int, ...], waiting: int) -> int:
        if not r and not waiting:
            return 0
        left = len(self.caps) - i
        need = sum(partial // 4 for partial in r) + waiting * self.layers
        if left < len(r) + waiting or self.suffix[i] < need:
            return NO_WAY
        state = (i, r, waiting)
        known = self.table.get(state)
        if known is not None:
            return known[0]
        if len(self.table) >= self.state_limit:
            raise TooManyStates
        best, back = self._dp1(i + 1, r, waiting), None  # skip machine i
        for before, after in self._moves(i, r, waiting):
            stages = 1 + self._dp1(i + 1, *self._apply(r, waiting, before, after))
            if stages < best:
                best, back = stages, (before, after)
        self.table[state] = (best, back)
        return best

    def _moves(self, i: int, r: tuple[int, ...], waiting: int) -> list[tuple[int, int]]:
        """(partial before, after) of each extend and start; -1 before a start, after at an end."""
        moves = []
        for partial in dict.fromkeys(r):  # extend
            moves += [(partial, after) for after in self._take(i, partial // 4, partial % 4)]
        if waiting:  # start
            if self.caps[i].both >= self.layers:
                moves.append((-1, -1))
            elif self.layers > 1:
                moves += [(-1, after) for after in self._take(i, self.layers, 0)]
        return moves

    def _take(self, i: int, residual: int, roles: int) -> list[int]:
        """What a partial pipeline becomes when machine i joins it in each role still open."""
        caps = self.caps[i]
        options = []
        if not roles & HAS_FIRST:
            options.append((HAS_FIRST, caps.first))
        if not roles & HAS_LAST and not (self.ends_alike and not roles & HAS_FIRST):
            options.append((HAS_LAST, caps.last))
        if all(
            layers < caps.plain for _, layers in options
        ):  # an end that costs nothing is always taken
            options.append((0, caps.plain))
        taken = []
        for role, layers in options:
            if layers < 1:
                continue
            rest, held = max(0, residual - layers), roles | role
            if rest == 0 and held == HAS_FIRST | HAS_LAST:
                return [-1]
            taken.append(rest * 4 + held)
        return taken

    @staticmethod
    def _apply(
        r: tuple[int, ...], waiting: int, before: int, after: int
    ) -> tuple[tuple[int, ...], int]:
        partials = list(r)
        if before == -1:
            waiting -= 1
        else:
            partials.remove(before)
        if after != -1:
            partials.append(after)
        return tuple(sorted(partials)), waiting

    def reconstruct(self, k: int) -> tuple[Pattern, ...]:
        """The pipelines of the optimum for k, by following the back-pointers."""
        open_pipelines: list[tuple[int, list[int]]] = []
        done: list[Pattern] = []
        i, r, waiting = 0, (), k  # type: int, tuple[int, ...], int
        while r or waiting:
            back = self.table[i, r, waiting][1]
            if back is not None:
                before, after = back
                members: list[int] = []
                if before != -1:
                    at = next(n for n, (p, _) in enumerate(open_pipelines) if p == before)
                    members = open_pipelines.pop(at)[1]
                members = [*members, self.kind_of[i]]
                if after == -1:
                    done.append(tuple(members))
                else:
                    open_pipelines.append((after, members))
                r, waiting = self._apply(r, waiting, before, after)
            i += 1
        return tuple(sorted(done))


def allocate_by_dp(pool: Pool, objective: Objective, state_limit: int) -> Cover:
    """k̂ = arg max Z(k) by dp₁; among equal scores the larger k. Raises TooManyStates."""
    dp = Dp1(pool, state_limit)
    scores = []
    for k in range(1, pool.k_max + 1):
        stages = dp.fewest_stages(k)
        if stages is None:
            break  # k + 1 pipelines contain k
        z = objective.z(k, stages)
        scores.append(ScoredK(k, stages, stages, z, z))
    if not scores:
        return Cover((), 0.0, 0.0, (), "dp")
    best = max(scores, key=lambda scored: (scored.z, scored.k))
    return Cover(dp.reconstruct(best.k), best.z, best.z, tuple(scores), "dp")
