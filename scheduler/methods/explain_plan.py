"""Why does a plan carry what it does: what binds, the gap, the worth of each machine?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.costs import Position, capacity, tokens_per_s
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.flow.flow_lp import rate_of, solve_flow_lp
from scheduler.flow.max_flow import max_flow
from scheduler.flow.min_cuts import short_of
from scheduler.methods.explain import explain_pipeline
from scheduler.methods.methods import MethodPlan

#: As many pipelines or machines are named; the rest are counted.
NAMED = 6


@dataclass(frozen=True, slots=True)
class MachineUse:
    """A machine of a plan: the tokens/s it passes, the share of them in use, and its price.

    The price is what a token/s of its rate is worth in tokens/s of the whole plan, 0 where it is
    not short. Behind a coordinator: what one less would cost. In a fleet, where layers can be
    shared out: the dual of that linear program, so that Σ price · rate is the whole flow.
    """

    machine_id: str
    layers: LayerRange
    tokens_per_s: float
    used: float
    price: float


@dataclass(frozen=True, slots=True)
class Explained:
    """``flow_tokens_per_s`` is what the placement passes with partial slices, ``bottleneck`` names
    what holds it there: machines, links, or ranges of layers. ``machines`` are those of the
    placement, in its order.
    """

    flow_tokens_per_s: float
    bottleneck: tuple[str, ...]
    sentences: tuple[str, ...]
    machines: tuple[MachineUse, ...]


def explain_plan(plan: MethodPlan, fleet: Fleet, model: ModelShape) -> Explained:
    """The plan in sentences: what binds, the gap, who stands by; and the worth of each machine."""
    if fleet.coordinator is not None:
        flow, binding, machines, sentences = _behind_coordinator(plan, fleet, model)
    else:
        flow, binding, machines, sentences = _in_fleet(plan, fleet, model)
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
    return Explained(flow, tuple(binding), tuple(sentences), tuple(machines))


#: Flow, what binds, machines, sentences.
_Answer = tuple[float, list[str], list[MachineUse], list[str]]


def _behind_coordinator(plan: MethodPlan, fleet: Fleet, model: ModelShape) -> _Answer:
    flow = plan.flow or max_flow(fleet, model, plan.placement, partial=True)
    short = short_of(fleet, model, plan.placement, partial=True)
    machines = sorted(a for a, b in short.some if a == b)
    links = [f"{a} → {b}" for a, b in sorted(short.some) if a != b]
    sentences = []
    if machines:
        sentences.append(f"what binds is the rate of {_listed(machines)}, all of it used")
    if links:
        sentences.append(f"what binds is the bandwidth of {_listed(links)}")
    if len(short.some) > 1 and not short.every:
        sentences.append("they are equally short: more of one of them alone adds nothing")
    uses = []
    for machine_id, layers in plan.placement:
        rate = tokens_per_s(fleet.by_id[machine_id], model, len(layers))
        used = flow.by_machine.get(machine_id, 0.0) / rate if rate else 0.0
        uses.append(MachineUse(machine_id, layers, rate, used, float(machine_id in machines)))
    return flow.tokens_per_s, [*machines, *links], uses, sentences


def _in_fleet(plan: MethodPlan, fleet: Fleet, model: ModelShape) -> _Answer:
    flow = solve_flow_lp(fleet, model, plan.placement)
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
    given: dict[str, float] = {}
    for (machine_id, segment), passed in flow.shares.items():
        given[machine_id] = given.get(machine_id, 0.0) + passed * len(segment)
    uses = []
    for machine_id, layers in plan.placement:
        rate, many = rate_of(fleet.by_id[machine_id], model, len(layers)), len(layers)
        used = given.get(machine_id, 0.0) / rate if rate else 0.0
        price = flow.machine_price[machine_id] * many
        uses.append(MachineUse(machine_id, layers, rate / many, used, price))
    return flow.tokens_per_s, [f"layers {layers}" for layers in binding], uses, sentences


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
