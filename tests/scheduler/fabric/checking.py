"""Does a placement keep LLMFabric's constraints?"""

from __future__ import annotations

from scheduler.fabric.place import FabricPlan
from scheduler.fabric.replica import replica
from scheduler.fabric.sharing import shared_replicas
from scheduler.fabric.world import Efficiency
from scheduler.fleet.errors import PlanError


def check_plan(plan: FabricPlan, efficiency: Efficiency = Efficiency()) -> None:
    """Raise PlanError unless the plan keeps C1–C3 (§3.3, equations 2–4) and serves every model.

    C1 global resource capacity: Σ_m a_{m,n} ≤ d_n. C2 memory feasibility: a replica's GPUs hold
    weights and KV cache. C3 parallelism compatibility: one ⟨ψ_DP, ψ_TP⟩ per model and type, a_{m,n}
    = ψ_DP × ψ_TP, inside a node.
    """
    types = {gpu.name: gpu for gpu in plan.types}
    for name, used in plan.gpus.items():
        if used > types[name].count:
            raise PlanError("over-capacity", f"C1: {used} of {types[name].count} {name}")
    if [part.model for part in plan.parts] != list(range(len(plan.demands))):
        raise PlanError("empty", "a model without a part")
    with_whom = {a: b for one in plan.shared for a, b in (one, one[::-1])}
    for part in plan.parts:
        demand = plan.demands[part.model]
        names = [group.gpu for group in part.groups]
        if not names:
            raise PlanError("empty", f"{demand.name} is served by nothing")
        if len(set(names)) < len(names):
            raise PlanError("overlap", f"C3: {demand.name} has two strategies on one GPU type")
        for group in part.groups:
            gpu = types[group.gpu]
            if group.tensor not in gpu.tensor_degrees or group.replicas < 1:
                raise PlanError("over-capacity", f"C3: {demand.name} as {group} on {gpu.name}")
            if part.model in with_whom:
                other = plan.demands[with_whom[part.model]]
                fits = shared_replicas(demand, other, gpu, group.tensor, efficiency) is not None
            else:
                fits = replica(gpu, group.tensor, demand, efficiency) is not None
            if not fits:
                raise PlanError(
                    "over-capacity", f"C2: {group.tensor} {gpu.name} do not hold {demand.name}"
                )
