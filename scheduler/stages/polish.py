"""Does shifting single machines, outside of any chain, let more through?"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.max_flow import Flow, max_flow
from scheduler.stages.coverage import (
    Ranges,
    as_placement,
    coverage,
    neighbour,
    raise_coverage,
    ranges_of,
)
from scheduler.stages.table import StageTable, table_of

#: Share of the draws that are for a machine in the minimum cut, the only ones that can help at
#: once.
AT_THE_CUT = 0.6


@dataclass(frozen=True)
class Polished:
    """A placement and its max flow with partial inference."""

    placement: Placement
    tokens_per_s: float


def polish(
    fleet: Fleet,
    model: ModelShape,
    placement: Placement,
    *,
    seed: int = 0,
    evaluations: int = 200,
    stop: Callable[[], bool] | None = None,
) -> Polished:
    """A placement of no less max flow (partial inference) than given; the same by ``seed``.

    ``evaluations`` counts max flows. Where no link binds the max flow is the least coverage, which
    is annealed instead, two hundred times as often.
    """
    table = table_of(fleet, model)
    start = max_flow(fleet, model, placement, partial=True)
    if not table.links_bind:
        ranges = ranges_of(table, placement)
        if min(coverage(table, ranges)) <= 0:
            return Polished(placement, start.tokens_per_s)
        better = raise_coverage(table, ranges, seed=seed, evaluations=200 * evaluations, stop=stop)
        found = as_placement(table, better)
        flow = max_flow(fleet, model, found, partial=True).tokens_per_s
        if flow > start.tokens_per_s * (1 + 1e-9):
            return Polished(found, flow)
        return Polished(placement, start.tokens_per_s)
    return _climb(table, placement, start, random.Random(seed).random, evaluations, stop)


def _climb(
    table: StageTable,
    placement: Placement,
    flow: Flow,
    draw: Callable[[], float],
    evaluations: int,
    stop: Callable[[], bool] | None,
) -> Polished:
    """Keep every draw that does not lower the flow: the way up often leads over level ground."""
    ranges = ranges_of(table, placement)
    best, index = placement, {machine.id: i for i, machine in enumerate(table.machines)}
    made = 0
    for _ in range(20 * evaluations):
        if made >= evaluations or (stop is not None and stop()):
            break
        cut = sorted({index[end] for arc in flow.cut for end in arc if end in index})
        if cut and draw() < AT_THE_CUT:
            i = cut[int(draw() * len(cut))]
        else:
            i = int(draw() * len(ranges))
        kind = table.kinds[table.kind_of[i]]
        new = neighbour(kind, ranges[i], table.model.layers, draw)
        if new is None or new == ranges[i]:
            continue
        tried: Ranges = ranges[:]
        tried[i] = new
        if min(coverage(table, tried)) < flow.tokens_per_s:
            continue
        made += 1
        shards = as_placement(table, tried)
        now = max_flow(table.fleet, table.model, shards, partial=True)
        if now.tokens_per_s >= flow.tokens_per_s:
            if now.tokens_per_s > flow.tokens_per_s:
                best = shards
            ranges, flow = tried, now
    return Polished(best, flow.tokens_per_s)
