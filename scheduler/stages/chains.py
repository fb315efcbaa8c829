"""How do chains of stages become a placement, and a placement chains?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Placement, Shard, in_layer_order
from scheduler.stages.moves import Chain
from scheduler.stages.stages import StagePool
from scheduler.stages.table import StageTable, fits_at

#: Chains of stages of machines by index.
Shape = Sequence[Sequence[Sequence[int]]]


def placement_of(pool: StagePool, shape: Shape) -> Placement:
    """The ranges of all machines when every chain passes what it can.

    Where a machine is faster with more layers than its stage needs, it holds those before its stage
    as well: tokens enter it in the middle (partial inference).
    """
    table, shards = pool.table, list[Shard]()
    for stages in shape:
        chain = [pool.stage(machines) for machines in stages]
        start = 0
        for stage, k in zip(chain, pool.layer_counts(chain), strict=True):
            for machine in stage.machines:
                more = _faster_with(table, machine, start, k)
                layers = LayerRange(start + k - more, start + k)
                shards.append(Shard(table.machines[machine].id, layers))
            start += k
    return in_layer_order(shards)


def _faster_with(table: StageTable, machine: int, start: int, k: int) -> int:
    kind = table.kinds[table.kind_of[machine]]
    if start == 0:
        return k
    end, total = start + k, table.model.layers
    able = [
        j
        for j in range(k, min(len(kind.rates), end) + 1)
        if j == k or fits_at(kind, end - j, j, total)
    ]
    return max(able, key=lambda j: (kind.rates[j - 1], -j))


def chains_of(pool: StagePool, placement: Placement) -> tuple[list[Chain], list[int]]:
    """Chains that resemble a placement, and the machines that are in none.

    Machines with the same range are a stage. Stages are strung together from layer 0 on, each time
    the one that ends last among those that begin where the chain is or before, until no chain
    reaches the end. What is left over joins the stage it overlaps most.
    """
    table = pool.table
    index = {machine.id: i for i, machine in enumerate(table.machines)}
    stages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for machine_id, layers in placement:
        if machine_id in index:
            stages[layers.start, layers.end].append(index[machine_id])
    free, found = set(stages), list[list[tuple[int, int]]]()
    while chain := _string(free, table.model.layers):
        free -= set(chain)
        found.append(chain)
    members = {at: list(machines) for at, machines in stages.items()}
    used = [at for chain in found for at in chain]
    idle = sorted(set(range(len(table.machines))) - {m for at in stages for m in stages[at]})
    for left in sorted(free):
        near = max(used, key=lambda at: (_overlap(at, left), at), default=None)
        if near is None or not _overlap(near, left):
            idle += members[left]
        else:
            members[near] += members[left]
    return [[pool.stage(members[at]) for at in chain] for chain in found], sorted(idle)


def _string(free: set[tuple[int, int]], total: int) -> list[tuple[int, int]]:
    at, chain = 0, list[tuple[int, int]]()
    while at < total:
        able = [s for s in free if s[0] <= at < s[1]]
        if not able:
            return []
        # an exact meeting is worth more than reaching far: its layers are all of use
        step = max(able, key=lambda s: (s[0] == at, s[1] - at, s))
        chain.append(step)
        at = step[1]
    return chain


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))


def depth_of(shape: Iterable[Sequence[object]]) -> int:
    """Stages of the longest chain."""
    return max((len(chain) for chain in shape), default=0)
