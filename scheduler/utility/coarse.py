"""Which kinds are near enough to be planned as one?

Measured machines are all a little different, and patterns are listed over few kinds. A coarse kind
is the worst of its members in everything, so whatever is planned with it holds; its best twin
bounds what was given away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler.fleet.costs import Capacities
from scheduler.utility.kinds import Grouped, MachineKind

#: A step of capacity weighs more than one of rate: it decides whether a pipeline closes at all.
CAPACITY_WEIGHT = 2.0
#: Above this many kinds, those within one such step of log rate and capacity are joined before
#: pairs are compared.
PAIRWISE, STEP = 64, 0.05


def coarsened(grouped: Grouped, most: int) -> tuple[Grouped, tuple[MachineKind, ...]]:
    """At most `most` kinds, fastest first, and the best twin of each; unchanged if they are few."""
    if len(grouped.kinds) <= most:
        return grouped, grouped.kinds
    points = [
        (math.log(kind.best_rate), CAPACITY_WEIGHT * math.log(kind.capacities.plain))
        for kind in grouped.kinds
    ]
    clusters = _joined(points, [len(members) for members in grouped.members], most)
    made = []
    for cluster in clusters:
        kinds = [grouped.kinds[t] for t in cluster]
        made.append((_worst(kinds), _best(kinds), cluster))
    made.sort(key=lambda one: (one[0].tau_ms, one[0].head_ms, one[0].capacities, one[2]))
    members = tuple(
        tuple(sorted((m for t in cluster for m in grouped.members[t]), key=lambda m: m.id))
        for _, _, cluster in made
    )
    where = {machine.id: t for t, group in enumerate(members) for machine in group}
    worst_of = tuple(worst for worst, _, _ in made)
    return Grouped(grouped.layers, worst_of, members, where), tuple(best for _, best, _ in made)


def _worst(kinds: Sequence[MachineKind]) -> MachineKind:
    caps = Capacities(*(min(values) for values in zip(*(k.capacities for k in kinds), strict=True)))
    rates = tuple(min(k.rates[i] for k in kinds) for i in range(caps.plain))
    return MachineKind(caps, rates, max(k.tau_ms for k in kinds), max(k.head_ms for k in kinds))


def _best(kinds: Sequence[MachineKind]) -> MachineKind:
    caps = Capacities(*(max(values) for values in zip(*(k.capacities for k in kinds), strict=True)))
    rates = tuple(max(k.rates[i] for k in kinds if i < len(k.rates)) for i in range(caps.plain))
    return MachineKind(caps, rates, min(k.tau_ms for k in kinds), min(k.head_ms for k in kinds))


def _joined(
    points: Sequence[tuple[float, float]], weights: Sequence[int], most: int
) -> list[list[int]]:
    """Clusters by joining the two of least harm (diameter times machines) until `most` are left."""
    clusters = [[t] for t in range(len(points))]
    if len(points) > PAIRWISE:
        cells: dict[tuple[int, int], list[int]] = {}
        for t, point in enumerate(points):
            cells.setdefault((round(point[0] / STEP), round(point[1] / STEP)), []).append(t)
        clusters = [cells[cell] for cell in sorted(cells)]
    low = np.array([[min(points[t][d] for t in c) for d in (0, 1)] for c in clusters])
    high = np.array([[max(points[t][d] for t in c) for d in (0, 1)] for c in clusters])
    weight = np.array([sum(weights[t] for t in c) for c in clusters], dtype=np.float64)
    while len(clusters) > most:
        wide = np.maximum(high[:, None], high[None]) - np.minimum(low[:, None], low[None])
        harm = wide.sum(axis=2) * (weight[:, None] + weight[None])
        np.fill_diagonal(harm, np.inf)
        a, b = sorted(divmod(int(np.argmin(harm)), len(clusters)))
        clusters[a] = sorted(clusters[a] + clusters[b])
        low[a], high[a] = np.minimum(low[a], low[b]), np.maximum(high[a], high[b])
        weight[a] += weight[b]
        del clusters[b]
        low, high, weight = (np.delete(array, b, axis=0) for array in (low, high, weight))
    return clusters
