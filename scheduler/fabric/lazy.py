"""Which columns are worth building when there are too many types for all of them?

Columns over at most two types and ones spread over all types come first; then the prices of the
relaxation say where a column one change away would help (column generation). A bound over all
columns needs none of them: in a column of share φ the fraction s of the load on a kind costs s
(slope L(φ) + price ψ_TP λ / (φ capacity)), so the cheapest kind bounds them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np

from scheduler.fabric.columns import Choice, Column, ColumnTable, Options, evaluate
from scheduler.fabric.objective import Pieces
from scheduler.fleet.arrays import Floats

SPREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
GRID = 400


def first_columns(options: Options, most_degrees: int) -> ColumnTable:
    """Every column over one or two types, and the same part of every type for a few parts."""
    types = len(options.types)
    per_type = [options.choices(n, most_degrees) for n in range(types)]
    found = set[tuple[Choice, ...]]()
    nothing: list[Choice] = [(-1, 0)] * types
    for pair in combinations(range(types), min(2, types)):
        for chosen in product(*(per_type[n] for n in pair)):
            column = list(nothing)
            for n, choice in zip(pair, chosen, strict=True):
                column[n] = choice
            found.add(tuple(column))
    for part in SPREADS:
        found.add(tuple(_most(options, n, part) for n in range(types)))
    return evaluate(options, sorted(found))


def _most(options: Options, gpu: int, part: int) -> Choice:
    """The kind that serves most with 1/part of a type's GPUs."""
    best, most = (-1, 0), 0.0
    for k, kind in enumerate(options.kinds):
        replicas = options.types[gpu].count // part // kind.replica.tensor
        if kind.gpu == gpu and replicas * kind.capacity_per_s > most:
            best, most = (k, replicas), replicas * kind.capacity_per_s
    return best


def neighbours(options: Options, column: Column, most_degrees: int) -> list[tuple[Choice, ...]]:
    """The combinations that differ from a column on exactly one type."""
    kinds = {(kind.gpu, kind.replica.tensor): k for k, kind in enumerate(options.kinds)}
    index = {gpu.name: n for n, gpu in enumerate(options.types)}
    now: list[Choice] = [(-1, 0)] * len(options.types)
    for group in column.parts[0].groups:
        n = index[group.gpu]
        now[n] = (kinds[n, group.tensor], group.replicas)
    found = []
    for n in range(len(options.types)):
        for choice in options.choices(n, most_degrees):
            if choice != now[n]:
                found.append((*now[:n], choice, *now[n + 1 :]))
    return found


class PriceBound:
    """Bounds for any prices, from one table of latencies.

    The share φ is cut into GRID intervals; latency counts at the lower end of each, GPUs at the
    upper.
    """

    def __init__(self, options: Sequence[Options], pieces: Sequence[Pieces]) -> None:
        self.types, self.pieces = options[0].types, pieces
        self.latency_ms: list[list[Floats]] = []  # model, kind: at the lower ends
        self.gpus: list[list[tuple[int, Floats]]] = []  # model, kind: type, GPUs for the whole load
        for of in options:
            load = of.demand.requests_per_s
            everything = sum(
                kind.capacity_per_s * (self.types[kind.gpu].count // kind.replica.tensor)
                for kind in of.kinds
            )
            grid = np.geomspace(min(1 - 1e-9, load / everything), 1.0, GRID + 1)
            self.latency_ms.append(
                [kind.replica.times(grid[:-1] * kind.capacity_per_s).total_ms for kind in of.kinds]
            )
            self.gpus.append(
                [
                    (kind.gpu, kind.replica.tensor * load / kind.capacity_per_s / grid[1:])
                    for kind in of.kinds
                ]
            )

    def at(self, prices: Floats, multipliers: Floats) -> float:
        """A value that no placement without shared GPUs beats: C1 at prices ≥ 0 (Lagrange)."""
        bound = -float(sum(p * gpu.count for p, gpu in zip(prices, self.types, strict=True)))
        for own, weight, latency, gpus in zip(
            self.pieces, multipliers, self.latency_ms, self.gpus, strict=True
        ):
            paid = [prices[n] * used for n, used in gpus]
            per_piece = [
                np.min(
                    [
                        weight * (slope * ms + offset) + price
                        for ms, price in zip(latency, paid, strict=True)
                    ],
                    axis=0,
                )
                for slope, offset in own
            ]
            bound += float(np.min(np.max(per_piece, axis=0)))
        return bound
