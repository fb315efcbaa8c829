"""What does a set of slices cover, and which slice is worth most to a machine?"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TypeAlias

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities, end_bytes, position_of, tokens_per_s
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Shard
from scheduler.flow.arc_flow import largest
from scheduler.flow.flow_graph import UNITS_PER_TOKEN
from scheduler.routing.parallax_route import Route, RouteQuery, route
from scheduler.routing.routing_table import prepare

#: Layers by machine.
Layers: TypeAlias = Mapping[str, LayerRange]
Holding: TypeAlias = dict[str, LayerRange]


def is_whole(
    fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange], partial: bool = True
) -> bool:
    """Whether a chain covers the model: of parts of slices, or whole ones without ``partial``."""
    if missing(holding, model.layers, partial):
        return False
    if all_linked(fleet):
        return True
    table = prepare(fleet, model, [Shard(*item) for item in holding.items()])
    return isinstance(route(table, RouteQuery(partial=partial)), Route)


def all_linked(fleet: Fleet) -> bool:
    """Whether all machines reach each other, as far as can be told without all pairs."""
    links = fleet.links
    if any(link.latency_ms == inf for link in (*links.pairs.values(), *links.regions.values())):
        return False
    if links.default_ms is not None:
        return links.default_ms < inf
    regions = fleet.regions
    return all((a, b) in links.regions or (b, a) in links.regions for a in regions for b in regions)


def uncovered(holding: Mapping[str, LayerRange], layers: int) -> list[LayerRange]:
    """Runs of layers that nobody holds."""
    holes: list[LayerRange] = []
    reached = 0
    for held in sorted(holding.values(), key=lambda h: (h.start, h.end)):
        if held.start > reached:
            holes.append(LayerRange(reached, held.start))
        reached = max(reached, held.end)
    if reached < layers:
        holes.append(LayerRange(reached, layers))
    return holes


def missing(
    holding: Mapping[str, LayerRange], layers: int, partial: bool = True
) -> list[LayerRange]:
    """The fewest layers to hold besides for a chain over the model; ranges, left to right.

    Without ``partial`` slices only count whole, and their ends must meet.
    """
    if partial:
        return uncovered(holding, layers)
    ending: dict[int, set[int]] = {}
    for held in holding.values():
        ending.setdefault(held.end, set()).add(held.start)
    edges = sorted({0, layers}.union(ending, *ending.values()))
    least, came = (
        {0: 0},
        dict[int, int](),
    )  # layers to add so far, by edge; where the last step began
    for at, edge in enumerate(edges[1:], start=1):
        ways = [(least[start], start) for start in ending.get(edge, ())]
        ways.append((least[edges[at - 1]] + edge - edges[at - 1], edges[at - 1]))
        least[edge], came[edge] = min(ways)
    lacks: list[LayerRange] = []
    end = layers
    while end:
        start = came[end]
        if least[start] < least[end]:
            joins = lacks and lacks[-1].start == end
            lacks.append(LayerRange(start, lacks.pop().end if joins else end))
        end = start
    return lacks[::-1]


def whole_flow(fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange]) -> float:
    """Tokens per second over chains of whole slices: a maximum flow from layer 0 to L."""
    rates: dict[LayerRange, float] = {}
    for machine_id, layers in sorted(holding.items()):
        machine = fleet.by_id[machine_id]
        rate = tokens_per_s(machine, model, len(layers)) * machine.stability
        rates[layers] = rates.get(layers, 0.0) + rate
    edges = sorted({0, model.layers} | {e for layers in rates for e in (layers.start, layers.end)})
    at = {edge: i for i, edge in enumerate(edges)}
    arcs = [
        (at[layers.start], at[layers.end], round(rate * UNITS_PER_TOKEN))
        for layers, rate in sorted(rates.items())
    ]
    return largest(len(edges), arcs, 0, len(edges) - 1).value / UNITS_PER_TOKEN


def fits(machine: Machine, model: ModelShape, start: int, end: int) -> bool:
    """Whether the machine can hold [start, end), by the capacity formula."""
    return end - start <= capacities(machine, model).at(start, end, model.layers)


def loaded_bytes(model: ModelShape, has: LayerRange | None, layers: LayerRange) -> int:
    """Bytes a machine that has some layers loads to hold these."""
    ends = end_bytes(model, position_of(layers, model))
    if has is not None:
        ends = max(0, ends - end_bytes(model, position_of(has, model)))
    return (len(layers) - overlap(has, layers)) * model.layer_bytes + ends


def overlap(a: LayerRange | None, b: LayerRange | None) -> int:
    """How many layers both have."""
    if a is None or b is None:
        return 0
    return max(0, min(a.end, b.end) - max(a.start, b.start))


def dearest_slice(
    machine: Machine,
    fleet: Fleet,
    model: ModelShape,
    holding: Mapping[str, LayerRange],
    must: LayerRange | None = None,
) -> LayerRange | None:
    """The slice whose layers are dearest in all, that is in least supply. None where none fits."""
    supply = layer_supply(fleet, model, holding)
    least = min((s for s in supply if s > 0), default=1.0)
    prices = [(least / max(s, least / 2)) ** 4 for s in supply]
    total = [0.0]
    for price in prices:
        total.append(total[-1] + price)
    best: tuple[float, int, int] | None = None
    for start in range(model.layers if must is None else must.start + 1):
        end = min(model.layers, start + capacities(machine, model).plain)
        while end > start and not fits(machine, model, start, end):
            end -= 1
        if end <= start or (must is not None and end < must.end):
            continue
        found = (total[end] - total[start], -start, end)
        if best is None or found > best:
            best = found
    return None if best is None else LayerRange(-best[1], best[2])


def alone(holding: Mapping[str, LayerRange], machine_id: str, layers: int) -> LayerRange | None:
    """The layers that only this machine holds, as one run."""
    others = {i: held for i, held in holding.items() if i != machine_id}
    own = holding[machine_id]
    alone = [
        layer
        for hole in uncovered(others, layers)
        for layer in range(max(hole.start, own.start), min(hole.end, own.end))
    ]
    return LayerRange(alone[0], alone[-1] + 1) if alone else None


def layer_supply(fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange]) -> list[float]:
    """Tokens per second of each layer when every machine shares itself evenly over its slice."""
    supply = [0.0] * model.layers
    for machine_id, layers in sorted(holding.items()):
        share = tokens_per_s(fleet.by_id[machine_id], model, len(layers))
        for layer in range(layers.start, layers.end):
            supply[layer] += share
    return supply
