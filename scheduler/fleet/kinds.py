"""Which machines are alike in phase 1, and can a handful of them hold the model?

Phase 1 sees a machine only through its four capacities. Machines with equal capacities form a
*kind*; a *pattern* is a multiset of kinds (indices, largest kind first) that together hold one
pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.fleet.costs import Capacities, capacities
from scheduler.fleet.fleet import Machine, ModelShape

Pattern: TypeAlias = tuple[int, ...]
NO_WAY = 10**9


@dataclass(frozen=True, slots=True)
class Pool:
    """The kinds of one scope, largest capacity first, with the machines of each."""

    layers: int
    kinds: tuple[Capacities, ...]
    members: tuple[tuple[Machine, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(group) for group in self.members)

    @property
    def total_capacity(self) -> int:
        """Σ c_i over all machines."""
        return sum(
            kind.plain * len(group) for kind, group in zip(self.kinds, self.members, strict=True)
        )

    @property
    def k_max(self) -> int:
        """k_max = min(N, ⌊Σ c_i / L⌋) (Parallax §3.2 i)."""
        return min(sum(self.counts), self.total_capacity // self.layers)


def pool_of(machines: Sequence[Machine], model: ModelShape) -> Pool:
    """Group machines by capacities, largest first; machines that hold no layer are left out."""
    groups: dict[Capacities, list[Machine]] = {}
    alike: dict[tuple[float, ...], list[Machine] | None] = {}  # by all that capacities depend on
    for machine in machines:
        key = (
            machine.memory_bytes,
            machine.weight_fraction,
            machine.kv_fraction,
            machine.overhead_bytes,
            0 if machine.profile is None else id(machine.profile),
        )
        try:
            group = alike[key]
        except KeyError:
            kind = capacities(machine, model)
            group = alike[key] = groups.setdefault(kind, []) if kind.plain >= 1 else None
        if group is not None:
            group.append(machine)
    kinds = sorted(groups, reverse=True)
    return Pool(model.layers, tuple(kinds), tuple(tuple(groups[kind]) for kind in kinds))


def most_layers(stages: Sequence[Capacities]) -> int:
    """Layers a pipeline of these machines holds with its best two ends; 0 when none is legal.

    The first stage also holds the embedding and the last the head, and each must still hold a
    layer.
    """
    if len(stages) == 1:
        return stages[0].both
    first_loss = sorted((c.plain - c.first, i) for i, c in enumerate(stages) if c.first >= 1)[:2]
    last_loss = sorted((c.plain - c.last, i) for i, c in enumerate(stages) if c.last >= 1)[:2]
    losses = [a + b for a, i in first_loss for b, j in last_loss if i != j]
    return sum(c.plain for c in stages) - min(losses) if losses else 0


def most_layers_of_any(machines: Sequence[Capacities], layers: int) -> int:
    """Most layers that a pipeline of these machines holds: one alone, or all together."""
    alone = max((machine.both for machine in machines), default=0)
    return max(alone, most_layers(machines)) if layers > 1 and len(machines) > 1 else alone


def covers(stages: Sequence[Capacities], layers: int) -> bool:
    """Whether these machines can hold one pipeline of `layers`, at least one layer each."""
    return 1 <= len(stages) <= layers and most_layers(stages) >= layers


def minimal(pattern: Pattern, pool: Pool) -> Pattern:
    """The pattern without members it can do without, smallest dropped first."""
    kept = tuple(sorted(pattern))
    while len(kept) > 1 and covers([pool.kinds[t] for t in kept[:-1]], pool.layers):
        kept = kept[:-1]
    return kept


def fewest_stages_at_least(pool: Pool, k: int) -> int:
    """A bound on s*(k) without a solver: the largest machines together must hold k L layers."""
    need, stages = k * pool.layers, 0
    for kind, count in zip(pool.kinds, pool.counts, strict=True):
        if kind.plain * count >= need:
            return max(k, stages + -(-need // kind.plain))
        need -= kind.plain * count
        stages += count
    return NO_WAY
