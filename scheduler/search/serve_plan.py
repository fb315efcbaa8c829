"""Which placement serves this work best, and along which flow?

Candidates of different depth are simulated for a short while; the best are tried with requests kept
off slow machines, and then in other orders of their stages; the best of all these are simulated for
longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.search.candidate import Candidate, by_depth
from scheduler.search.candidates import PoolOptions, candidates, reordered
from scheduler.search.rank import (
    Ranked,
    RankedWay,
    RankOptions,
    RouterMaker,
    best_first,
    iwrr,
    play,
    way_of,
)
from scheduler.simulate.work import Work


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Each of the ``finalists`` is tried with these ``hastes``, then in other ``orders``.

    Every second finalist may be over the latency limits by a share of ``slack``: haste brings
    latencies down.
    """

    pool: PoolOptions = field(default_factory=PoolOptions)
    rank: RankOptions = field(default_factory=RankOptions)
    finalists: int = 2
    slack: float = 0.1
    hastes: tuple[float, ...] = (3.0, 10.0)
    orders: int = 4


@dataclass(frozen=True)
class ServePlan:
    """The best, what it was chosen from, and the runners-up of the last round."""

    best: Ranked
    pool: tuple[Candidate, ...]
    ranked: tuple[Ranked, ...]


def plan_to_serve(
    fleet: Fleet,
    model: ModelShape,
    work: Work,
    options: ServeOptions = ServeOptions(),
    *,
    warm: Sequence[Placement] = (),
    pool: Sequence[Candidate] = (),
    router: RouterMaker = iwrr,
    gathered: Callable[[], bool] | None = None,
    over: Callable[[], bool] | None = None,
) -> ServePlan:
    """The way worth most on ``work``, of ``pool`` or else of all that `candidates` finds.

    Deterministic unless ``gathered`` ends the gathering of candidates, or ``over`` the simulations,
    early.
    """
    pool = tuple(pool) or candidates(fleet, model, options.pool, warm=warm, over=gathered)
    ranking, limits = options.rank, options.rank.limits
    first, *later = ranking.rounds
    met = list[Ranked]()

    def short(ways: Sequence[RankedWay]) -> None:
        if not met or over is None or not over():
            met.extend(play(fleet, model, ways, work, ranking, first, router=router, over=over))

    def finalists() -> list[Ranked]:
        """The best way of each of the best candidates, also of those nearly within the limits."""
        best = dict[Placement, Ranked]()
        nearly = limits.times(1 + options.slack)
        for pair in zip(best_first(met, limits), best_first(met, nearly), strict=True):
            for ranked in pair:
                best.setdefault(ranked.candidate.placement, ranked)
        return list(best.values())[: options.finalists]

    short([way_of(fleet, model, candidate) for candidate in by_depth(pool, ranking.dozen)])
    short(
        _new_flows(
            [
                way_of(fleet, model, ranked.candidate, haste)
                for ranked in finalists()
                for haste in options.hastes
            ],
            met,
        )
    )
    short(
        [
            way_of(fleet, model, other, ranked.way.haste)
            for i, ranked in enumerate(finalists())
            for other in reordered(
                fleet, model, ranked.candidate, options.orders, options.pool.seed + i
            )
        ]
    )
    ranked = best_first(met, limits)[: first.keep]
    for turn in later:
        if over is not None and over():
            break
        ways = [r.way for r in ranked]
        ranked = play(fleet, model, ways, work, ranking, turn, router=router, over=over)
        ranked = ranked[: turn.keep]
    return ServePlan(ranked[0], pool, ranked)


def _new_flows(ways: Sequence[RankedWay], met: Sequence[Ranked]) -> list[RankedWay]:
    """Those that differ from what was met: in stages of equal machines haste changes nothing."""
    known = [(r.candidate.placement, r.way.flow.links) for r in met]
    found = list[RankedWay]()
    for way in ways:
        seen = (way.candidate.placement, way.flow.links)
        if seen not in known:
            known.append(seen)
            found.append(way)
    return found
