"""Which of these placements serves the most within the latency limits?

Max flow alone picks pipelines that serve less: deep ones pass more at full batches, but every token waits at every
stage. So the candidates are simulated on the real work, in rounds: all for a short while, the best ones longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scheduler.dispatch.iwrr import IwrrRouter
from scheduler.dispatch.router import Router
from scheduler.fleet import Fleet, ModelShape, Placement
from scheduler.helix.max_flow import Flow
from scheduler.placement.candidates import Candidate, by_depth
from scheduler.placement.spread import spread_flow
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import Work


@dataclass(frozen=True, slots=True)
class Round:
    """Simulate so long, then keep the best so many."""

    warmup_s: float
    duration_s: float
    keep: int


@dataclass(frozen=True, slots=True)
class RankOptions:
    """``sim`` holds chunking, latency limits and seed; its window is that of the rounds. ``dozen`` enter the first."""

    sim: SimOptions = field(default_factory=SimOptions)
    rounds: tuple[Round, ...] = (Round(30.0, 60.0, 4), Round(60.0, 200.0, 4))
    dozen: int = 12


@dataclass(frozen=True)
class Ranked:
    """A candidate, the flow its requests follow, and how it served."""

    candidate: Candidate
    flow: Flow
    report: SimReport

    @property
    def goodput_tokens_per_s(self) -> float:
        """Decode tokens per second that came in time."""
        return self.report.goodput_tokens_per_s


#: Makes the router of a placement from the flow its requests are to follow.
RouterMaker = Callable[[Fleet, ModelShape, Placement, Flow], Router]


def iwrr(fleet: Fleet, model: ModelShape, placement: Placement, flow: Flow) -> Router:
    """Helix's interleaved weighted round robin."""
    return IwrrRouter.of(fleet, model, placement, flow.links)


def rank(
    fleet: Fleet,
    model: ModelShape,
    pool: Sequence[Candidate],
    work: Work,
    options: RankOptions = RankOptions(),
    *,
    router: RouterMaker = iwrr,
) -> tuple[Ranked, ...]:
    """The candidates that came to the last round, best goodput first; ties go to the smaller decode latency."""
    first, *later = options.rounds
    ranked = play(
        fleet, model, by_depth(pool, options.dozen), work, options.sim, first, router=router
    )
    for turn in later:
        left = [r.candidate for r in ranked]
        ranked = play(fleet, model, left, work, options.sim, turn, router=router)
    return ranked


def play(
    fleet: Fleet,
    model: ModelShape,
    pool: Sequence[Candidate],
    work: Work,
    sim: SimOptions,
    turn: Round,
    *,
    met: Sequence[Ranked] = (),
    router: RouterMaker = iwrr,
) -> tuple[Ranked, ...]:
    """One round: the best of ``pool``, together with those ``met`` in an equal window before."""
    window = replace(sim, warmup_s=turn.warmup_s, duration_s=turn.duration_s)
    ranked = list(met)
    for candidate in pool:
        flow = flow_to_follow(fleet, model, candidate)
        made = router(fleet, model, candidate.placement, flow)
        report = simulate(fleet, model, candidate.placement, made, work, window)
        ranked.append(Ranked(candidate, flow, report))
    ranked.sort(key=lambda r: (-r.goodput_tokens_per_s, r.report.decode.mean_s))
    return tuple(ranked[: turn.keep])


def flow_to_follow(fleet: Fleet, model: ModelShape, candidate: Candidate) -> Flow:
    """The flow that requests follow: with partial inference only where that lets more through, for it adds hops."""
    partial = candidate.tokens_per_s > candidate.exact_tokens_per_s * (1 + 1e-6)
    return spread_flow(fleet, model, candidate.placement, partial=partial)
