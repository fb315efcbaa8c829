"""Which placement serves this work best? Candidates, simulation, and once more with the best in other orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.fleet import Fleet, ModelShape, Placement
from scheduler.placement.candidates import (
    Candidate,
    PoolOptions,
    by_depth,
    candidates,
    reordered,
)
from scheduler.placement.rank import Ranked, RankOptions, RouterMaker, iwrr, play
from scheduler.simulate.work import Work


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``orders`` further orders of the stages are tried for each of the ``finalists``."""

    pool: PoolOptions = field(default_factory=PoolOptions)
    rank: RankOptions = field(default_factory=RankOptions)
    finalists: int = 2
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
    over: Callable[[], bool] | None = None,
) -> ServePlan:
    """The candidate with the most goodput on ``work``, of ``pool`` or else of all that `candidates` finds.

    Deterministic unless ``over`` ends the gathering of candidates.
    """
    pool = tuple(pool) or candidates(fleet, model, options.pool, warm=warm, over=over)
    first, *later = options.rank.rounds
    sim, dozen = options.rank.sim, by_depth(pool, options.rank.dozen)
    ranked = play(fleet, model, dozen, work, sim, first, router=router)
    others = [
        other
        for i, best in enumerate(ranked[: options.finalists])
        for other in reordered(fleet, model, best.candidate, options.orders, options.pool.seed + i)
    ]
    ranked = play(fleet, model, others, work, sim, first, met=ranked, router=router)
    for turn in later:
        left = [r.candidate for r in ranked]
        ranked = play(fleet, model, left, work, sim, turn, router=router)
    return ServePlan(ranked[0], by_depth(pool, len(pool)), ranked)
