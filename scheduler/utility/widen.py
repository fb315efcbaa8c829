"""Which further layers should a machine load, since it has the memory, without any other machine moving?

A stage takes as many layers as its rate asks for, often fewer than fit. The rest of its room, filled towards the
neighbours, lets requests stay longer where they are and keeps layers covered when machines leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.protocol.types import LayerRange
from scheduler.costs import capacity, position_of
from scheduler.fleet import Fleet, Machine, ModelShape, Placement, Shard, in_layer_order
from scheduler.flow_lp import rate_of


def widen(fleet: Fleet, model: ModelShape, placement: Placement) -> Placement:
    """The same shards, each grown to the furthest slice boundaries that its machine has room for."""
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
    """The longest such range that does not cost the machine layer·tokens/s, as measured tables may."""
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
