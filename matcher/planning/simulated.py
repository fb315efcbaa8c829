"""What would the plan of each method serve, with the router that goes with it?

A plan is what the matcher would tell its machines: what the method holds best, and standby machines
where the model is thinnest. Behind a coordinator it is the method's placement alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from core.runtime.commands.results import Result
from matcher.planning.plan_file import WhatIf
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Placement, Shard, in_layer_order
from scheduler.flow.max_flow import max_flow
from scheduler.live.standby import Rules, with_standby
from scheduler.methods.methods import Budget, plan_by
from scheduler.search.fastest_route import FastestRouter
from scheduler.simulate.dispatch.estimate import MEAN_OUTPUT_TOKENS, KvEstimate
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.dispatch.router import Router
from scheduler.simulate.dispatch.topology import Topology
from scheduler.simulate.histogram import Latency
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import ClosedLoop, Work

Routing = Literal["fastest", "iwrr"]
#: The product's plan, and the papers' that `matcher.placement` can choose.
METHODS = ("auto", "regions", "helix", "memory")
#: Methods whose paper spreads requests over a flow.
BY_FLOW = frozenset({"helix"})


class ServedBy(Result, frozen=True):
    """One method: what its plan served, times in seconds. `busy` is the machines' mean share."""

    method: str
    made_by: str
    routing: Routing
    machines: int
    flow_tokens_per_s: float
    decode_tokens_per_s: float
    prompt_tokens_per_s: float
    first_token_s: dict[str, float]
    token_s: dict[str, float]
    stages_per_request: float
    mean_in_flight: float
    waiting_at_end: int
    dropped: int
    finished_requests: int
    busy: float
    plan_s: float


class Simulated(Result, frozen=True):
    """`simulate`: every method fed the same requests, those that serve most first."""

    id: str
    requests: str
    warmup_s: float
    duration_s: float
    methods: list[ServedBy]
    refused: list[dict[str, str]]


@dataclass(frozen=True)
class SimulatedPlan:
    """A method's plan and how it served."""

    method: str
    made_by: str
    routing: Routing
    placement: Placement
    flow_tokens_per_s: float
    plan_s: float
    report: SimReport


def routing_of(asked: WhatIf, method: str) -> Routing:
    """The router that goes with a method: by flow behind a coordinator, or where its paper says."""
    return "iwrr" if asked.fleet.coordinator is not None or method in BY_FLOW else "fastest"


def play_method(
    asked: WhatIf,
    method: str,
    work: Work,
    options: SimOptions,
    clock: Callable[[], float],
    limit_s: float,
    routing: Routing | None = None,
) -> SimulatedPlan:
    """The plan of a method, simulated. Raises FleetError where it has none."""
    fleet, model, started = asked.fleet, asked.model, clock()
    budget = Budget(clock, started + limit_s)
    found = plan_by(method, fleet, model, budget)
    placement = found.placement
    if fleet.coordinator is None:
        held = {shard.machine_id: shard.layers for shard in placement}
        rules = Rules(method="utility" if method == "auto" else method)
        holding = with_standby(fleet, model, held, rules, budget).holding
        placement = in_layer_order(Shard(*item) for item in holding.items())
    plan_s = clock() - started
    flow = found.flow if fleet.coordinator is not None else None
    flow = flow or max_flow(fleet, model, placement, partial=True)
    routing = routing or routing_of(asked, method)
    kv = KvEstimate(fleet, model, placement, output_tokens=_mean_output_tokens(work))
    router: Router
    if routing == "fastest":
        if fleet.coordinator is not None:
            raise FleetError("the fastest chain is found for requests that come from everywhere")
        router = FastestRouter(fleet, model, placement, kv)
    else:
        router = IwrrRouter(Topology.of(fleet, model, placement, partial=True), kv, flow.links)
    report = simulate(fleet, model, placement, router, work, options)
    return SimulatedPlan(
        method, found.method, routing, placement, flow.tokens_per_s, plan_s, report
    )


def _mean_output_tokens(work: Work) -> int:
    """What a request is expected to produce: by its trace, or the mean of the built-in one."""
    if isinstance(work, ClosedLoop) or not work:
        return MEAN_OUTPUT_TOKENS
    return round(fmean(arrival.output_tokens for arrival in work))


def mean_stages(report: SimReport) -> float:
    """Stages that a decode step visited."""
    visits = sum(node.passes * node.mean_decodes for node in report.nodes)
    return visits / report.decode.count if report.decode.count else 0.0


def served_by(played: SimulatedPlan) -> ServedBy:
    """A run as the command prints it."""
    report = played.report
    return ServedBy(
        method=played.method,
        made_by=played.made_by,
        routing=played.routing,
        machines=len(played.placement),
        flow_tokens_per_s=round(played.flow_tokens_per_s, 3),
        decode_tokens_per_s=round(report.decode_tokens_per_s, 3),
        prompt_tokens_per_s=round(report.prompt_tokens_per_s, 3),
        first_token_s=_latency(report.first_token),
        token_s=_latency(report.decode),
        stages_per_request=round(mean_stages(report), 3),
        mean_in_flight=round(report.mean_in_flight, 2),
        waiting_at_end=report.waiting_at_end,
        dropped=report.dropped,
        finished_requests=report.finished_requests,
        busy=round(fmean(node.utilisation for node in report.nodes), 4),
        plan_s=round(played.plan_s, 3),
    )


def _latency(found: Latency) -> dict[str, float]:
    return {
        "mean": round(found.mean_s, 4),
        "p50": round(found.p50_s, 4),
        "p95": round(found.p95_s, 4),
        "p99": round(found.p99_s, 4),
    }


def best_first(played: Sequence[SimulatedPlan]) -> list[SimulatedPlan]:
    """Those that served most first; of equal ones those with the shorter time a token."""
    return sorted(played, key=lambda it: (it.report.rank, it.method))


def simulated_rows(found: Simulated) -> list[dict[str, Any]]:
    """One row a method, for people."""
    return [
        {
            "method": one.method,
            "routing": one.routing,
            "tokens/s": f"{one.decode_tokens_per_s:,.1f}",
            "ms/token": f"{1e3 * one.token_s['mean']:.1f}",
            "p95": f"{1e3 * one.token_s['p95']:.1f}",
            "s to first": f"{one.first_token_s['mean']:.2f}",
            "stages": f"{one.stages_per_request:.2f}",
            "at once": f"{one.mean_in_flight:.1f}",
            "busy": f"{one.busy:.0%}",
            "flow": f"{one.flow_tokens_per_s:,.0f}",
        }
        for one in found.methods
    ]
