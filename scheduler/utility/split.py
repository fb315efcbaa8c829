"""Which two machines are the ends of a pipeline, in which order do the others stand, and who takes how many layers?

For every choice of two ends: θ by exact integer bisection over the steps, then the split of least time at θ, fastest
first. The order is the one of most utility: over all orders up to ALL_ORDERS stages, above by cheapest insertion between
each pair of ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet import Machine, Pipeline, Shard
from scheduler.utility.hops import Hops
from scheduler.utility.kinds import Floats, Ints, Kind
from scheduler.utility.score import REF_MS

ALL_ORDERS = 6


@dataclass(frozen=True, slots=True)
class Ends:
    """What a handful of machines reaches with stages i and j at its ends (i == j: one machine alone)."""

    theta: float
    compute_ms: float
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """One pipeline: θ [tokens/s], time per token [ms] with hops, and u = θ (ref / latency)^β."""

    pipeline: Pipeline
    theta: float
    latency_ms: float
    utility: float


def choices(kinds: tuple[Kind, ...], layers: int) -> dict[tuple[int, int], Ends]:
    """`Ends` of every legal choice of first and last stage, one per pair of kinds, by index into `kinds`."""
    n = len(kinds)
    if n == 1:
        if kinds[0].capacities.both < layers:
            return {}
        time_ms = kinds[0].tau_ms * layers + kinds[0].head_ms
        return {(0, 0): Ends(kinds[0].rates[layers - 1], time_ms, (layers,))}
    if n > layers:
        return {}
    first_of: dict[Kind, list[int]] = {}
    for i, kind in enumerate(kinds):
        first_of.setdefault(kind, []).append(i)
    found = {}
    for a, of_a in first_of.items():
        for b, of_b in first_of.items():
            i = of_a[0]
            j = of_b[0] if a != b else (of_b[1] if len(of_b) > 1 else -1)
            if j < 0 or a.capacities.first < 1 or b.capacities.last < 1:
                continue
            ends = _split(kinds, i, j, layers)
            if ends is not None:
                found[i, j] = ends
    return found


def _split(kinds: tuple[Kind, ...], first: int, last: int, layers: int) -> Ends | None:
    caps = [kind.capacities.plain for kind in kinds]
    caps[first] = kinds[first].capacities.first
    caps[last] = kinds[last].capacities.last
    if sum(caps) < layers:
        return None
    theta = best_rate(kinds, caps, layers)
    most = [min(cap, reach(kind, theta)) for kind, cap in zip(kinds, caps, strict=True)]
    taken, left = [1] * len(kinds), layers - len(kinds)
    for i in sorted(range(len(kinds)), key=lambda i: (kinds[i].tau_ms, i)):
        more = min(left, most[i] - 1)
        taken[i] += more
        left -= more
    time_ms = sum(n * kind.tau_ms for n, kind in zip(taken, kinds, strict=True))
    slowest = min(kind.rates[n - 1] for n, kind in zip(taken, kinds, strict=True))
    return Ends(slowest, time_ms + kinds[last].head_ms, tuple(taken))


def reach(kind: Kind, theta: float) -> int:
    """The most layers with which a machine of this kind still passes `theta` tokens per second."""
    return bisect_right(kind.rising, -theta)


def best_rate(kinds: Sequence[Kind], caps: Sequence[int], layers: int) -> float:
    """max over integer splits of min over stages of T(layers), by bisection over the rates that occur.

    The caps must hold the layers and each be at least 1.
    """
    rates = sorted({rate for kind in set(kinds) for rate in kind.rates})
    together = Counter(zip(kinds, caps, strict=True))
    low, high = 0, len(rates) - 1  # the lowest rate is always reached
    while low < high:
        middle = (low + high + 1) // 2
        held = 0
        for (kind, cap), many in together.items():
            most = min(cap, reach(kind, rates[middle]))
            if most < 1:
                held = 0
                break
            held += many * most
        if held >= layers:
            low = middle
        else:
            high = middle - 1
    return rates[low]


def build(
    machines: Sequence[Machine],
    kinds: Sequence[Kind],
    layers: int,
    hops: Hops,
    beta: float,
    known: dict[tuple[Kind, ...], dict[tuple[int, int], Ends]],
) -> Built | None:
    """The pipeline of most utility that these machines form, None when they hold no model or are not connected."""
    order = sorted(range(len(machines)), key=lambda i: (kinds[i].tau_ms, machines[i].id))
    machines, kinds = [machines[i] for i in order], [kinds[i] for i in order]
    by_ends = known.get(tuple(kinds))
    if by_ends is None:
        by_ends = known[tuple(kinds)] = choices(tuple(kinds), layers)
    if not by_ends:
        return None
    if len(machines) == 1:
        ends = by_ends[0, 0]
        return _built(machines, (0,), ends, ends.layers, 0.0, beta)
    way_ms = hops.matrix(machines)
    n, kind_at = len(machines), {kind: kinds.index(kind) for kind in set(kinds)}
    group = [kind_at[kind] for kind in kinds]
    by_kind = {(group[i], group[j]): (i, j, ends) for (i, j), ends in by_ends.items()}
    best: tuple[float, float, tuple[int, ...], Ends, tuple[int, int]] | None = None
    if n <= ALL_ORDERS:
        orders = _orders(n)
        ways = way_ms[orders[:, :-1], orders[:, 1:]].sum(axis=1)
        at_ends = np.array(group)[orders[:, [0, -1]]]
    for (a, b), (i, j, ends) in sorted(by_kind.items()):
        if n <= ALL_ORDERS:
            legal = (at_ends[:, 0] == a) & (at_ends[:, 1] == b)
            allowed = np.where(legal, ways, np.inf)
            at = int(np.argmin(allowed))
            path, way = tuple(int(x) for x in orders[at]), float(allowed[at])
        else:
            path, way = _inserted(way_ms, group, a, b)
        if way == np.inf:
            continue
        worth = utility(ends.theta, ends.compute_ms + way, beta)
        if best is None or (worth, -way) > best[:2]:
            best = worth, -way, path, ends, (i, j)
    if best is None:
        return None
    _, way, path, ends, (i, j) = best
    return _built(machines, path, ends, _of_path(path, ends, group, i, j), -way, beta)


def build_in_order(
    order: Sequence[Machine], kinds: Sequence[Kind], layers: int, hops: Hops, beta: float
) -> Built | None:
    """The pipeline of these machines in exactly this order, None when that holds no model or is not connected."""
    if len(order) == 1:
        return build(order, kinds, layers, hops, beta, {})
    way_ms = hops.matrix(order)
    way = sum(float(way_ms[i, i + 1]) for i in range(len(order) - 1))
    fits = min(kinds[0].capacities.first, kinds[-1].capacities.last) >= 1
    if way == np.inf or not fits or len(order) > layers:
        return None
    ends = _split(tuple(kinds), 0, len(order) - 1, layers)
    if ends is None:
        return None
    return _built(order, tuple(range(len(order))), ends, ends.layers, way, beta)


def _of_path(
    path: tuple[int, ...], ends: Ends, group: Sequence[int], i: int, j: int
) -> tuple[int, ...]:
    """The layers of each stage of the path: those of its own kind, the ends with those reckoned for ends."""
    shelf: dict[int, list[int]] = {}
    for at, layers in enumerate(ends.layers):
        if at not in (i, j):
            shelf.setdefault(group[at], []).append(layers)
    inner = [shelf[group[x]].pop(0) for x in path[1:-1]]
    return (ends.layers[i], *inner, ends.layers[j])


def _built(
    machines: Sequence[Machine],
    path: tuple[int, ...],
    ends: Ends,
    layers: tuple[int, ...],
    way_ms: float,
    beta: float,
) -> Built:
    stages, cursor = list[Shard](), 0
    for x, n in zip(path, layers, strict=True):
        stages.append(Shard(machines[x].id, LayerRange(cursor, cursor + n)))
        cursor += n
    latency = ends.compute_ms + way_ms
    return Built(tuple(stages), ends.theta, latency, utility(ends.theta, latency, beta))


def utility(theta: float, latency_ms: float, beta: float) -> float:
    """u = θ (ref / latency)^β."""
    return float(theta * (REF_MS / max(1e-9, latency_ms)) ** beta)


@lru_cache(maxsize=ALL_ORDERS + 1)
def _orders(n: int) -> Ints:
    return np.array(list(permutations(range(n))))


def _inserted(hops: Floats, group: Sequence[int], a: int, b: int) -> tuple[tuple[int, ...], float]:
    """A short path from a machine of kind group a to one of b: the most remote ones end it, the rest is inserted."""
    remote = [float(min(1e12, row.sum())) for row in hops]
    n = len(group)
    first = max((x for x in range(n) if group[x] == a), key=lambda x: (remote[x], -x))
    last = max((x for x in range(n) if group[x] == b and x != first), key=lambda x: (remote[x], -x))
    way = hops.tolist()
    path = [first, last]
    for x in range(n):
        if x in (first, last):
            continue
        detours = [
            way[p][x] + way[x][q] - (way[p][q] if way[p][q] < np.inf else 0.0)
            for p, q in pairwise(path)
        ]
        path.insert(1 + detours.index(min(detours)), x)
    return tuple(path), sum(way[p][q] for p, q in pairwise(path))
