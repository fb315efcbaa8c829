"""Which single chain passes at least so much, by simulated annealing on what is missing?

At a target flow F a stage of machines that pass R(k) takes the most layers with R(k) ≥ F. What a
chain misses is the layers short of L, plus a price for every link that carries less than F. Missing
falls in small steps where the flow itself, a minimum over stages and links, lies flat; whenever
nothing is missing the target is raised. (Annealing the flow itself finds the best known chain of
Helix's geo-distributed cluster in 2 of 18 runs, this in all.)
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from scheduler.search.anneal import Arrangement
from scheduler.stages.moves import MOVES, Chain
from scheduler.stages.stages import StagePool

#: Temperature at the start and at the end, in layers.
HOT, COLD = 1.0, 0.1
#: A target is raised by this much, so that float noise is no progress.
RAISE = 1 + 1e-6


def aim(
    pool: StagePool,
    start: Chain,
    idle: Sequence[int],
    *,
    seed: int,
    evaluations: int,
    depth_penalty: float = 0.0,
    floor: float = 0.0,
    stop: Callable[[], bool] | None = None,
) -> Arrangement | None:
    """The chain of the largest flow / depth^β met, None if none was worth more than ``floor``.

    Deterministic by ``seed`` unless ``stop`` ends it early.
    """
    draw = random.Random(seed).random
    layers = pool.table.model.layers
    depths = [max(1, d) ** depth_penalty for d in range(layers + 1)]
    moves = [
        (move, weight)
        for move, weight, needs_order, needs_several in MOVES
        if not needs_several and (pool.links_bind or pool.ends_matter or not needs_order)
    ]
    sums = list(accumulate(weight for _, weight in moves))
    drawn, last = [move for move, _ in moves], sums[-1]
    lacks, log = pool.lacks, math.log
    chain, idle = start, list(idle)
    best: Arrangement | None = None
    if not 0 < len(chain) <= layers:
        raise ValueError(f"a chain of {len(chain)} stages for {layers} layers")
    target = floor * RAISE
    flow = pool.flow(chain, target * depths[len(chain)])
    if flow > 0.0:
        worth = flow / depths[len(chain)]
        best = Arrangement((tuple(stage.machines for stage in chain),), worth, flow)
        target = worth * RAISE
    now = lacks(chain, target * depths[len(chain)], math.inf)
    fade = (COLD / HOT) ** (64.0 / max(64, evaluations))
    temperature = HOT / fade
    for step in range(evaluations):
        if not step & 63:
            temperature *= fade
            if stop is not None and not step & 1023 and stop():
                break
        change = drawn[bisect_right(sums, draw() * last)]((chain,), idle, pool, draw)
        if change is None:
            continue
        new = change[0][0][1]
        depth = len(new)
        if not 0 < depth <= layers:
            continue
        most = now - temperature * log(1.0 - draw())
        lack = lacks(new, target * depths[depth], most)
        if lack > most:
            continue
        chain, now = new, lack
        if change[1] is not None:
            idle = change[1]
        if lack <= 0.0:
            flow = pool.flow(chain, target * depths[depth])
            if flow > 0.0:
                worth = flow / depths[depth]
                best = Arrangement((tuple(stage.machines for stage in chain),), worth, flow)
                target = worth * RAISE
                now = lacks(chain, target * depths[depth], math.inf)
    return best
