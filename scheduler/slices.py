"""What does a set of slices cover, and which slice is worth most to a machine?"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TypeAlias

from core.protocol.types import LayerRange
from scheduler.costs import capacities, end_bytes, position_of, tokens_per_s
from scheduler.fleet import Fleet, Machine, ModelShape, Shard
from scheduler.parallax_route import Route, RouteQuery, route
from scheduler.routing_table import prepare

#: Layers by machine.
Holding: TypeAlias = dict[str, LayerRange]


def is_whole(fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange]) -> bool:
    """Whether some chain, with partial slices, covers the model."""
    if uncovered(holding, model.layers):
        return False
    if all_linked(fleet):
        return True
    table = prepare(fleet, model, [Shard(*item) for item in holding.items()])
    return isinstance(route(table, RouteQuery(partial=True)), Route)


def all_linked(fleet: Fleet) -> bool:
    """Whether every machine reaches every other, as far as can be told without looking at all pairs."""
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


def fits(machine: Machine, model: ModelShape, start: int, end: int) -> bool:
    """Whether the machine can hold [start, end), by the capacity formula."""
    return end - start <= capacities(machine, model).at(start, end, model.layers)


def loaded_bytes(model: ModelShape, has: LayerRange | None, layers: LayerRange) -> int:
    """Bytes a machine that has some layers loads to hold these."""
    kept = 0 if has is None else max(0, min(has.end, layers.end) - max(has.start, layers.start))
    ends = end_bytes(model, position_of(layers, model))
    if has is not None:
        ends = max(0, ends - end_bytes(model, position_of(has, model)))
    return (len(layers) - kept) * model.layer_bytes + ends


def dearest_slice(
    machine: Machine,
    fleet: Fleet,
    model: ModelShape,
    holding: Mapping[str, LayerRange],
    must: LayerRange | None = None,
) -> LayerRange | None:
    """The slice whose layers are dearest in all: a layer's price is high where its supply is low. None where none fits."""
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
