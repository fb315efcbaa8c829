"""Which of a few plans serves most, routed as the matcher routes?

Conversations come as fast as KV caches stay filled: plans differ in the room of their caches beside
their speed, and no formula that they are made by weighs both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.search.fastest_route import FastestRouter
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop

REQUESTS = 2_000
WARMUP_S, DURATION_S = 20.0, 40.0


@dataclass(frozen=True)
class PlanTrial:
    """A plan by its name, and what it served."""

    name: str
    report: SimReport


def try_plans(
    fleet: Fleet,
    model: ModelShape,
    plans: Iterable[tuple[str, Placement]],
    over: Callable[[], bool] = lambda: False,
) -> list[PlanTrial]:
    """The plans that were tried before it was `over`, best first; of equal ones in their order."""
    work = ClosedLoop(poisson(0, REQUESTS))
    options = SimOptions(warmup_s=WARMUP_S, duration_s=DURATION_S)
    tried = list[PlanTrial]()
    for name, placement in plans:
        if over():
            break
        router = FastestRouter(fleet, model, placement, KvEstimate(fleet, model, placement))
        tried.append(PlanTrial(name, simulate(fleet, model, placement, router, work, options)))
    return sorted(tried, key=lambda trial: trial.report.rank)
