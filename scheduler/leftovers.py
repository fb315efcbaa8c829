"""Where should a machine that is in no pipeline, or has just joined, hold layers?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.protocol.types import LayerRange
from scheduler.costs import Position, capacity
from scheduler.fleet import Fleet, Machine, ModelShape, Placement, Shard, in_layer_order
from scheduler.flow_lp import best_rate, layer_prices, rate_of, slices_of
from scheduler.interval_flow import largest_flow


def place_leftovers(
    fleet: Fleet, model: ModelShape, placement: Placement, machine_ids: Sequence[str]
) -> Placement:
    """The placement and these machines, fastest first, each where the layers it can hold are dearest.

    Between equal prices: where the layers' holders have least rate, then at the edge of a slice. Machines that hold no
    layer are left out.
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
