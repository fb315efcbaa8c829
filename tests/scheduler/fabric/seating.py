"""On which nodes do the replicas of a placement stand?

ψ_TP are powers of two that divide a node, so filling nodes in order of falling ψ_TP never leaves a
gap: what C1 allows always fits, and models share nodes where that fills them.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.fabric.place import FabricPlan
from scheduler.fleet.errors import PlanError


class Seat(NamedTuple):
    """One replica: its GPU type, its node and first GPU there, how many GPUs, and the models (two
    where they share).
    """

    gpu: str
    node: int
    first: int
    tensor: int
    models: tuple[str, ...]


def seats(plan: FabricPlan) -> tuple[Seat, ...]:
    """A seat for every replica, each inside one node. Raises PlanError when a type has too few GPUs
    (C1).
    """
    partner = dict(plan.shared)
    second = set(partner.values())
    wanted: dict[str, list[tuple[int, tuple[str, ...]]]] = {gpu.name: [] for gpu in plan.types}
    for part in plan.parts:
        if part.model in second:
            continue
        models = [plan.demands[part.model].name]
        if part.model in partner:
            models.append(plan.demands[partner[part.model]].name)
        for group in part.groups:
            wanted[group.gpu] += [(group.tensor, tuple(models))] * group.replicas
    found = []
    for gpu in plan.types:
        at = 0
        for tensor, names in sorted(wanted[gpu.name], key=lambda want: (-want[0], want[1])):
            if at + tensor > gpu.count:
                raise PlanError("over-capacity", f"C1: {gpu.count} {gpu.name} do not hold the plan")
            found.append(
                Seat(gpu.name, at // gpu.gpus_per_node, at % gpu.gpus_per_node, tensor, names)
            )
            at += tensor
    return tuple(found)
