"""Which placement gives each type of machine a replica of its own? (SP, SP+: Helix §6.2, §6.5)"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from scheduler.fleet.costs import capacities, capacity, position_of, tokens_per_s
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import (
    Fleet,
    Machine,
    ModelShape,
    Pipeline,
    Placement,
    consecutive,
    in_layer_order,
)


def separate_pipelines(
    fleet: Fleet, model: ModelShape, *, mixed: bool = False, overfull: float = 1.0
) -> tuple[Pipeline, ...]:
    """One pipeline for each type (`Machine.kind`), over all its machines, as even as possible.

    Types that cannot hold the model by themselves serve nothing (SP); ``mixed`` makes one more
    pipeline of all those (SP+). ``overfull`` lets a machine take that multiple of its capacity, as
    Helix did by hand for its 70B figures: the weights then live where the planner meant to keep KV
    cache, and such pipelines neither validate nor have a T(k).

    The papers leave open in what order a type's machines stand: here by region, then id. Raises
    PlanError when no pipeline is possible at all.
    """
    kinds: dict[str, list[Machine]] = {}
    for machine in fleet.machines:
        kinds.setdefault(machine.kind, []).append(machine)
    pipelines, left = list[Pipeline](), list[Machine]()
    for _, machines in sorted(kinds.items()):
        pipeline = _even(machines, model, overfull) or chain(machines, model)
        if pipeline:
            pipelines.append(pipeline)
        else:
            left += machines
    if mixed and (pipeline := _even(left, model, overfull) or chain(left, model)):
        pipelines.append(pipeline)
    if not pipelines:
        raise PlanError("empty", "no type of machine holds the model by itself")
    return tuple(pipelines)


def as_placement(pipelines: Sequence[Pipeline]) -> Placement:
    """All stages together. Its max flow may mix the pipelines where their boundaries meet."""
    shards = [shard for pipeline in pipelines for shard in pipeline]
    return in_layer_order(shards)


def chain(machines: Sequence[Machine], model: ModelShape) -> Pipeline | None:
    """One stage a machine, the slowest as fast as can be; None when they cannot hold L.

    Every stage starts with all it can hold, then the slowest gives up one layer at a time until L
    are left. Optimal for the order (region, id) where T falls with k.
    """
    order = _in_order(machines, model)
    counts = [_most(i, machine, order, model) for i, machine in enumerate(order)]
    spare = sum(counts) - model.layers
    if not order or spare < 0 or min(counts) < 1:
        return None
    heap = [
        (tokens_per_s(machine, model, count), i)
        for i, (machine, count) in enumerate(zip(order, counts, strict=True))
    ]
    heapq.heapify(heap)
    while spare:
        _, i = heapq.heappop(heap)
        if counts[i] == 1:
            continue
        counts[i] -= 1
        spare -= 1
        heapq.heappush(heap, (tokens_per_s(order[i], model, counts[i]), i))
    return consecutive(order, counts)


def _even(machines: Sequence[Machine], model: ModelShape, overfull: float) -> Pipeline | None:
    """L / n layers each, the first ones a layer more; None where a machine cannot take its part."""
    order = _in_order(machines, model)
    if not order:
        return None
    share, more = divmod(model.layers, len(order))
    pipeline = consecutive(order, [share + (i < more) for i in range(len(order))])
    fits = all(
        len(layers) <= overfull * capacity(machine, model, position_of(layers, model))
        for machine, (_, layers) in zip(order, pipeline, strict=True)
    )
    return pipeline if fits else None


def _in_order(machines: Sequence[Machine], model: ModelShape) -> list[Machine]:
    able = [machine for machine in machines if min(capacities(machine, model)[:3]) >= 1]
    return sorted(able, key=lambda machine: (machine.region, machine.id))[: model.layers]


def _most(i: int, machine: Machine, order: Sequence[Machine], model: ModelShape) -> int:
    plain, first, last, both = capacities(machine, model)
    if len(order) == 1:
        return both
    return first if i == 0 else last if i == len(order) - 1 else plain
