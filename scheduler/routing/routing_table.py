"""What does the router look up, prepared once per snapshot of τ, ρ and placement?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, pairwise

import numpy as np

from scheduler.fleet.arrays import Flags, Floats, Ints
from scheduler.fleet.costs import CONTEXT_TOKENS, kv_tokens
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Shard, in_layer_order
from scheduler.routing.bounds import Bounds
from scheduler.routing.hops import Hops, hops_of, localities_of
from scheduler.routing.layout import RoutingLayout, layout_of
from scheduler.routing.paces import Paces

#: Up to this many machines every state is looked at, without bounds.
FEW_MACHINES = 16


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """Arrays over machines with a shard (g, by locality and id) and shards (s, by layers, id).

    Values that queries share are worked out when first asked for and kept; nothing a query says is
    kept.
    """

    model: ModelShape
    machines: tuple[Machine, ...]
    index: Mapping[str, int]
    shards: tuple[Shard, ...]
    dropped: tuple[Shard, ...]
    shard_machine: Ints  # [s]
    shard_layers: Ints  # [s]
    starting_at: Mapping[int, Ints]  # layer: shards that start there
    ending_at: Mapping[int, Ints]
    boundaries: tuple[int, ...]  # every layer where some shard starts or ends
    hops: Hops
    paces: Paces
    slots: Ints  # [g] concurrent requests
    kv_tokens: Ints  # [g] room when empty

    def tau_ms(self, batch: Ints) -> Floats:
        """τ(g, ℓ) at each machine's own batch, as `costs.tau_ms_per_layer`."""
        return self.paces.all(batch)[0]

    def head_ms(self, batch: Ints) -> Floats:
        """Time of the head on each machine at its own batch, as `costs.head_ms`."""
        return self.paces.all(batch)[1]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Layers between which a chain may switch machines without losing the optimum.

        τ is the same for all layers of a machine, so cost is linear between boundaries and an
        optimal switch lies on one: except next to the ends of the model, where entry, head and
        return make a single layer worth while, and where a relay is nearer than the direct hop, so
        that a machine is visited for one layer. Then every layer counts.
        """
        if not self.hops.is_metric:
            return tuple(range(self.model.layers + 1))
        ends = {0, 1, self.model.layers - 1, self.model.layers}
        return tuple(sorted(ends.union(self.boundaries)))

    @cached_property
    def lengths(self) -> Floats:
        """[segment of the grid, g]: its layers where g holds it, else infinity."""
        return self.lengths_over(self.grid)

    def lengths_over(self, edges: Sequence[int]) -> Floats:
        """`lengths` over other edges; every shard boundary between the outermost must be one."""
        table: Floats = np.full((len(edges) - 1, len(self.machines)), np.inf)
        at: Ints = np.array(edges, dtype=np.int64)
        spans: Ints = np.diff(at)
        first = np.searchsorted(at, [shard.layers.start for shard in self.shards]).tolist()
        end = np.searchsorted(at, [shard.layers.end for shard in self.shards]).tolist()
        for g, i, j in zip(self.shard_machine.tolist(), first, end, strict=True):
            table[i:j, g] = spans[i:j]
        return table

    @cached_property
    def holders(self) -> tuple[Ints, ...]:
        """[segment of the grid]: the machines that hold it."""
        return tuple(np.flatnonzero(np.isfinite(length)) for length in self.lengths)

    @cached_property
    def open_at(self) -> tuple[frozenset[int] | None, ...]:
        """[segment]: whose shard starts or ends there: one of them is in any optimal hand-over.

        None where anybody may: next to the model's ends, and everywhere if hops are not metric.
        """
        free = {1, self.model.layers - 1}
        found: list[frozenset[int] | None] = [frozenset()]
        for (before, now), edge in zip(pairwise(self.lengths), self.grid[1:], strict=False):
            if not self.hops.is_metric or edge in free:
                found.append(None)
            else:
                changed: Flags = np.isfinite(before) != np.isfinite(now)
                found.append(frozenset(np.flatnonzero(changed).tolist()))
        return tuple(found)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """[segment of the grid]: its layers."""
        return tuple(end - start for start, end in pairwise(self.grid))

    @cached_property
    def bounds(self) -> Bounds:
        """The least any chain through each state can cost."""
        return self.bounds_from(*self.paces.least())

    def bounds_from(self, tau: Floats, head: Floats) -> Bounds:
        """`bounds` where machines take at least these times, in ms."""
        return Bounds(self.hops, self.lengths, self.layers, tau, head, lambda: self.open_at)

    def states_within(self, cost_ms: float) -> int:
        """How many states may lie on a chain of at most this cost; 1 where all are looked at."""
        return 1 if self.every_state is not None else self.bounds.states_within(cost_ms)

    @cached_property
    def every_state(self) -> RoutingLayout | None:
        """The layout of all states, for fleets of few machines; None where a segment has none."""
        if len(self.machines) > FEW_MACHINES or not all(on.size for on in self.holders):
            return None
        states = [on.tolist() for on in self.holders]
        return layout_of(states, self.layers, self.hops, self.open_at)

    @cached_property
    def stages(self) -> dict[tuple[int, int, int], Shard]:
        """Stages that some route used, by (g, first layer, end layer)."""
        return {}

    @cached_property
    def facts(self) -> tuple[tuple[str, int, int], ...]:
        """[g]: id, slots and room in tokens, as plain numbers."""
        ids = (machine.id for machine in self.machines)
        return tuple(zip(ids, self.slots.tolist(), self.kv_tokens.tolist(), strict=True))

    @cached_property
    def held_layers(self) -> tuple[int, ...]:
        """[g]: how many layers it holds."""
        held = [0] * len(self.machines)
        for g, layers in zip(self.shard_machine.tolist(), self.shard_layers.tolist(), strict=True):
            held[g] += layers
        return tuple(held)


def prepare(
    fleet: Fleet,
    model: ModelShape,
    shards: Iterable[Shard],
    *,
    context_tokens: int = CONTEXT_TOKENS,
    hop_tokens: int = 1,
) -> RoutingTable:
    """The routing table of a snapshot. `hop_tokens` activations cross each hop at once.

    A shard of a machine outside the fleet, or beyond the model, is a stranger's claim: it ends up
    in ``dropped``.
    """
    claimed = in_layer_order(set(shards))
    credible = [s.machine_id in fleet.by_id and s.layers.end <= model.layers for s in claimed]
    ordered = tuple(compress(claimed, credible))
    held: dict[str, int] = {}
    for machine_id, layers in ordered:
        held[machine_id] = held.get(machine_id, 0) + len(layers)
    present = [machine for machine in fleet.machines if machine.id in held]
    localities = localities_of(present, fleet.links)
    by_locality = sorted(zip(localities, present, strict=True), key=lambda it: (it[0], it[1].id))
    machines = tuple(machine for _, machine in by_locality)
    index = {machine.id: g for g, machine in enumerate(machines)}
    return RoutingTable(
        model=model,
        machines=machines,
        index=index,
        shards=ordered,
        dropped=tuple(compress(claimed, (not ok for ok in credible))),
        shard_machine=np.array([index[shard.machine_id] for shard in ordered], dtype=np.int64),
        shard_layers=np.array([len(shard.layers) for shard in ordered], dtype=np.int64),
        starting_at=_grouped(shard.layers.start for shard in ordered),
        ending_at=_grouped(shard.layers.end for shard in ordered),
        boundaries=tuple(
            sorted({edge for s in ordered for edge in (s.layers.start, s.layers.end)})
        ),
        hops=hops_of(machines, [name for name, _ in by_locality], fleet.links, model, hop_tokens),
        paces=Paces(machines, model, context_tokens),
        slots=np.array([machine.max_concurrent for machine in machines], dtype=np.int64),
        kv_tokens=np.array(
            [kv_tokens(machine, model, held[machine.id]) for machine in machines], dtype=np.int64
        ),
    )


def _grouped(layers: Iterable[int]) -> Mapping[int, Ints]:
    groups: dict[int, list[int]] = {}
    for s, layer in enumerate(layers):
        groups.setdefault(layer, []).append(s)
    return {layer: np.array(group, dtype=np.int64) for layer, group in groups.items()}
