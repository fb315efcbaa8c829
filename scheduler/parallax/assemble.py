"""Which machine takes which place, and how many layers, once phase 1 has chosen the patterns?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Literal, TypeAlias

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities, head_ms, hop_ms, tau_ms_per_layer
from scheduler.fleet.fleet import Links, Machine, ModelShape, Pipeline, Shard
from scheduler.fleet.kinds import Pattern, Pool, covers
from scheduler.fleet.water_fill import water_fill

#: F_i of the water-filling: "rate" is layers per second by τ, "tflops" the declared compute
#: capacity.
Balance: TypeAlias = Literal["rate", "tflops"]

EXHAUSTIVE_STAGES = 5
LOOK_AT_ALL = 256
END_PAIRS = 6


def hand_out(
    pool: Pool, patterns: Sequence[Pattern], model: ModelShape, links: Links
) -> list[list[Machine]]:
    """Machines for each pattern: the fastest of its largest kind, then the nearest to those.

    In a large pool only the fastest of each region is looked at.
    """
    few = sum(pool.counts) <= LOOK_AT_ALL
    tau = {
        machine.id: tau_ms_per_layer(machine, model) for group in pool.members for machine in group
    }
    shelves: list[dict[str, list[Machine]]] = []  # per kind and region, fastest last
    for group in pool.members:
        shelf: dict[str, list[Machine]] = {}
        for machine in sorted(group, key=lambda m: (tau[m.id], m.id), reverse=True):
            shelf.setdefault(machine.region, []).append(machine)
        shelves.append(shelf)
    pipelines = []
    for pattern in patterns:
        chosen: list[Machine] = []
        for t in pattern:
            at_hand = (
                machine
                for stack in shelves[t].values()
                for machine in (stack if few else stack[-1:])
            )

            def distance(machine: Machine) -> tuple[float, float, str]:
                near = sum(hop_ms(links, other, machine, model) for other in chosen)  # noqa: B023
                return near, tau[machine.id], machine.id

            best = min(at_hand, key=distance)
            shelves[t][best.region].remove(best)
            chosen.append(best)
        pipelines.append(chosen)
    return pipelines


def arrange(
    machines: Sequence[Machine], model: ModelShape, links: Links
) -> tuple[Machine, ...] | None:
    """The order with legal ends and least time in hops; None when none holds or connects.

    Exact up to EXHAUSTIVE_STAGES stages; above, cheapest insertion between the END_PAIRS most
    remote pairs of ends.
    """
    if len(machines) == 1:
        return tuple(machines) if covers([capacities(machines[0], model)], model.layers) else None
    ordered = sorted(machines, key=lambda machine: machine.id)
    n = len(ordered)
    caps = [capacities(machine, model) for machine in ordered]
    spare = sum(c.plain for c in caps) - model.layers
    ends = [
        (i, j)
        for i in range(n)
        for j in range(n)
        if i != j
        and min(caps[i].first, caps[j].last) >= 1
        and (caps[i].plain - caps[i].first) + (caps[j].plain - caps[j].last) <= spare
    ]
    if not ends or n > model.layers:
        return None
    hop = [[hop_ms(links, a, b, model) for b in ordered] for a in ordered]

    def length(order: Sequence[int]) -> float:
        return sum(hop[a][b] for a, b in pairwise(order))

    if n <= EXHAUSTIVE_STAGES:
        legal = set(ends)
        orders: Iterator[tuple[int, ...]] = (
            order for order in permutations(range(n)) if (order[0], order[-1]) in legal
        )
    else:
        ends.sort(key=lambda pair: (-sum(hop[pair[0]]) - sum(hop[pair[1]]), pair))
        orders = (_insert(i, j, hop) for i, j in ends[:END_PAIRS])
    best = min(orders, key=lambda order: (length(order), order))
    return None if length(best) == float("inf") else tuple(ordered[i] for i in best)


def _insert(first: int, last: int, hop: Sequence[Sequence[float]]) -> tuple[int, ...]:
    order = [first, last]
    for i in range(len(hop)):
        if i not in (first, last):
            detours = (
                (hop[a][i] + hop[i][b] - (hop[a][b] if hop[a][b] < float("inf") else 0.0), at)
                for at, (a, b) in enumerate(pairwise(order), start=1)
            )
            order.insert(min(detours)[1], i)
    return tuple(order)


def split(order: Sequence[Machine], model: ModelShape, balance: Balance) -> Pipeline:
    """Contiguous layers per stage by water-filling, by a cursor: no gap can arise (§3.2 iii).

    The head of the last stage counts as the layers it takes the time of. Raises PlanError when the
    order cannot hold the model.
    """
    if len(order) == 1:
        return (Shard(order[0].id, LayerRange(0, model.layers)),)
    caps = [capacities(machine, model).plain for machine in order]
    caps[0] = capacities(order[0], model).first
    caps[-1] = capacities(order[-1], model).last
    if balance == "rate":
        tau = [tau_ms_per_layer(machine, model) for machine in order]
        rates = [1 / time_ms for time_ms in tau]
        extra = [0.0] * (len(order) - 1) + [head_ms(order[-1], model) / tau[-1]]
    else:
        rates, extra = [machine.tflops for machine in order], [0.0] * len(order)
    stages, cursor = list[Shard](), 0
    for machine, layers in zip(order, water_fill(model.layers, caps, rates, extra), strict=True):
        stages.append(Shard(machine.id, LayerRange(cursor, cursor + layers)))
        cursor += layers
    return tuple(stages)
