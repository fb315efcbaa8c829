"""How many tokens a second can a placement pass, and over which links? (Helix §4.3)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduler.fleet import Fleet, ModelShape, Placement
from scheduler.helix.flow_graph import SINK, SOURCE, UNITS_PER_TOKEN, FlowGraph, flow_graph
from scheduler.helix.min_cost_flow import min_cost_flow
from scheduler.helix.preflow_push import preflow_push

#: Steps in which machines are kept evenly used.
SHARES = 4
#: Above so many arcs a linear program is faster than paths one by one.
MOST_ARCS_BY_PATHS = 1000


@dataclass(frozen=True)
class Flow:
    """A maximum flow. ``links`` maps (from id, to id) to tokens/s above 0, the coordinator's id at both ends.

    ``cut`` is a minimum cut, the proof that no more fits: links, and machines as (id, id), whose capacities add up to
    ``tokens_per_s``. It is what to enlarge first; empty when nothing flows because no chain of machines exists.
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
    """A maximum flow by preflow-push over `flow_graph`; same input, same flow. Raises PlanError as that does."""
    graph = flow_graph(fleet, model, placement, partial=partial)
    found = preflow_push(graph.vertices, graph.arcs, SOURCE, SINK)
    on_links = found.on_arc[len(placement) :]
    return _flow(graph, found.value, on_links, found.source_side)


def least_latency_flow(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> Flow:
    """Among the maximum flows, one whose tokens spend the least time on their way: hops and layers at batch 1.

    Many flows have the same value and serve differently: with partial inference a plain maximum flow may wander
    through more machines than it needs. Times are compared in whole microseconds; among equal ones, the flow that uses
    machines evenly wins, each judged by the share of its T(k) in use, in steps of 1 / `SHARES`.
    """
    graph = flow_graph(fleet, model, placement, partial=partial)
    found = preflow_push(graph.vertices, graph.arcs, SOURCE, SINK)
    machines = len(placement)
    # parallel arcs for each machine, dearer one after the other; all evenness together is below one microsecond
    microsecond = SHARES * machines + 1
    arcs, costs = list[tuple[int, int, int]](), list[int]()
    for tail, head, capacity in graph.arcs[:machines]:
        for share in range(SHARES):
            step = capacity * (share + 1) // SHARES - capacity * share // SHARES
            arcs.append((tail, head, step))
            costs.append(share)
    arcs += graph.arcs[machines:]
    costs += [round(ms * 1e3) * microsecond for ms in graph.latency_ms[machines:]]
    on_links = cheapest(graph.vertices, arcs, costs)[SHARES * machines :]
    return _flow(graph, found.value, on_links, found.source_side)


def cheapest(
    vertices: int, arcs: Sequence[tuple[int, int, int]], costs: Sequence[int]
) -> Sequence[int]:
    """Flow on each arc of a maximum flow of least cost from SOURCE to SINK, by whatever is fastest for so many arcs."""
    if len(arcs) > MOST_ARCS_BY_PATHS:
        from scheduler.helix.min_cost_lp import (
            min_cost_flow_by_lp,  # numpy, for the few who need it
        )

        try:
            return min_cost_flow_by_lp(vertices, arcs, costs, SOURCE, SINK, UNITS_PER_TOKEN)
        except (ModuleNotFoundError, ArithmeticError):
            pass  # shortest paths need no solver, only time
    return min_cost_flow(vertices, arcs, costs, SOURCE, SINK)


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
