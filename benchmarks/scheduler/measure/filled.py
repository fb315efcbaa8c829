"""What would a plan serve if every machine were full: standby machines placed, spare room filled?

A stage takes as many layers as its rate asks for, often fewer than fit. The rest of its room,
filled towards the neighbours, lets requests stay longer where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.costs import Position, capacity, position_of
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Placement, Shard, in_layer_order
from scheduler.flow.flow_lp import best_rate, layer_prices, rate_of, slices_of
from scheduler.flow.interval_flow import largest_flow
from scheduler.utility.plan import UtilityPlan


def serving_placement(
    fleet: Fleet, model: ModelShape, plan: UtilityPlan, *, wide: bool = True
) -> Placement:
    """The plan's pipelines, its standby machines where layers are dearest and, with `wide`, every
    slice grown into the room its machine has left. The pipelines of the plan stay servable as they
    are.
    """
    placed = place_leftovers(fleet, model, plan.placement, plan.standby)
    return widen(fleet, model, placed) if wide else placed


def place_leftovers(
    fleet: Fleet, model: ModelShape, placement: Placement, machine_ids: Sequence[str]
) -> Placement:
    """The placement and these machines, fastest first, each where the layers it can hold are
    dearest.

    Between equal prices: where the layers' holders have least rate, then at the edge of a slice.
    Machines that hold no layer are left out.
    """
    shards = list(placement)
    chosen = sorted(
        (fleet.by_id[m] for m in machine_ids), key=lambda m: (-best_rate(m, model), m.id)
    )
    for machine in chosen:
        grouped = slices_of(fleet, model, tuple(shards))
        _, short = largest_flow(grouped.spans, grouped.together, grouped.widths)
        price = np.array(layer_prices(short, grouped.widths))
        supply = np.zeros(model.layers)
        edges = {0, model.layers}
        for machine_id, layers in shards:
            rate = rate_of(fleet.by_id[machine_id], model, len(layers))
            supply[layers.start : layers.end] += rate / len(layers)
            edges |= {layers.start, layers.end}
        slots = _slots(machine, model)
        if slots:
            best = max(
                slots,
                key=lambda s: (
                    round(float(price[s.start : s.end].sum()), 12),
                    -float(supply[s.start : s.end].mean()),
                    (s.start in edges) + (s.end in edges),
                    -s.start,
                ),
            )
            shards.append(Shard(machine.id, best))
    return in_layer_order(shards)


def _slots(machine: Machine, model: ModelShape) -> list[LayerRange]:
    """Every range of layers of the length at which the machine gives most, the longest of them."""

    def longest(position: Position) -> int:
        most = capacity(machine, model, position)
        if position is not Position.BOTH:
            most = min(most, model.layers - 1)
        if machine.profile is None or machine.profile.tokens_per_s_by_layers is None:
            return most
        return max(range(1, most + 1), key=lambda k: (rate_of(machine, model, k), k), default=0)

    if capacity(machine, model, Position.BOTH) >= model.layers:
        whole = longest(Position.BOTH)
        if whole == model.layers:
            return [LayerRange(0, model.layers)]
    plain, first, last = (longest(p) for p in (Position.PLAIN, Position.FIRST, Position.LAST))
    slots = [LayerRange(0, first)] if first >= 1 else []
    if plain >= 1:
        slots += [LayerRange(a, a + plain) for a in range(1, model.layers - plain)]
    if last >= 1:
        slots.append(LayerRange(model.layers - last, model.layers))
    return slots


def widen(fleet: Fleet, model: ModelShape, placement: Placement) -> Placement:
    """The same shards, each grown to the furthest slice boundaries that its machine has
    room for.
    """
    edges = sorted(
        {0, model.layers} | {e for s in placement for e in (s.layers.start, s.layers.end)}
    )
    grown = [
        Shard(s.machine_id, _grown(fleet.by_id[s.machine_id], model, s.layers, edges))
        for s in placement
    ]
    return in_layer_order(grown)


def _grown(
    machine: Machine, model: ModelShape, layers: LayerRange, edges: Sequence[int]
) -> LayerRange:
    """The longest such range that does not cost the machine layer·tokens/s, as measured
    tables may.
    """
    enough = rate_of(machine, model, len(layers)) * (1 - 1e-9)
    wider = [
        LayerRange(a, b)
        for a in edges
        if a <= layers.start
        for b in edges
        if b >= layers.end
        and b - a <= capacity(machine, model, position_of(LayerRange(a, b), model))
        and rate_of(machine, model, b - a) >= enough
    ]
    middle = layers.start + layers.end
    return max(
        wider, key=lambda r: (len(r), -abs(r.start + r.end - middle), -r.start), default=layers
    )
