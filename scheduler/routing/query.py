"""What does one request ask of the router, and what does each machine then cost it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Flags, Floats, Ints
from scheduler.routing.routing_table import RoutingTable


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """What one request asks for.

    ``partial`` lets a stage use any [x, y) of a shard; without it stages are whole shards.
    ``in_flight`` counts each machine's requests: it is full at its ``max_concurrent``, and τ is
    taken with one more request (self-cost); ``marginal`` adds what that one more costs those
    already there. ``kv_needed_tokens`` must fit in ``kv_free_tokens`` (by machine; all of its room
    where not given). ``client_rho_ms`` is the client's own one-way latency to a machine, 0 if
    unknown, ``client_back_ms`` that of the way back where it differs. ``span`` routes only those
    layers (a replacement for stages that died, or the rest [x, L) of a request): then ``before``
    and ``after`` name the neighbours that stay.
    """

    partial: bool = False
    excluded: frozenset[str] = frozenset()
    in_flight: Mapping[str, int] = field(default_factory=dict)
    kv_needed_tokens: int = 0
    kv_free_tokens: Mapping[str, int] = field(default_factory=dict)
    client_rho_ms: Mapping[str, float] = field(default_factory=dict)
    client_back_ms: Mapping[str, float] | None = None
    span: LayerRange | None = None
    before: str | None = None
    after: str | None = None
    marginal: bool = False

    @property
    def has_edges(self) -> bool:
        """Whether entering or leaving a chain costs anything."""
        return bool(
            self.client_rho_ms or self.client_back_ms or self.before is not None or self.after
        )


@dataclass(frozen=True, slots=True)
class Priced:
    """The cost of each machine g to a query: τ (infinite if masked), way in, head and way out."""

    table: RoutingTable
    query: RouteQuery
    ends: bool  # whether the span ends the model, so that its last stage pays the head

    def edge_ms(self, g: int) -> tuple[float, float]:
        """Time into g as first stage and out of it as last, from and to the neighbour or client."""
        query, index = self.query, self.table.index
        enter = leave = 0.0
        if not query.has_edges:
            return enter, leave
        to, back = query.client_rho_ms, query.client_back_ms
        if to or back:
            machine_id = self.table.machines[g].id
            enter = to.get(machine_id, 0.0)
            leave = (to if back is None else back).get(machine_id, 0.0)
        if query.before is not None and query.before in index:
            enter = self.table.hops.between(index[query.before], g)
        if query.after is not None and query.after in index:
            leave = self.table.hops.between(g, index[query.after])
        return enter, leave

    def stage_ms(self, g: int) -> tuple[float, float]:
        """τ and head with one more resident."""
        busy = self.query.in_flight.get(self.table.machines[g].id, 0)
        return self.table.paces.one(g, busy + 1)

    def one(self, g: int) -> tuple[float, float]:
        """τ and head as the search weighs them, infinite where g is masked."""
        query = self.query
        machine_id, slots, room = self.table.facts[g]
        busy = query.in_flight.get(machine_id, 0)
        if busy >= slots or machine_id in query.excluded:
            return inf, inf
        if query.kv_needed_tokens > query.kv_free_tokens.get(machine_id, room):
            return inf, inf
        tau_ms, head_ms = self.table.paces.one(g, busy + 1)
        if query.marginal and busy:
            before = self.table.paces.one(g, busy)
            tau_ms += busy * max(0.0, tau_ms - before[0])
            head_ms += busy * max(0.0, head_ms - before[1])
        return tau_ms, head_ms if self.ends else 0.0

    def masked(self) -> Flags:
        """Machines that may not be used: excluded, without a free slot, or without KV room."""
        table, query = self.table, self.query
        masked: Flags = np.zeros(len(table.machines), dtype=np.bool_)
        for machine_id in query.excluded:
            if machine_id in table.index:
                masked[table.index[machine_id]] = True
        room = table.kv_tokens
        if query.kv_free_tokens:
            room = room.copy()
            for machine_id, free in query.kv_free_tokens.items():
                if machine_id in table.index:
                    room[table.index[machine_id]] = free
        full: Flags = masked | (self.busy() >= table.slots) | (room < query.kv_needed_tokens)
        return full

    def busy(self) -> Ints:
        """Requests in flight by machine."""
        in_flight = self.query.in_flight
        if not in_flight:
            return np.zeros(len(self.table.machines), dtype=np.int64)
        return np.array([in_flight.get(m.id, 0) for m in self.table.machines], dtype=np.int64)

    def all(self) -> tuple[Floats, Floats]:
        """`one` of every machine."""
        busy = self.busy()
        tau, head = self.table.paces.all(busy + 1)
        if self.query.marginal:
            before, head_before = self.table.paces.all(np.maximum(busy, 1))
            tau = tau + busy * np.maximum(0.0, tau - before)
            head = head + busy * np.maximum(0.0, head - head_before)
        tau = np.where(self.masked(), np.inf, tau)
        return tau, head if self.ends else np.zeros_like(head)

    def edges(self) -> tuple[Floats, Floats]:
        """`edge_ms` of every machine."""
        query = self.query
        many = range(len(self.table.machines))
        if not query.has_edges:
            nothing: Floats = np.zeros(len(many))
            return nothing, nothing
        both = np.array([self.edge_ms(g) for g in many]).reshape(-1, 2)
        return both[:, 0], both[:, 1]
