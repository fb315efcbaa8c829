"""Which chain of whole shards is best? (Every stage is one shard, boundaries must meet.)"""

from __future__ import annotations

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Floats
from scheduler.routing.routing_table import RoutingTable
from scheduler.routing.sweep import Run


def sweep_whole(
    table: RoutingTable, span: LayerRange, tau: Floats, enter: Floats, after: Floats
) -> list[Run] | int:
    """dp₂ over whole shards as (machine, first layer, end layer), or the furthest layer reached.
    `after` is what follows the last layer, by machine.
    """
    of = table.shard_machine
    cost = tau[of] * table.shard_layers
    d = np.full(len(table.shards), np.inf)
    parent = np.full(len(table.shards), -1, dtype=np.int64)
    nobody = np.array([], dtype=np.int64)
    reached = span.start
    for boundary in table.boundaries:
        if not span.start <= boundary < span.end:
            continue
        into = table.starting_at.get(boundary, nobody)
        if boundary == span.start:
            d[into] = enter[of[into]] + cost[into]
            continue
        out = table.ending_at.get(boundary, nobody)
        if not out.size or not np.isfinite(d[out]).any():
            continue
        reached = boundary
        if into.size:
            ways = d[out][:, None] + table.hops.block(of[out], of[into])
            best = np.argmin(ways, axis=0)
            d[into] = ways[best, np.arange(into.size)] + cost[into]
            parent[into] = out[best]
    ends = table.ending_at.get(span.end, nobody)
    total = d[ends] + after[of[ends]]
    if not total.size or not np.isfinite(total).any():
        return reached
    s, runs = int(ends[np.argmin(total)]), list[Run]()
    while s >= 0:
        layers = table.shards[s].layers
        runs.append((int(of[s]), layers.start, layers.end))
        s = int(parent[s])
    return runs[::-1]
