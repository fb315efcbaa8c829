"""Which GPUs serve which model, and how are they split (LLMFabric §3.3)?

minimise L(W, A, P) under C1–C3, with L from the closed form of `replica`: every useful column of
every model, one of each picked by HiGHS. The paper searches the same space by constraint
programming.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.fabric.columns import (
    Column,
    Options,
    Part,
    columns_of,
    every_combination,
    options_of,
    undominated,
)
from scheduler.fabric.knapsack import Knapsack, Picked
from scheduler.fabric.lazy import first_columns
from scheduler.fabric.objective import Objective, pieces_of
from scheduler.fabric.pool import IMPROVES, ColumnPool, PlacementEffort
from scheduler.fabric.sharing import shared_columns
from scheduler.fabric.solver import pick
from scheduler.fabric.switching import Switch
from scheduler.fabric.world import Demand, Efficiency, GpuType, NeedsChain, Overloaded, check_world


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """A placement: one part for each model in order, idle GPUs of each type, and the proof.

    ``value`` is the objective with what switching adds, ``bound`` one that no placement beats;
    ``columns`` were in play. ``shared`` are pairs of models on the same GPUs.
    """

    types: tuple[GpuType, ...]
    demands: tuple[Demand, ...]
    parts: tuple[Part, ...]
    shared: tuple[tuple[int, int], ...]
    objective: Objective
    value: float
    bound: float
    columns: int
    method: str

    @property
    def gap(self) -> float:
        """Distance to the bound as a share of the value; 0 when proven, 1 when nothing is known."""
        if self.value - self.bound <= IMPROVES * max(1.0, abs(self.value)):
            return 0.0
        return 1.0 if math.isinf(self.bound) else min(1.0, (self.value - self.bound) / self.value)

    @property
    def gpus(self) -> Mapping[str, int]:
        """Σ_m a_{m,n}: GPUs in use by type; what two models share counts once."""
        used = {gpu.name: 0 for gpu in self.types}
        counted_elsewhere = {second for _, second in self.shared}
        for part in self.parts:
            if part.model not in counted_elsewhere:
                for group in part.groups:
                    used[group.gpu] += group.gpus
        return used

    @property
    def mean_latency_ms(self) -> float:
        """Over all requests."""
        rates = [demand.requests_per_s for demand in self.demands]
        latencies = [part.latency_ms for part in self.parts]
        return math.fsum(r * ms for r, ms in zip(rates, latencies, strict=True)) / math.fsum(rates)


def place(
    types: Sequence[GpuType],
    demands: Sequence[Demand],
    objective: Objective = "sum",
    *,
    efficiency: Efficiency = Efficiency(),
    switch: Switch = Switch(),
    sharing: bool = False,
    effort: PlacementEffort = PlacementEffort(),
) -> FabricPlan:
    """The best placement found and its bound. Deterministic, independent of the order of types.

    With ``sharing``, two models may also take turns on the same GPUs of one type; where not every
    column is built the bound does not know those. "slo" then frees GPUs among the placements that
    hold every limit; "minmax" lowers the sum among those with the same slowest model. Raises
    NeedsChain for a model that no node holds, Overloaded when nothing serves the load, FleetError
    for absurd input.
    """
    types = tuple(sorted(types, key=lambda gpu: gpu.name))
    check_world(types, demands)
    pieces = pieces_of(objective, demands)
    options = [options_of(m, demand, types, efficiency) for m, demand in enumerate(demands)]
    for of in options:
        if not of.kinds:
            raise NeedsChain(_too_big(of.demand, types, efficiency))
    complete = len(types) <= effort.exact_types and all(
        _combinations(of) <= effort.combinations for of in options
    )
    pool = ColumnPool(options, pieces, objective == "minmax", switch, effort)
    for of in options:
        pool.add(of, every_combination(of) if complete else first_columns(of, effort.degrees))
    bound = -math.inf
    if not complete:
        bound = pool.generate()
    if sharing:
        pool.columns += shared_columns(options, efficiency)
    knapsack = pool.knapsack()
    picked = pick(knapsack, effort.mip_nodes)
    if picked is None:
        raise _overloaded(options, effort, complete)
    bound = picked.bound if complete else bound
    value = picked.value
    picked, knapsack = _settled(picked, knapsack, objective, effort)
    chosen = [knapsack.columns[c] for c in picked.chosen]
    parts = tuple(sorted((p for column in chosen for p in column.parts), key=lambda p: p.model))
    shared = tuple(
        (column.parts[0].model, column.parts[1].model) for column in chosen if len(column.parts) > 1
    )
    return FabricPlan(
        types,
        tuple(demands),
        parts,
        shared,
        objective,
        value,
        bound,
        len(pool.columns),
        "every column" if complete else "generated columns",
    )


def _settled(
    picked: Picked, knapsack: Knapsack, objective: Objective, effort: PlacementEffort
) -> tuple[Picked, Knapsack]:
    """Among placements of the same value: the least sum for "minmax", the fewest GPUs for "slo"
    where limits hold.
    """
    enough = picked.value + IMPROVES * max(1.0, abs(picked.value))
    if objective not in ("minmax", "slo") or (objective == "slo" and enough > 2 * IMPROVES):
        return picked, knapsack
    kept = [c for c, costs in enumerate(knapsack.costs) if max(costs) <= enough]
    rest = knapsack.only(kept)
    if objective == "slo":
        gpus = tuple((float(sum(column.gpus)),) for column in rest.columns)
        costs = tuple(
            g + (0.0,) * (len(c.parts) - 1) for g, c in zip(gpus, rest.columns, strict=True)
        )
    else:
        costs = rest.costs
    again = Knapsack(rest.counts, rest.models, rest.columns, costs)
    found = pick(again, effort.mip_nodes)
    return (picked, knapsack) if found is None else (found, again)


def _combinations(of: Options) -> int:
    return math.prod(len(of.choices(n)) for n in range(len(of.types)))


def _too_big(demand: Demand, types: Sequence[GpuType], efficiency: Efficiency) -> str:
    room, name = max(
        (
            (int(max(gpu.tensor_degrees) * gpu.memory_bytes * efficiency.memory), gpu.name)
            for gpu in types
            if gpu.tensor_degrees
        ),
        default=(0, "none"),
    )
    return (
        f"model {demand.name} needs {demand.weight_bytes} bytes for weights and KV cache for one "
        "request of "
        f"{demand.workload.input_tokens + demand.workload.output_tokens:.0f} tokens; the largest "
        "group inside one node "
        f"({name}) has {room} bytes: it needs a chain over several nodes (plan it as a pipeline)"
    )


def _overloaded(options: Sequence[Options], effort: PlacementEffort, complete: bool) -> Overloaded:
    """How much of the load could be served: the placement whose busiest model is least busy."""
    columns, costs = list[Column](), list[tuple[float, ...]]()
    for of in options:
        table = every_combination(of) if complete else first_columns(of, effort.degrees)
        kept = undominated(table, table.utilisation)
        columns += columns_of(of, kept)
        costs += [(float(busy),) for busy in kept.utilisation]
    counts = tuple(gpu.count for gpu in options[0].types)
    knapsack = Knapsack(counts, len(options), tuple(columns), tuple(costs), worst=True)
    found = pick(knapsack, effort.mip_nodes)
    if found is None:
        least = [
            min(sum(c.gpus) for c in columns if c.parts[0].model == of.model) for of in options
        ]
        return Overloaded(
            f"{len(options)} models need at least {sum(least)} GPUs to be held at all, which "
            "these types do not have: "
            + ", ".join(f"{gpu.count} {gpu.name}" for gpu in options[0].types),
            0.0,
        )
    factor = 1 / found.value
    return Overloaded(
        f"the load is more than these GPUs serve: {factor:.1%} of every model's rate is the most "
        + ("possible" if complete else "found"),
        factor,
    )
