"""Which machines end a pipeline, in which order are the others, with how many layers each?

For every choice of two ends: θ by the exact integer split, then the split of least time at θ,
fastest first. The order is the one of most utility: over all orders up to ALL_ORDERS stages, above
by cheapest insertion between the two ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from scheduler.fleet.arrays import Floats, Ints
from scheduler.fleet.fleet import Machine, Pipeline, consecutive
from scheduler.utility.hops import TokenHops
from scheduler.utility.kinds import MachineKind
from scheduler.utility.score import utility

ALL_ORDERS = 6
#: Stands for a detour over a missing link.
FAR = 1e300


@dataclass(frozen=True)
class EndChoices:
    """What a handful of machines reaches with stages ``first`` and ``last`` at its ends (equal: one
    machine alone), one entry per choice; ``layers`` [choice, machine].
    """

    first: Ints
    last: Ints
    theta: Floats
    compute_ms: Floats
    layers: Ints


@dataclass(frozen=True, slots=True)
class Built:
    """One pipeline, its θ [tokens/s] and time per token [ms] with hops."""

    pipeline: Pipeline
    theta: float
    latency_ms: float


def choices(kinds: Sequence[MachineKind], layers: int) -> EndChoices:
    """Every legal choice of first and last stage, one per pair of kinds, by index into `kinds`."""
    members: dict[MachineKind, list[int]] = {}
    for i, kind in enumerate(kinds):
        members.setdefault(kind, []).append(i)
    if len(kinds) == 1:
        return split(kinds, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), layers)
    pairs = [
        (of_a[0], of_b[a is b])
        for a, of_a in members.items()
        for b, of_b in members.items()
        if a is not b or len(of_a) > 1
    ]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return split(kinds, ends[:, 0], ends[:, 1], layers)


def split(kinds: Sequence[MachineKind], first: Ints, last: Ints, layers: int) -> EndChoices:
    """What these choices of ends reach, without those that hold no model.

    θ is the maximum over integer splits of the minimum over stages of T(layers): of the rates that
    occur, the highest at which the stages together still take all layers.
    """
    rates = np.unique(np.concatenate([kind.rates for kind in set(kinds)]))
    of = {kind: np.searchsorted(kind.rising, -rates, side="right") for kind in set(kinds)}
    plain = np.array([of[kind] for kind in kinds])  # [machine, rate]: the most layers
    alone = first == last
    at_first, at_last, at_both = (
        np.minimum(plain, np.array([kind.capacities[position] for kind in kinds])[:, None])
        for position in (1, 2, 3)
    )
    held = plain.sum(axis=0) + (at_first - plain)[first] + (at_last - plain)[last]
    held[alone] = at_both[first[alone]]
    least = np.where(alone[:, None], at_both[first], np.minimum(at_first[first], at_last[last]))
    fits = (held >= layers) & (least >= 1) & (plain >= 1).all(axis=0)
    step = fits.sum(axis=1) - 1
    good = np.flatnonzero(step >= 0) if len(kinds) <= layers else np.zeros(0, dtype=np.int64)
    first, last, step, alone = first[good], last[good], step[good], alone[good]
    rows = np.arange(len(good))
    most = plain[:, step].T
    most[rows, first] = at_first[first, step]
    most[rows, last] = np.where(alone, at_both[last, step], at_last[last, step])
    tau_ms = np.array([kind.tau_ms for kind in kinds])
    fastest = np.argsort(tau_ms, kind="stable")
    filled = np.minimum(np.cumsum(most[:, fastest] - 1, axis=1), layers - len(kinds))
    taken = np.ones_like(most)
    taken[:, fastest] += np.diff(filled, axis=1, prepend=0)
    head_ms = np.array([kind.head_ms for kind in kinds])
    return EndChoices(first, last, rates[step], taken @ tau_ms + head_ms[last], taken)


def build(
    machines: Sequence[Machine],
    kinds: Sequence[MachineKind],
    layers: int,
    hops: TokenHops,
    beta: float,
    known: dict[tuple[MachineKind, ...], EndChoices],
) -> Built | None:
    """The pipeline of most utility of these machines, None if they hold no model or are apart."""
    order = sorted(range(len(machines)), key=lambda i: (kinds[i].tau_ms, machines[i].id))
    machines, kinds = [machines[i] for i in order], [kinds[i] for i in order]
    ends = known.get(tuple(kinds))
    if ends is None:
        ends = known[tuple(kinds)] = choices(kinds, layers)
    if not ends.first.size:
        return None
    way_ms = hops.matrix(machines)
    kind_at = {kind: kinds.index(kind) for kind in set(kinds)}
    group = np.array([kind_at[kind] for kind in kinds])
    shortest = _of_all if len(machines) <= ALL_ORDERS else _inserted
    paths, ways = shortest(way_ms, group, group[ends.first], group[ends.last])
    worth = utility(ends.theta, ends.compute_ms + ways, beta)
    worth[np.isinf(ways)] = -1.0
    best = int(np.lexsort((ways, -worth))[0])
    if worth[best] < 0:
        return None
    path = paths[best].tolist()
    taken = _of_path(path, ends, best, group.tolist())
    return Built(
        consecutive([machines[x] for x in path], taken),
        float(ends.theta[best]),
        float(ends.compute_ms[best] + ways[best]),
    )


def build_in_order(
    order: Sequence[Machine], kinds: Sequence[MachineKind], layers: int, hops: TokenHops
) -> Built | None:
    """The pipeline of these machines in this order, None if it holds no model or is cut."""
    path = list(range(len(order)))
    way_ms = hops.matrix(order)
    way = float(way_ms[path[:-1], path[1:]].sum())
    ends = split(kinds, np.array(path[:1]), np.array(path[-1:]), layers)
    if way == np.inf or not ends.first.size:
        return None
    pipeline = consecutive(order, ends.layers[0].tolist())
    return Built(pipeline, float(ends.theta[0]), float(ends.compute_ms[0] + way))


def _of_path(path: Sequence[int], ends: EndChoices, choice: int, group: Sequence[int]) -> list[int]:
    """Layers of each stage: those of its own kind, of the ends those reckoned for ends."""
    taken = ends.layers[choice].tolist()
    i, j = int(ends.first[choice]), int(ends.last[choice])
    if i == j:
        return [taken[i]]
    shelf: dict[int, list[int]] = {}
    for at, layers in enumerate(taken):
        if at not in (i, j):
            shelf.setdefault(group[at], []).append(layers)
    return [taken[i], *(shelf[group[x]].pop(0) for x in path[1:-1]), taken[j]]


@lru_cache(maxsize=ALL_ORDERS + 1)
def _orders(n: int) -> Ints:
    return np.array(list(permutations(range(n))))


def _of_all(way_ms: Floats, group: Ints, first: Ints, last: Ints) -> tuple[Ints, Floats]:
    """(the shortest path, its length) from a machine of kind `first` to one of `last`, over all."""
    orders = _orders(len(group))
    ways = way_ms[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    begins, ends = group[orders[:, 0]], group[orders[:, -1]]
    legal = (begins == first[:, None]) & (ends == last[:, None])
    allowed = np.where(legal, ways, np.inf)
    at = np.argmin(allowed, axis=1)
    return orders[at], allowed[np.arange(len(at)), at]


def _inserted(way_ms: Floats, group: Ints, first: Ints, last: Ints) -> tuple[Ints, Floats]:
    """(a short path, its length) from a machine of each kind `first` to one of `last`: the most
    remote ones end it, the rest is inserted, each where that costs least.
    """
    n, many = len(group), len(first)
    remote = np.minimum(1e12, way_ms.sum(axis=1))
    of_kind = {
        t: sorted(np.flatnonzero(group == t).tolist(), key=lambda x: (-remote[x], x))
        for t in group.tolist()
    }
    begin = np.array([of_kind[a][0] for a in first.tolist()])
    end = np.array([of_kind[b][a == b] for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    rows = np.arange(many)
    after = np.full((many, n), -1)  # the next one on the path, -1 where there is none
    after[rows, begin] = end
    here = np.where(np.isinf(way_ms), 0.0, way_ms)
    for x in range(n):
        missing = np.flatnonzero((begin != x) & (end != x))
        then = after[missing]
        detour = way_ms[:, x] + way_ms[x][then] - here[np.arange(n), then]
        at = np.argmin(np.where(then >= 0, np.minimum(detour, FAR), np.inf), axis=1)
        after[missing, x] = after[missing, at]
        after[missing, at] = x
    paths = [begin]
    for _ in range(n - 1):
        paths.append(after[rows, paths[-1]])
    path = np.column_stack(paths)
    return path, way_ms[path[:, :-1], path[:, 1:]].sum(axis=1)
