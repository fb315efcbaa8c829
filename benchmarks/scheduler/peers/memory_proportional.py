"""What would the memory-proportional policy do (memP, LLMFabric §5 "Placement strategy" and Table
1)?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product

from scheduler.fabric.columns import (
    Choice,
    Options,
    Part,
    ReplicaKind,
    columns_of,
    evaluate,
    options_of,
)
from scheduler.fabric.objective import Objective, cost, pieces_of
from scheduler.fabric.place import FabricPlan
from scheduler.fabric.world import Demand, Efficiency, GpuType, check_world
from scheduler.fleet.errors import PlanError

#: a_{m,n}: GPUs by model, then by type.
Allocation = Mapping[str, Mapping[str, int]]


def memory_proportional(types: Sequence[GpuType], demands: Sequence[Demand]) -> Allocation:
    """GPUs in proportion to a model's memory demand, "the product of the average request arrival
    rate and the model parameter size".

    The paper does not print how shares are rounded or who gets which type; this reproduces its
    Table 1: the least demanding model first takes its share, rounded up, of the GPUs with least
    memory, and the most demanding gets what is left. Raises PlanError with fewer GPUs than models.
    """
    check_world(types, demands)
    left = {gpu.name: gpu.count for gpu in types}
    smallest_first = sorted(types, key=lambda gpu: (gpu.memory_bytes, gpu.tflops, gpu.name))
    wanted = {
        d.name: Fraction(d.requests_per_s) * d.weight_bytes / Fraction(d.bytes_per_parameter)
        for d in demands
    }
    everything, gpus = sum(wanted.values()), sum(left.values())
    if gpus < len(demands):
        raise PlanError("empty", f"{gpus} GPUs for {len(demands)} models")
    order = sorted(demands, key=lambda demand: (wanted[demand.name], demand.name))
    allocation: dict[str, dict[str, int]] = {}
    for at, demand in enumerate(order):
        share = math.ceil(wanted[demand.name] / everything * gpus)
        others = len(order) - at - 1
        most = sum(left.values()) - others
        need = most if not others else min(share, most)
        taken = allocation[demand.name] = {}
        for gpu in smallest_first:
            now = min(need, left[gpu.name])
            if now:
                taken[gpu.name] = now
                left[gpu.name] -= now
                need -= now
    return allocation


def evaluate_allocation(
    types: Sequence[GpuType],
    demands: Sequence[Demand],
    allocation: Allocation,
    objective: Objective = "sum",
    efficiency: Efficiency = Efficiency(),
) -> FabricPlan:
    """A given allocation matrix with the best ⟨ψ_DP, ψ_TP⟩ that uses exactly those GPUs (C3), by
    our own latency model.

    So a policy that only counts GPUs is judged at its best. A model that its GPUs cannot hold, or
    whose load they cannot serve, has infinite latency; then so has the plan.
    """
    types = tuple(sorted(types, key=lambda gpu: gpu.name))
    check_world(types, demands)
    pieces = pieces_of(objective, demands)
    parts = []
    for m, demand in enumerate(demands):
        options = options_of(m, demand, types, efficiency)
        given = allocation.get(demand.name, {})
        per_type = [
            [
                (k, many)
                for k, many in options.choices(n)
                if _gpus(options.kinds, k, many) == given.get(gpu.name, 0)
            ]
            for n, gpu in enumerate(types)
        ]
        parts.append(_best(options, per_type))
    costs = [cost(of, part.latency_ms) for of, part in zip(pieces, parts, strict=True)]
    value = max(costs) if objective == "minmax" else sum(costs)
    return FabricPlan(
        types, tuple(demands), tuple(parts), (), objective, value, -math.inf, len(parts), "given"
    )


def _gpus(kinds: Sequence[ReplicaKind], k: int, replicas: int) -> int:
    return kinds[k].replica.tensor * replicas if replicas else 0


def _best(options: Options, per_type: Sequence[Sequence[Choice]]) -> Part:
    table = evaluate(options, product(*per_type))
    if not len(table.utilisation):
        return Part(options.model, (), math.inf, math.inf)
    fastest = min(
        range(len(table.utilisation)), key=lambda c: (table.latency_ms[c], table.utilisation[c], c)
    )
    return columns_of(options, table.rows([fastest]))[0].parts[0]
