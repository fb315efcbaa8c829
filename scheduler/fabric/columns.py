"""Which ways are there to serve one model, and which of them can never be best?

A column gives a model ⟨ψ_DP, ψ_TP⟩ on some GPU types (C3). Load is split among its replicas by
capacity, so all of them are busy to the same share φ = λ / Σ capacity, and the column's latency is
the mean of theirs at φ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from scheduler.fabric.replica import ModelReplica, replica
from scheduler.fabric.world import Demand, Efficiency, GpuType, Group
from scheduler.fleet.arrays import Floats, Ints

#: One choice for a type: index into `Options.kinds` (−1 for none) and ψ_DP.
Choice = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """A model's replicas, its mean latency, and the share φ of their capacity in use."""

    model: int
    groups: tuple[Group, ...]
    latency_ms: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Column:
    """A way to serve a model, or several that share. ``gpus`` is a_{m,n}, types in order."""

    gpus: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """Replicas of one model on one type with one ψ_TP."""

    gpu: int
    replica: ModelReplica
    capacity_per_s: float


@dataclass(frozen=True)
class Options:
    """Everything a model can be served with: its kinds of replicas, and those of each type."""

    model: int
    demand: Demand
    types: tuple[GpuType, ...]
    kinds: tuple[ReplicaKind, ...]

    def choices(self, gpu: int, most_degrees: int | None = None) -> list[Choice]:
        """Nothing, or each ⟨ψ_TP, ψ_DP⟩ that the type allows, large ψ_DP thinned by the limit."""
        found: list[Choice] = [(-1, 0)]
        for k, kind in enumerate(self.kinds):
            if kind.gpu == gpu:
                most = self.types[gpu].count // kind.replica.tensor
                found += [(k, replicas) for replicas in degrees(most, most_degrees)]
        return found


def options_of(
    model: int, demand: Demand, types: Sequence[GpuType], efficiency: Efficiency
) -> Options:
    """The kinds of replicas that C2 allows; none when every node is too small."""
    kinds = []
    for n, gpu in enumerate(types):
        for tensor in gpu.tensor_degrees:
            found = replica(gpu, tensor, demand, efficiency)
            if found is not None:
                kinds.append(ReplicaKind(n, found, found.capacity_per_s))
    return Options(model, demand, tuple(types), tuple(kinds))


def degrees(most: int, limit: int | None = None) -> list[int]:
    """1 … most, or at most about `limit` of them, dense at first and then in equal ratios."""
    if limit is None or most <= limit:
        return list(range(1, most + 1))
    dense = limit // 2
    ratio = (most / dense) ** (1 / (limit - dense))
    steps = {round(dense * ratio**i) for i in range(1, limit - dense + 1)}
    return sorted({*range(1, dense + 1), *steps, most})


@dataclass(frozen=True)
class ColumnTable:
    """Many columns of one model as arrays: choices by type, GPUs by type, φ and latency."""

    kinds: Ints  # [c, n], −1 for none
    replicas: Ints  # [c, n]
    gpus: Ints  # [c, n]
    utilisation: Floats  # [c]
    latency_ms: Floats  # [c], infinite when overloaded

    def rows(self, kept: Sequence[int] | Ints) -> ColumnTable:
        """Some of the columns."""
        at = np.asarray(kept, dtype=np.int64)
        return ColumnTable(
            self.kinds[at],
            self.replicas[at],
            self.gpus[at],
            self.utilisation[at],
            self.latency_ms[at],
        )


def every_combination(options: Options) -> ColumnTable:
    """All columns over all types."""
    per_type = [options.choices(n) for n in range(len(options.types))]
    return evaluate(options, list(product(*per_type)))


def evaluate(options: Options, combinations: Iterable[Sequence[Choice]]) -> ColumnTable:
    """Times of the given combinations, one choice per type; the empty combination is left out."""
    types, kinds = len(options.types), options.kinds
    listed = np.array(list(combinations), dtype=np.int64).reshape(-1, types, 2)
    listed = listed[(listed[:, :, 1] > 0).any(axis=1)]
    chosen, replicas = listed[:, :, 0], listed[:, :, 1]
    capacity = np.array([kind.capacity_per_s for kind in kinds] + [0.0])
    tensor = np.array([kind.replica.tensor for kind in kinds] + [0], dtype=np.int64)
    shares = replicas * capacity[chosen]  # −1 looks up the last entry
    total = shares.sum(axis=1)
    utilisation = options.demand.requests_per_s / total
    latency = np.zeros(len(listed))
    served = utilisation < 1
    for k, kind in enumerate(kinds):
        rows, at = np.nonzero((chosen == k) & served[:, None])
        if rows.size:
            busy, where = np.unique(utilisation[rows], return_inverse=True)
            alone = kind.replica.times(busy * kind.capacity_per_s).total_ms[where]
            latency[rows] += shares[rows, at] / total[rows] * alone
    latency[~served] = math.inf
    return ColumnTable(chosen, replicas, replicas * tensor[chosen], utilisation, latency)


def undominated(table: ColumnTable, score: Floats) -> ColumnTable:
    """The columns that no other one matches with as few GPUs of every type and as low a score.

    Every objective grows with latency and every limit with GPUs, so an optimum over these is one
    over all. Columns of infinite score are dropped; of equals the first stays. Sorted by score.
    """
    finite = np.flatnonzero(np.isfinite(score))
    keys = (*(table.gpus[finite, n] for n in range(table.gpus.shape[1])), score[finite])
    order = finite[np.lexsort((finite, *keys))]
    kept = np.empty((0, table.gpus.shape[1]), dtype=np.int64)
    rows = list[int]()
    for row in order:
        if not bool((kept <= table.gpus[row]).all(axis=1).any()):
            kept = np.vstack((kept, table.gpus[row]))
            rows.append(int(row))
    return table.rows(rows)


def columns_of(options: Options, table: ColumnTable) -> list[Column]:
    """The columns of a table as objects."""
    found = []
    for c in range(len(table.utilisation)):
        groups = tuple(
            Group(options.types[n].name, options.kinds[k].replica.tensor, int(replicas))
            for n, (k, replicas) in enumerate(zip(table.kinds[c], table.replicas[c], strict=True))
            if replicas
        )
        part = Part(options.model, groups, float(table.latency_ms[c]), float(table.utilisation[c]))
        found.append(Column(tuple(int(a) for a in table.gpus[c]), (part,)))
    return found
