"""Which of these placements serves the most within the latency limits?

Max flow alone picks pipelines that serve less: deep ones pass more at full batches, but every token
waits at every stage. So the candidates are simulated on the real work, in rounds: all for a short
while, the best ones longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.max_flow import Flow
from scheduler.search.candidate import Candidate
from scheduler.search.even_flow import even_flow
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.dispatch.router import Router
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import Work

#: What a latency that is over its limit by a share of it costs, as a multiple of that share of the
#: goodput.
STEEP = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """Simulate for that long, then keep the best `keep`."""

    warmup_s: float
    duration_s: float
    keep: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What prompts and decode steps may take on average."""

    prompt_s: float = math.inf
    decode_s: float = math.inf

    def times(self, factor: float) -> Limits:
        """Limits `factor` times as high."""
        return Limits(self.prompt_s * factor, self.decode_s * factor)

    def excess(self, report: SimReport) -> float:
        """By what share of its limit the worse of both is over it; 0 when both are within."""
        over = max(report.prompt.mean_s / self.prompt_s, report.decode.mean_s / self.decode_s)
        return max(0.0, over - 1.0)


@dataclass(frozen=True, slots=True)
class RankOptions:
    """``sim`` holds chunking, per-request limits and seed; its window is that of the rounds.

    The best ``dozen`` of the candidates enter the first round. The caches of a large cluster fill
    for minutes, and until then deep pipelines look better than they are: hence the long warm-up.
    """

    sim: SimOptions = field(default_factory=SimOptions)
    rounds: tuple[Round, ...] = (Round(150.0, 60.0, 4), Round(150.0, 200.0, 4))
    dozen: int = 16
    limits: Limits = Limits()


@dataclass(frozen=True)
class RankedWay:
    """A placement and the flow of its requests, made with this ``haste`` (see `even_flow`)."""

    candidate: Candidate
    haste: float
    flow: Flow


@dataclass(frozen=True)
class Ranked:
    """A way to serve and how it did."""

    way: RankedWay
    report: SimReport

    @property
    def candidate(self) -> Candidate:
        return self.way.candidate

    @property
    def goodput_tokens_per_s(self) -> float:
        """Decode tokens per second that came in time."""
        return self.report.goodput_tokens_per_s

    def worth(self, limits: Limits) -> float:
        """Goodput, steeply less where mean latencies are over the limits."""
        return self.goodput_tokens_per_s * (1.0 - STEEP * limits.excess(self.report))


#: Makes the router of a placement from the flow its requests are to follow.
RouterMaker = Callable[[Fleet, ModelShape, Placement, Flow], Router]


def iwrr(fleet: Fleet, model: ModelShape, placement: Placement, flow: Flow) -> Router:
    """Helix's interleaved weighted round robin."""
    return IwrrRouter.of(fleet, model, placement, flow.links)


def way_of(fleet: Fleet, model: ModelShape, candidate: Candidate, haste: float = 0.0) -> RankedWay:
    """An even flow, with partial inference only where that lets more through: it adds hops."""
    partial = candidate.tokens_per_s > candidate.exact_tokens_per_s * (1 + 1e-6)
    flow = even_flow(fleet, model, candidate.placement, partial=partial, haste=haste)
    return RankedWay(candidate, haste, flow)


def play(
    fleet: Fleet,
    model: ModelShape,
    ways: Iterable[RankedWay],
    work: Work,
    options: RankOptions,
    turn: Round,
    *,
    router: RouterMaker = iwrr,
    over: Callable[[], bool] | None = None,
) -> tuple[Ranked, ...]:
    """Each way simulated in this window, best first. ``over`` may end it once there is one."""
    window = replace(options.sim, warmup_s=turn.warmup_s, duration_s=turn.duration_s)
    met = list[Ranked]()
    for way in ways:
        if met and over is not None and over():
            break
        placement = way.candidate.placement
        made = router(fleet, model, placement, way.flow)
        met.append(Ranked(way, simulate(fleet, model, placement, made, work, window)))
    return best_first(met, options.limits)


def best_first(ranked: Sequence[Ranked], limits: Limits = Limits()) -> tuple[Ranked, ...]:
    """Worth most first; ties go to the smaller decode latency."""
    return tuple(sorted(ranked, key=lambda r: (-r.worth(limits), r.report.decode.mean_s)))
