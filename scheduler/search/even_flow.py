"""Which flow keeps machines, caches and links evenly busy, and prompts off slow machines?

A maximum flow is one of many, and a basic one: in a stage with room to spare it fills one machine
and leaves another idle, and between regions one link. Requests that follow it fill the KV cache of
that machine first, and wait for that link. This flow minimises Σ capacity · use^(POWER + 1) over
machines, caches and links, plus what prompts spend on their way, by Frank-Wolfe steps, each a
min-cost flow.
"""

from __future__ import annotations

import math

from scheduler.fleet.costs import kv_tokens, link_tokens_per_s
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.fleet.workload import Workload
from scheduler.flow.arc_flow import Cheapest, largest
from scheduler.flow.flow_graph import SINK, SOURCE, UNITS_PER_TOKEN, FlowGraph, flow_graph
from scheduler.flow.max_flow import Flow

#: A mean prompt.
PROMPT_TOKENS = round(Workload().input_tokens)
#: Share of the maximum flow that is spread: the rest is the freedom to spread it.
KEPT = 0.9
STEPS = 24
POWER = 3
#: A link this many times wider than the fastest machine is never in anyone's way.
WIDE = 4.0


def even_flow(
    fleet: Fleet,
    model: ModelShape,
    placement: Placement,
    *,
    partial: bool = False,
    haste: float = 0.0,
) -> Flow:
    """A flow of KEPT times the maximum with the load spread; links are as in `Flow`.

    ``haste`` is what a second that a mean prompt computes or is on its way counts against a machine
    used to the full: the larger, the less flow goes over slow machines. How long links take to send
    a prompt is left out, for only an even use of them keeps prompts from waiting there. Same input,
    same flow.
    """
    graph = flow_graph(fleet, model, placement, partial=partial)
    value = int(largest(graph.vertices, graph.arcs, SOURCE, SINK).value * KEPT)
    if value <= 0:
        return Flow(0.0, {}, (), graph.coordinator_id)
    rooms = _rooms(fleet, model, graph)
    linear = [haste * ms / 1e3 for ms in graph.prompt_ms(PROMPT_TOKENS)]
    cheapest = Cheapest(graph.vertices, graph.arcs, SOURCE, SINK, value)
    now = [float(amount) for amount in cheapest.at(linear)]
    for step in range(STEPS):
        costs = [
            base + sum((amount / room) ** POWER for room in of)
            for base, amount, of in zip(linear, now, rooms, strict=True)
        ]
        share = 2.0 / (step + 2.0) if step else 0.5
        now = [a + share * (b - a) for a, b in zip(now, cheapest.at(costs), strict=True)]
    machines = len(graph.placement)
    links = {
        ends: amount / UNITS_PER_TOKEN
        for ends, amount in zip(graph.ends[machines:], now[machines:], strict=True)
        if amount > 1e-9 * value
    }
    return Flow(value / UNITS_PER_TOKEN, links, (), graph.coordinator_id)


def _rooms(fleet: Fleet, model: ModelShape, graph: FlowGraph) -> list[list[float]]:
    """What an arc's flow is measured against: rate and KV room of a machine, width of a link."""
    of, coordinator, placement = fleet.by_id, fleet.coordinator, graph.placement
    rates = [capacity for _, _, capacity in graph.arcs[: len(placement)]]
    kv = [kv_tokens(of[machine_id], model, len(layers)) for machine_id, layers in placement]

    def least(room: list[int]) -> int:
        return min(
            sum(r for r, (_, layers) in zip(room, placement, strict=True) if layer in layers)
            for layer in range(model.layers)
        )

    passed, tightest = least(rates), least(kv)
    rooms = list[list[float]]()
    for rate, room in zip(rates, kv, strict=True):
        share = passed * room / tightest if tightest else math.inf
        rooms.append([max(1.0, rate), max(1.0, share)])
    for a, b in graph.ends[len(placement) :]:
        start = coordinator if a == graph.coordinator_id else of[a]
        end = coordinator if b == graph.coordinator_id else of[b]
        if start is None or end is None:
            rooms.append([])
            continue
        width = link_tokens_per_s(fleet.links, start, end, model) * UNITS_PER_TOKEN
        rooms.append([width] if 0 < width < WIDE * max(rates) else [])
    return rooms
