"""Which arrangement of several chains does one run of simulated annealing end with?

One chain is better searched by `aim`; several share the machines, so there is no single flow to aim
at, and their worth itself is annealed.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from scheduler.stages.moves import MOVES, Chain
from scheduler.stages.stages import StagePool


@dataclass(frozen=True)
class Arrangement:
    """Chains, each a list of stages (machines by index), and their worth: Σ flow / depth^β."""

    chains: tuple[tuple[tuple[int, ...], ...], ...]
    worth: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Cooling:
    """Temperature falls geometrically from ``hot`` to ``cold``, both shares of the worth."""

    hot: float = 0.03
    cold: float = 0.0005


def anneal(
    pool: StagePool,
    start: Sequence[Chain],
    idle: Sequence[int],
    *,
    seed: int,
    evaluations: int,
    depth_penalty: float = 0.0,
    cooling: Cooling = Cooling(),
    stop: Callable[[], bool] | None = None,
) -> Arrangement:
    """The best arrangement met in `evaluations` looks from ``start``; deterministic by ``seed``.

    A move is drawn, then how much may be lost by it, and only a chain that keeps that much is
    evaluated to the end.
    """
    draw = random.Random(seed).random
    chains, idle = [chain[:] for chain in start if chain], list(idle)
    weights = [1.0 / max(1, d) ** depth_penalty for d in range(pool.table.model.layers + 1)]
    flows = [max(0.0, pool.flow(chain, 0.0)) for chain in chains]
    worths = [
        f * weights[min(len(c), len(weights) - 1)] for f, c in zip(flows, chains, strict=True)
    ]
    total = sum(worths)
    best, best_chains, best_flow = total, [chain[:] for chain in chains], sum(flows)
    several = len(chains) > 1 or pool.several
    ordered = pool.links_bind or pool.ends_matter
    usable = [
        (move, weight)
        for move, weight, needs_order, needs_several in MOVES
        if (ordered or not needs_order) and (several or not needs_several)
    ]
    sums = list(accumulate(weight for _, weight in usable))
    moves, last = [move for move, _ in usable], sums[-1]
    layers = pool.table.model.layers
    flow_of, log = pool.flow, math.log
    fade = (cooling.cold / cooling.hot) ** (64.0 / max(64, evaluations))
    heat = cooling.hot
    temperature = heat * max(best, 1e-9)
    for step in range(evaluations):
        if not step & 63:
            if stop is not None and not step & 1023 and stop():
                break
            heat *= fade
            temperature = heat * max(best, 1e-9)
        change = moves[bisect_right(sums, draw() * last)](chains, idle, pool, draw)
        if change is None:
            continue
        touched, new_idle = change
        least = total + temperature * log(1.0 - draw())
        if len(touched) == 1:
            c, new = touched[0]
            depth = len(new)
            if not 0 < depth <= layers:
                continue
            weight = weights[depth]
            flow = flow_of(new, max(0.0, least - total + worths[c]) / weight)
            if flow < 0:
                continue
            total += flow * weight - worths[c]
            chains[c], flows[c], worths[c] = new, flow, flow * weight
        else:
            after = total
            for c, _ in touched:
                if c < len(worths):
                    after -= worths[c]
            found = []
            for _, new in touched:
                flow = flow_of(new, 0.0) if new else 0.0
                if flow < 0:
                    break
                found.append(flow)
                after += flow * weights[len(new)]
            if len(found) < len(touched) or after < least:
                continue
            for (c, new), flow in zip(touched, found, strict=True):
                if c == len(chains):
                    chains.append(new)
                    flows.append(flow)
                    worths.append(flow * weights[len(new)])
                else:
                    chains[c], flows[c], worths[c] = new, flow, flow * weights[len(new)]
            for c in range(len(chains) - 1, -1, -1):
                if not chains[c]:
                    del chains[c], flows[c], worths[c]
            total = sum(worths)
        if new_idle is not None:
            idle = new_idle
        if total > best * (1 + 1e-12):
            best, best_chains, best_flow = total, [chain[:] for chain in chains], sum(flows)
    shape = tuple(tuple(stage.machines for stage in chain) for chain in best_chains)
    return Arrangement(shape, best, best_flow)
