"""Which placement does Petals make? (Borzunov et al. 2023, appendix D; Helix §6.6)"""

from __future__ import annotations

import random

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities, tokens_per_s
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Placement, Shard, in_layer_order


def petals(fleet: Fleet, model: ModelShape, seed: int = 0) -> Placement:
    """Machines join in turn, each with as many layers as it holds, where the swarm is weakest.

    A joining machine compares intervals by the throughput already there, its layers sorted from
    weakest to strongest, and takes the first of the smallest. The order of joining is the world's,
    not the algorithm's: here a shuffle of the machines by ``seed``. Serving such a placement needs
    partial inference. Raises PlanError when no machine holds a layer.
    """
    machines = list(fleet.machines)
    random.Random(seed).shuffle(machines)
    there = [0.0] * model.layers
    shards = []
    for machine in machines:
        intervals = _intervals(machine, model)
        if not intervals:
            continue
        layers = min(intervals, key=lambda held: sorted(there[held.start : held.end]))
        speed = tokens_per_s(machine, model, len(layers))
        for layer in range(layers.start, layers.end):
            there[layer] += speed
        shards.append(Shard(machine.id, layers))
    if not shards:
        raise PlanError("empty", "no machine can hold a layer")
    return in_layer_order(shards)


def _intervals(machine: Machine, model: ModelShape) -> list[LayerRange]:
    """From each first layer, as many as the machine holds there, without ranges inside others."""
    plain, first, last, both = capacities(machine, model)
    if both >= model.layers:
        return [LayerRange(0, model.layers)]
    top = model.layers - last
    head = min(first, model.layers - 1)
    found = [LayerRange(0, head)] if head else []
    found += [
        LayerRange(start, start + plain)
        for start in range(1, model.layers)
        if plain and start + plain < model.layers
    ]
    if last and top > 0:
        found.append(LayerRange(top, model.layers))
    return found
