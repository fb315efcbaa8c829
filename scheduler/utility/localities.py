"""Which machines are near each other?

Measured latencies decide; the declared region stands in where nobody has measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from scheduler.fleet.arrays import Floats
from scheduler.fleet.fleet import UNMEASURED_RHO_MS, Links, Machine

#: Two groups are one locality while the way between them is at most this much longer than inside.
FACTOR = 2.0
#: Of an unmeasured latency, what is assumed inside one declared region.
INSIDE = 0.2
#: Below this, latencies count as equal.
FLOOR_MS = 1.0
#: A machine with this many measured peers is placed by them; what nobody measured of it then says
#: nothing.
PEERS = 3
#: Above this many machines only regions are clustered.
MACHINES = 2048


def localities(machines: Sequence[Machine], links: Links) -> tuple[tuple[Machine, ...], ...]:
    """Groups of near machines, largest first; each in order of id."""
    ordered = sorted(machines, key=lambda machine: machine.id)
    if not ordered:
        return ()
    ids = {machine.id for machine in ordered}
    measured = any(a in ids and b in ids and a != b for a, b in links.pairs)
    if measured and len(ordered) <= MACHINES:
        label = _by_gap(distances(ordered, links))
    else:
        of_region = _by_region(ordered, links)
        label = [of_region[machine.region] for machine in ordered]
    groups: dict[int, list[Machine]] = {}
    for machine, which in zip(ordered, label, strict=True):
        groups.setdefault(which, []).append(machine)
    return tuple(tuple(g) for g in sorted(groups.values(), key=lambda g: (-len(g), g[0].id)))


def distances(machines: Sequence[Machine], links: Links) -> Floats:
    """Symmetric latencies [ms] of all pairs: measured, else by region, else the default.

    Infinite between machines that both have measured peers but not each other.
    """
    n = len(machines)
    names = sorted({machine.region for machine in machines})
    at = {name: i for i, name in enumerate(names)}
    region = np.array([at[machine.region] for machine in machines])
    access = np.array([machine.access_ms for machine in machines])
    between = np.array([[region_ms(links, a, b) for b in names] for a in names])
    known = np.array([[_of_regions(links, a, b) is not None for b in names] for a in names])
    far: Floats = between[region][:, region]
    far = far + np.where(known[region][:, region], access[:, None] + access[None, :], 0.0)
    where = {machine.id: i for i, machine in enumerate(machines)}
    told = np.full((n, n), np.nan)
    for (a, b), link in links.pairs.items():
        if a in where and b in where:
            told[where[a], where[b]] = link.latency_ms
    told = np.where(np.isnan(told), told.T, told)
    peers = (~np.isnan(told)).sum(axis=1)
    well_known = (peers[:, None] >= PEERS) & (peers[None, :] >= PEERS)
    far = np.where(np.isnan(told), np.where(well_known, np.inf, far), told)
    np.fill_diagonal(far, 0.0)
    result: Floats = np.maximum(far, far.T)
    return result


def _of_regions(links: Links, a: str, b: str) -> float | None:
    link = links.regions.get((a, b)) or links.regions.get((b, a))
    return None if link is None else link.latency_ms


def region_ms(links: Links, a: str, b: str) -> float:
    """Latency between two regions without machines' access; a prior where it is unknown."""
    known = _of_regions(links, a, b)
    if known is not None:
        return known
    if links.default_ms is None:
        return UNMEASURED_RHO_MS * INSIDE if a == b else math.inf
    return links.default_ms * (INSIDE if a == b else 1.0)


def _by_region(machines: Sequence[Machine], links: Links) -> dict[str, int]:
    access: dict[str, list[float]] = {}
    for machine in machines:
        access.setdefault(machine.region, []).append(machine.access_ms)
    mean = {name: sum(values) / len(values) for name, values in access.items()}
    inside = {name: max(FLOOR_MS, region_ms(links, name, name) + 2 * mean[name]) for name in mean}
    label = {name: i for i, name in enumerate(sorted(mean))}
    for a in sorted(mean):
        for b in sorted(mean):
            way = region_ms(links, a, b) + mean[a] + mean[b]
            if label[a] != label[b] and way <= FACTOR * max(inside[a], inside[b]):
                gone, kept = label[b], label[a]
                label = {name: kept if was == gone else was for name, was in label.items()}
    return label


def _by_gap(far: Floats) -> list[int]:
    """Single linkage: the spanning tree, cut at its widest relative gap if that is wide enough."""
    n = len(far)
    near, parent = far[0].copy(), np.zeros(n, dtype=np.int64)
    left = np.ones(n, dtype=np.bool_)
    left[0] = False
    tree: list[tuple[float, int, int]] = []
    for _ in range(n - 1):
        i = int(np.argmin(np.where(left, near, np.inf))) if left.any() else 0
        if not left[i]:  # only unreachable machines are left
            i = int(np.flatnonzero(left)[0])
        tree.append((float(near[i]), int(parent[i]), i))
        left[i] = False
        closer = left & (far[i] < near)
        near[closer], parent[closer] = far[i][closer], i
    tree.sort()
    lengths = [max(FLOOR_MS, length) for length, _, _ in tree]
    cut, widest = math.inf, FACTOR
    for shorter, longer in pairwise(lengths):
        if shorter < math.inf and longer / shorter > widest:
            cut, widest = longer, longer / shorter
    root = list(range(n))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for length, a, b in tree:
        if max(FLOOR_MS, length) < cut and length < math.inf:
            root[find(b)] = find(a)
    return [find(i) for i in range(n)]
