"""What changes when a machine joins, and when is a new plan worth it (Parallax §3.4)?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities, kv_bytes, kv_tokens
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Shard
from scheduler.routing.parallax_route import NoRoute, RouteQuery, route
from scheduler.routing.routing_table import prepare


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to re-run phase 1 for everybody, and why. ``uncovered`` are layers nobody holds."""

    rebalance: bool
    reason: str
    uncovered: tuple[LayerRange, ...]
    coefficient_of_variation: float


def layer_loads(
    fleet: Fleet, model: ModelShape, shards: Iterable[Shard], alpha: float = 0.5
) -> tuple[float, ...]:
    """Load of each layer (§3.4 footnote 2): α · current_kv_size / total_cluster_memory + (1 − α) ·
    current_compute / total_cluster_flops, where the sums run over the machines that hold the layer.
    0 where the cluster has none.
    """
    memory = sum(machine.memory_bytes for machine in fleet.machines)
    tflops = sum(machine.tflops for machine in fleet.machines)
    loads = []
    for machines in _holders(fleet, model, shards):
        kv = sum(kv_bytes(machine) for machine in machines)
        compute = sum(machine.tflops for machine in machines)
        loads.append(
            (alpha * kv / memory if memory else 0.0)
            + ((1 - alpha) * compute / tflops if tflops else 0.0)
        )
    return tuple(loads)


def layer_kv_tokens(fleet: Fleet, model: ModelShape, shards: Iterable[Shard]) -> tuple[int, ...]:
    """RAM capacity of each layer: tokens of KV cache that its machines hold for it (§3.3)."""
    shards = tuple(shards)
    held: dict[str, int] = {}
    for machine_id, layers in shards:
        held[machine_id] = held.get(machine_id, 0) + len(layers)
    return tuple(
        sum(kv_tokens(machine, model, held[machine.id]) for machine in machines)
        for machines in _holders(fleet, model, shards)
    )


def coefficient_of_variation(values: Iterable[float]) -> float:
    """Standard deviation over mean; 0 when the mean is 0."""
    listed = tuple(values)
    mean = math.fsum(listed) / len(listed) if listed else 0.0
    if mean == 0:
        return 0.0
    return math.sqrt(math.fsum((value - mean) ** 2 for value in listed) / len(listed)) / mean


def should_rebalance(
    fleet: Fleet,
    model: ModelShape,
    shards: Iterable[Shard],
    threshold: float = math.inf,
    alpha: float = 0.5,
    partial: bool = False,
) -> Decision:
    """Re-run phase 1 when no chain covers [0, L) or loads vary by more than the threshold.

    ``partial`` tells whether chains may use parts of shards, as in `RouteQuery`. Shards of machines
    that are not in the fleet any more count as gone.
    """
    present = _present(fleet, shards)
    spread = coefficient_of_variation(layer_loads(fleet, model, present, alpha))
    found = route(prepare(fleet, model, present), RouteQuery(partial=partial))
    if isinstance(found, NoRoute):
        holes = found.layers if found.reason == "uncovered" else ()
        return Decision(True, f"no full pipeline: {found.text}", holes, spread)
    if spread > threshold:
        why = f"loads vary by {spread:.3f}, above {threshold:.3f}"
        return Decision(True, why, (), spread)
    return Decision(False, "every layer is covered and loads are even enough", (), spread)


def join(
    machine: Machine,
    fleet: Fleet,
    model: ModelShape,
    shards: Iterable[Shard],
    partial: bool = False,
) -> LayerRange | None:
    """The layers for a newcomer (§3.4 i): from ℓ* on, the layer with least RAM capacity.

    With ``partial`` routing, [ℓ*, ℓ_end) as far as its capacity reaches. Without it such a slice
    may fit no chain, so the newcomer takes the longest run between existing shard boundaries that
    contains a bottleneck layer. None when nothing fits: the machine stands by.
    """
    present = tuple(s for s in _present(fleet, shards) if s.machine_id != machine.id)
    ram = layer_kv_tokens(fleet, model, present)
    weakest = min(ram)
    caps = capacities(machine, model)

    def fits(start: int, end: int) -> bool:
        return end - start <= caps.at(start, end, model.layers)

    if partial:
        start = ram.index(weakest)
        ends = range(model.layers, start, -1)
        return next((LayerRange(start, end) for end in ends if fits(start, end)), None)
    edges = {edge for shard in present for edge in (shard.layers.start, shard.layers.end)}
    cuts = sorted(edges | {0, model.layers})
    runs = [
        (start, end)
        for start in cuts
        for end in cuts
        if start < end and fits(start, end) and weakest in ram[start:end]
    ]
    if not runs:
        return None
    return LayerRange(*min(runs, key=lambda run: (run[0] - run[1], sum(ram[slice(*run)]), run)))


def _present(fleet: Fleet, shards: Iterable[Shard]) -> tuple[Shard, ...]:
    return tuple(sorted({shard for shard in shards if shard.machine_id in fleet.by_id}))


def _holders(
    fleet: Fleet, model: ModelShape, shards: Iterable[Shard]
) -> tuple[tuple[Machine, ...], ...]:
    """The machines of the fleet that hold each layer."""
    holders: list[set[str]] = [set() for _ in range(model.layers)]
    for machine_id, layers in shards:
        if machine_id in fleet.by_id:
            for layer in range(layers.start, min(layers.end, model.layers)):
                holders[layer].add(machine_id)
    return tuple(tuple(fleet.by_id[machine_id] for machine_id in sorted(on)) for on in holders)
