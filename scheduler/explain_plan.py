"""Why does a plan carry what it carries: what binds, how far from the best it is, what each machine is worth?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.costs import Position, capacity
from scheduler.explain import explain_pipeline
from scheduler.fleet import Fleet, ModelShape
from scheduler.flow_lp import solve_flow_lp
from scheduler.helix.max_flow import max_flow
from scheduler.methods import MethodPlan

#: As many pipelines or machines are named; the rest are counted.
NAMED = 6


@dataclass(frozen=True, slots=True)
class Explained:
    """``flow_tokens_per_s`` is what the placement passes with partial slices.

    ``prices`` say what one more unit of a machine's rate would add to it: tokens/s per token/s behind a coordinator,
    tokens/s per layer·token/s in a fleet. Machines that are not short have price 0 and are left out.
    """

    flow_tokens_per_s: float
    sentences: tuple[str, ...]
    prices: tuple[tuple[str, float], ...]


def explain_plan(plan: MethodPlan, fleet: Fleet, model: ModelShape) -> Explained:
    """The plan in sentences and prices."""
    if fleet.coordinator is not None:
        flow, prices, sentences = _behind_coordinator(plan, fleet, model)
    else:
        flow, prices, sentences = _in_fleet(plan, fleet, model)
    best = max(flow, plan.tokens_per_s)
    if plan.at_most:
        sentences.append(
            f"{best:.1f} tokens/s are {best / plan.at_most:.1%} of {plan.at_most:.1f}, "
            "which no plan of these machines passes"
        )
    if plan.gap == plan.gap:
        sentences.append(
            f"{plan.method}: proven best of what it looks for"
            if plan.gap <= 1e-9
            else f"{plan.method}: at most {plan.gap:.2%} below the best of what it looks for"
        )
    else:
        sentences.append(f"{plan.method} proves nothing about its plan")
    if plan.standby:
        layers = sum(capacity(fleet.by_id[i], model, Position.PLAIN) for i in plan.standby)
        sentences.append(
            f"{len(plan.standby)} machines stand by with room for {layers} of {model.layers} layers"
        )
    sentences += [f"{machine} is ignored: {why}" for machine, why in plan.ignored]
    return Explained(flow, tuple(sentences), tuple(sorted(prices)))


def _behind_coordinator(
    plan: MethodPlan, fleet: Fleet, model: ModelShape
) -> tuple[float, list[tuple[str, float]], list[str]]:
    flow = max_flow(fleet, model, plan.placement, partial=True)
    machines = sorted(a for a, b in flow.cut if a == b)
    links = sorted((a, b) for a, b in flow.cut if a != b)
    sentences = []
    if machines:
        sentences.append(f"what binds is the rate of {_listed(machines)}, all of it used")
    if links:
        ends = [f"{a} → {b}" for a, b in links]
        sentences.append(f"what binds is the bandwidth of {_listed(ends)}")
    return flow.tokens_per_s, [(machine, 1.0) for machine in machines], sentences


def _in_fleet(
    plan: MethodPlan, fleet: Fleet, model: ModelShape
) -> tuple[float, list[tuple[str, float]], list[str]]:
    flow = solve_flow_lp(fleet, model, plan.placement, fewest_hops=False)
    prices = [(machine, price) for machine, price in flow.machine_price.items() if price > 0]
    sentences = []
    if plan.disjoint:
        slowest = sorted(plan.chains, key=lambda chain: (chain.tokens_per_s, chain.stages))
        for chain in slowest[:NAMED]:
            report = explain_pipeline(chain.stages, fleet, model)
            path = " → ".join(f"{stage.machine_id} [{stage.layers}]" for stage in report.stages)
            sentences.append(
                f"{path}: {chain.tokens_per_s:.0f} tokens/s, {report.latency_ms:.1f} ms a token "
                f"({report.hops_ms:.1f} ms in hops); {report.advice}"
            )
        if len(slowest) > NAMED:
            sentences.append(f"{len(slowest) - NAMED} faster pipelines are not listed")
    binding = _merged(flow.bottleneck)
    if sum(len(layers) for layers in binding) == model.layers:
        sentences.append(
            f"with partial slices {flow.tokens_per_s:.1f} tokens/s: every layer binds alike, "
            "so any faster machine helps"
        )
    else:
        where = _listed([f"{layers}" for layers in binding])
        sentences.append(
            f"with partial slices {flow.tokens_per_s:.1f} tokens/s: layers {where} bind"
        )
    return flow.tokens_per_s, prices, sentences


def _merged(ranges: Sequence[LayerRange]) -> list[LayerRange]:
    joined: list[LayerRange] = []
    for layers in sorted(ranges):
        if joined and joined[-1].end == layers.start:
            joined[-1] = LayerRange(joined[-1].start, layers.end)
        else:
            joined.append(layers)
    return joined


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
