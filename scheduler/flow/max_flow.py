"""How many tokens a second can a placement pass, and over which links? (Helix §4.3)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.arc_flow import Arc, Cheapest, largest
from scheduler.flow.flow_graph import SINK, SOURCE, UNITS_PER_TOKEN, FlowGraph, flow_graph

#: Steps in which machines are kept evenly used.
SHARES = 4


@dataclass(frozen=True)
class Flow:
    """A maximum flow. ``links`` maps (from id, to id) to tokens/s above 0, the coordinator's id at
    both ends.

    ``cut`` is a minimum cut, the proof that no more fits: links, and machines as (id, id), whose
    capacities add up to ``tokens_per_s``. It is what to enlarge first; empty when nothing flows
    because no chain of machines exists.
    """

    tokens_per_s: float
    links: Mapping[tuple[str, str], float]
    cut: tuple[tuple[str, str], ...] = ()
    coordinator_id: str = "coordinator"

    @cached_property
    def by_machine(self) -> Mapping[str, float]:
        """Tokens/s through each machine that is used."""
        through: dict[str, float] = {}
        for (_, to), rate in self.links.items():
            if to != self.coordinator_id:
                through[to] = through.get(to, 0.0) + rate
        return through


def max_flow(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> Flow:
    """A maximum flow over `flow_graph`; same input, same flow. Raises PlanError as that does."""
    graph = flow_graph(fleet, model, placement, partial=partial)
    found = largest(graph.vertices, graph.arcs, SOURCE, SINK)
    on_links = found.on_arc[len(placement) :]
    return _flow(graph, found.value, on_links, found.source_side)


def least_latency_flow(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> Flow:
    """The maximum flow whose tokens spend the least time on their way: hops, layers at batch 1.

    Many flows have the same value and serve differently: with partial inference a plain maximum
    flow may wander through more machines than it needs. Times are compared in whole microseconds;
    among equal ones, the flow that uses machines evenly wins, each judged by the share of its T(k)
    in use, in steps of 1 / `SHARES`.
    """
    graph = flow_graph(fleet, model, placement, partial=partial)
    found = largest(graph.vertices, graph.arcs, SOURCE, SINK)
    if not found.value:
        return _flow(graph, 0, found.on_arc[len(placement) :], found.source_side)
    machines = len(placement)
    # parallel arcs for each machine, dearer one after the other; all evenness together is below one
    # microsecond
    microsecond = SHARES * machines + 1
    arcs, costs = list[Arc](), list[int]()
    for tail, head, capacity in graph.arcs[:machines]:
        for share in range(SHARES):
            step = capacity * (share + 1) // SHARES - capacity * share // SHARES
            arcs.append((tail, head, step))
            costs.append(share)
    arcs += graph.arcs[machines:]
    costs += [round(ms * 1e3) * microsecond for ms in graph.latency_ms[machines:]]
    cheapest = Cheapest(graph.vertices, arcs, SOURCE, SINK, found.value)
    return _flow(graph, found.value, cheapest.at(costs)[SHARES * machines :], found.source_side)


def _flow(
    graph: FlowGraph, value: int, on_links: Sequence[int], source_side: frozenset[int]
) -> Flow:
    links = {
        ends: amount / UNITS_PER_TOKEN
        for ends, amount in zip(graph.ends[len(graph.placement) :], on_links, strict=True)
        if amount
    }
    cut = tuple(
        ends
        for ends, (tail, head, capacity) in zip(graph.ends, graph.arcs, strict=True)
        if capacity and tail in source_side and head not in source_side
    )
    return Flow(value / UNITS_PER_TOKEN, links, cut, graph.coordinator_id)
