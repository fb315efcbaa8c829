"""What do the requests of every model's trace wait under a placement?"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import PlanError
from scheduler.fabric.place import FabricPlan
from scheduler.fabric.replay import Replayed, replay
from scheduler.fabric.replica import Replica, replica
from scheduler.fabric.world import Efficiency
from scheduler.workload import Arrival


def replay_plan(
    plan: FabricPlan, traces: Sequence[Sequence[Arrival]], efficiency: Efficiency = Efficiency()
) -> tuple[tuple[Replayed, ...], ...]:
    """For each model in order, what each of its replicas did with its share of the model's trace.

    Requests go round in proportion to capacity. Raises PlanError for models that share GPUs, which only the closed form
    knows, and for a model without replicas.
    """
    types = {gpu.name: gpu for gpu in plan.types}
    found = []
    for part, demand, trace in zip(plan.parts, plan.demands, traces, strict=True):
        if any(part.model in pair for pair in plan.shared):
            raise PlanError("machine-twice", f"{demand.name} shares its GPUs")
        replicas = list[Replica]()
        for group in part.groups:
            one = replica(types[group.gpu], group.tensor, demand, efficiency)
            if one is not None:
                replicas += [one] * group.replicas
        if not replicas:
            raise PlanError("empty", f"{demand.name} is served by nothing")
        shares = _dealt(trace, [one.capacity_per_s for one in replicas])
        found.append(
            tuple(
                replay(one, share, efficiency.max_sequences)
                for one, share in zip(replicas, shares, strict=True)
            )
        )
    return tuple(found)


def _dealt(trace: Sequence[Arrival], capacities: Sequence[float]) -> list[list[Arrival]]:
    """Each request to the replica that is furthest behind its share."""
    shares: list[list[Arrival]] = [[] for _ in capacities]
    for request in trace:
        behind = min(range(len(shares)), key=lambda r: ((len(shares[r]) + 1) / capacities[r], r))
        shares[behind].append(request)
    return shares
