"""What is the least cost of reaching every machine at every boundary, for all machines at once?

One step per segment, in numpy over all machines. A machine that does not hold a segment costs
infinity there. Two kernels: factored (through localities, O(R)) and dense (over exact hops, O(R²)).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from scheduler.fleet.arrays import Floats, Ints
from scheduler.routing.hops import Factored, Hops

#: A chain as (machine, first segment, end segment).
Run = tuple[int, int, int]


def forward(hops: Factored, lengths: Floats, tau: Floats, enter: Floats) -> Floats:
    """[segment, g]: least cost of all segments so far, this one on g, plus g's access.

    `lengths` [segment, g] are its layers, infinite where not held.
    """
    return _through(hops.base, hops, lengths, tau, enter)


def backward(hops: Factored, lengths: Floats, tau: Floats, after: Floats) -> Floats:
    """[segment, g]: least cost of this segment on g and all that follow, plus g's access."""
    return _through(hops.base.T, hops, lengths[::-1], tau, after)[::-1]


def _through(base: Floats, hops: Factored, lengths: Floats, tau: Floats, enter: Floats) -> Floats:
    add, least = np.add, np.minimum
    by_locality, smallest = np.minimum.reduceat, np.minimum.reduce
    starts, locality = hops.starts, hops.locality
    into = np.ascontiguousarray(base.T)
    twice = 2 * hops.access
    reached: Floats = np.empty((len(lengths), len(tau)))
    rows = list(reached)
    np.multiply(lengths[0], tau, out=rows[0])
    rows[0] += enter + hops.access
    before = rows[0]
    arrived: Floats = np.empty(len(tau))
    for row, length in zip(rows[1:], lengths[1:], strict=True):
        gate = smallest(into + by_locality(before, starts), 1)
        gate.take(locality, out=arrived, mode="clip")
        add(arrived, twice, out=arrived)
        least(arrived, before, out=arrived)
        np.multiply(length, tau, out=row)
        add(row, arrived, out=row)
        before = row
    return reached


def trace_factored(
    hops: Factored, lengths: Floats, tau: Floats, reached: Floats, last: int
) -> list[Run]:
    """The chain behind `forward`'s value of the last segment on machine `last`."""
    runs: list[Run] = []
    g, end = last, len(lengths)
    while True:
        column = reached[:end, g]
        lasting = lengths[:end, g] * tau[g]
        stays = column[:-1] + lasting[1:] == column[1:]
        left = np.flatnonzero(~stays)
        start = int(left[-1]) + 1 if left.size else 0
        runs.append((g, start, end))
        if start == 0:
            return runs[::-1]
        before = reached[start - 1]
        gates = np.minimum.reduceat(before, hops.starts) + hops.base[:, hops.locality[g]]
        at = int(np.argmin(gates))
        stop = hops.starts[at + 1] if at + 1 < len(hops.starts) else len(before)
        g = int(hops.starts[at] + np.argmin(before[hops.starts[at] : stop]))
        end = start


def dense(
    hops: Hops, holders: Sequence[Ints], lengths: Sequence[int], tau: Floats, enter: Floats
) -> tuple[list[Floats], list[Ints]]:
    """By segment: least cost to have done it on each holder, and the holder before."""
    on = holders[0]
    d: Floats = enter[on] + tau[on] * lengths[0]
    costs: list[Floats] = [d]
    parents: list[Ints] = [np.full(on.size, -1, dtype=np.int64)]
    for (previous, on), length in zip(pairwise(holders), lengths[1:], strict=True):
        ways = d[:, None] + hops.block(previous, on)
        best: Ints = np.argmin(ways, axis=0)
        d = ways[best, np.arange(on.size)]
        # On equal cost a machine keeps the request rather than handing it over.
        stays, same = np.nonzero(previous[:, None] == on[None, :])
        keeps = ways[stays, same] <= d[same]
        best[same[keeps]] = stays[keeps]
        d = d + tau[on] * length
        costs.append(d)
        parents.append(best)
    return costs, parents


def trace_dense(holders: Sequence[Ints], parents: Sequence[Ints], last: int) -> list[Run]:
    """The chain behind `dense`'s value of the last segment at position `last`."""
    runs: list[Run] = []
    at = last
    for s in range(len(holders) - 1, -1, -1):
        g = int(holders[s][at])
        end = runs.pop()[2] if runs and runs[-1][0] == g else s + 1
        runs.append((g, s, end))
        at = int(parents[s][at])
    return runs[::-1]
