"""Which chains does a search start from?"""

from __future__ import annotations

import random
from collections.abc import Sequence

from scheduler.stages.moves import Chain
from scheduler.stages.stages import StagePool
from scheduler.stages.table import region_order


def one_chain(pool: StagePool, seed: int) -> Chain:
    """All machines in one chain, region after region, one stage each while there are layers."""
    table = pool.table
    regions = sorted({machine.region for machine in table.machines})
    random.Random(seed).shuffle(regions)
    order = region_order(table, regions)
    most = max(1, table.model.layers // 2)
    if len(order) <= most:
        return [pool.stage((m,)) for m in order]
    stages = [order[i * len(order) // most : (i + 1) * len(order) // most] for i in range(most)]
    return [pool.stage(stage) for stage in stages]


def many_chains(
    pool: StagePool, seed: int, groups: Sequence[Sequence[int]]
) -> tuple[list[Chain], list[int]]:
    """As many chains as each group gives, then as the leftovers give together, and the rest.

    A chain takes the largest machines while it must grow and at last the smallest that suffices;
    those without work in the end make one stage more in the chains of their own group, in turn.
    """
    chains, idle = list[Chain](), list[int]()
    draw = random.Random(seed)
    for group in groups:
        made, left = _fill(pool, group, draw)
        for i, machine in enumerate(left):
            if not made:
                idle.append(machine)
                continue
            longer = [*made[i % len(made)], pool.stage((machine,))]
            if pool.flow(longer, 0.0) > 0:
                made[i % len(made)] = longer
            else:
                idle.append(machine)
        chains += made
    made, idle = _fill(pool, idle, draw)
    return chains + made, idle


def _fill(
    pool: StagePool, group: Sequence[int], draw: random.Random
) -> tuple[list[Chain], list[int]]:
    table, total = pool.table, pool.table.model.layers

    def size(machine: int) -> int:
        return table.kinds[table.kind_of[machine]].fits.plain

    left = sorted(group, key=lambda m: (-size(m), draw.random()))
    chains, chain, held = list[Chain](), Chain(), 0
    while left:
        enough = [m for m in left if held + size(m) >= total]
        for machine in (*reversed(enough), left[0]):
            grown = [*chain, pool.stage((machine,))]
            if machine is left[0] or pool.flow(grown, 0.0) > 0:
                break
        left.remove(machine)
        chain, held = grown, held + size(machine)
        if pool.flow(chain, 0.0) > 0:
            chains.append(chain)
            chain, held = [], 0
    return chains, sorted(m for stage in chain for m in stage.machines)
