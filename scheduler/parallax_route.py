"""Which chain of machines should answer this request (phase 2, Parallax §3.3)?

dp₂(ℓ + 1, g′) = min over g of dp₂(ℓ, g) + ρ(g, g′) + τ(g′, ℓ + 1): a shortest path over the layer DAG. τ is the same for
all layers a machine holds, so cost is linear between shard boundaries and an optimal switch lies on one: the sweep goes
boundary by boundary instead of layer by layer and finds the same minimum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet import Pipeline, Shard
from scheduler.routing_table import Floats, Ints, RoutingTable


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """What one request asks for.

    ``partial`` lets a stage use any [x, y) of a shard; without it stages are whole shards. ``in_flight`` counts each
    machine's requests: it is full at its ``max_concurrent``, and τ is taken with one more request. ``kv_needed_tokens``
    must fit in ``kv_free_tokens`` (by machine; all of its room where not given). ``client_rho_ms`` is the client's own
    one-way latency to a machine, 0 if unknown. ``span`` routes only those layers (a replacement for stages that died):
    then ``before`` and ``after`` name the neighbours that stay.
    """

    partial: bool = False
    excluded: frozenset[str] = frozenset()
    in_flight: Mapping[str, int] = field(default_factory=dict)
    kv_needed_tokens: int = 0
    kv_free_tokens: Mapping[str, int] = field(default_factory=dict)
    client_rho_ms: Mapping[str, float] = field(default_factory=dict)
    span: LayerRange | None = None
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Leg:
    """One stage of a route: the hop into it, its layers, and the head where it ends the model."""

    machine_id: str
    layers: LayerRange
    hop_ms: float
    compute_ms: float
    head_ms: float


@dataclass(frozen=True, slots=True)
class Route:
    """The fastest chain. ``latency_ms`` is one token's way from the client and back: all legs and ``return_ms``."""

    stages: Pipeline
    latency_ms: float
    legs: tuple[Leg, ...]
    return_ms: float

    @property
    def machine_ids(self) -> frozenset[str]:
        return frozenset(shard.machine_id for shard in self.stages)


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Why there is no chain: nobody holds ``layers``, all who do are masked, or no chain of holders connects."""

    reason: Literal["uncovered", "masked", "disconnected"]
    layers: tuple[LayerRange, ...]
    text: str


Answer: TypeAlias = Route | NoRoute


def route(table: RoutingTable, query: RouteQuery | None = None) -> Answer:
    """The chain of least latency that covers the span once and in order; exact. Ties go to lower machine ids."""
    query = query or RouteQuery()
    span = query.span or LayerRange(0, table.model.layers)
    masked = _masked(table, query)
    problem = _uncovered(table, span, np.zeros(len(table.machines), dtype=np.bool_))
    if problem:
        return NoRoute("uncovered", problem, f"no machine holds layers {_listed(problem)}")
    problem = _uncovered(table, span, masked)
    if problem:
        text = f"every machine that holds layers {_listed(problem)} is excluded or full"
        return NoRoute("masked", problem, text)
    in_flight = np.array([query.in_flight.get(m.id, 0) for m in table.machines], dtype=np.int64)
    tau = np.where(masked, np.inf, table.tau_ms(in_flight + 1))
    head = table.head_ms(in_flight + 1) if span.end == table.model.layers else np.zeros_like(tau)
    enter, leave = _edges(table, query)
    sweep = _sweep_partial if query.partial else _sweep_whole
    reached = sweep(table, span, tau, enter, head + leave)
    if isinstance(reached, int):
        stuck = (LayerRange(reached, span.end),) if reached < span.end else (span,)
        return NoRoute("disconnected", stuck, f"no connected chain reaches past layer {reached}")
    return _with_breakdown(table, span, reached, tau, enter, leave, head)


def disjoint_backups(
    table: RoutingTable, primary: Route, n: int, query: RouteQuery | None = None
) -> tuple[Route, ...]:
    """Up to n further chains, each the best that shares no machine with the primary or an earlier backup."""
    query = query or RouteQuery()
    excluded = query.excluded | primary.machine_ids
    backups: list[Route] = []
    while len(backups) < n:
        found = route(table, replace(query, excluded=excluded))
        if isinstance(found, NoRoute):
            break
        backups.append(found)
        excluded |= found.machine_ids
    return tuple(backups)


def _masked(
    table: RoutingTable, query: RouteQuery
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Machines that may not be used: excluded, without a free slot, or without KV room."""
    masked = np.zeros(len(table.machines), dtype=np.bool_)
    for machine_id in query.excluded:
        if machine_id in table.index:
            masked[table.index[machine_id]] = True
    busy = np.array([query.in_flight.get(m.id, 0) for m in table.machines], dtype=np.int64)
    room = table.kv_tokens.copy()
    for machine_id, free in query.kv_free_tokens.items():
        if machine_id in table.index:
            room[table.index[machine_id]] = free
    full: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (
        masked | (busy >= table.slots) | (room < query.kv_needed_tokens)
    )
    return full


def _edges(table: RoutingTable, query: RouteQuery) -> tuple[Floats, Floats]:
    """Time into each machine as first stage and out of it as last: the neighbour that stays, else the client."""
    client = np.array([query.client_rho_ms.get(m.id, 0.0) for m in table.machines])
    enter, leave = client, client
    if query.before is not None and query.before in table.index:
        enter = table.hop_ms[table.index[query.before]]
    if query.after is not None and query.after in table.index:
        leave = table.hop_ms[:, table.index[query.after]]
    return enter, leave


def _uncovered(
    table: RoutingTable, span: LayerRange, masked: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> tuple[LayerRange, ...]:
    """Runs of layers in the span that no unmasked machine holds."""
    holes: list[LayerRange] = []
    edges = table.boundaries
    known = [(0, edges[0], False)] if edges else [(0, table.model.layers, False)]
    for at, holders in enumerate(table.holders):
        known.append((edges[at], edges[at + 1], bool((~masked[holders]).any())))
    if edges:
        known.append((edges[-1], table.model.layers, False))
    for start, end, is_held in known:
        start, end = max(start, span.start), min(end, span.end)
        if is_held or start >= end:
            continue
        if holes and holes[-1].end == start:
            start = holes.pop().start
        holes.append(LayerRange(start, end))
    return tuple(holes)


def _sweep_whole(
    table: RoutingTable, span: LayerRange, tau: Floats, enter: Floats, after: Floats
) -> Pipeline | int:
    """dp₂ over whole shards, or the furthest layer reached. `after` is what follows the last layer, by machine."""
    of = table.shard_machine
    cost = tau[of] * table.shard_layers
    d = np.full(len(table.shards), np.inf)
    parent = np.full(len(table.shards), -1, dtype=np.int64)
    nobody = np.array([], dtype=np.int64)
    reached = span.start
    for boundary in table.boundaries:
        if not span.start <= boundary < span.end:
            continue
        into = table.starting_at.get(boundary, nobody)
        if boundary == span.start:
            d[into] = enter[of[into]] + cost[into]
            continue
        out = table.ending_at.get(boundary, nobody)
        if not out.size or not np.isfinite(d[out]).any():
            continue
        reached = boundary
        if into.size:
            ways = d[out][:, None] + table.hop_ms[np.ix_(of[out], of[into])]
            best = np.argmin(ways, axis=0)
            d[into] = ways[best, np.arange(into.size)] + cost[into]
            parent[into] = out[best]
    ends = table.ending_at.get(span.end, nobody)
    total = d[ends] + after[of[ends]]
    if not total.size or not np.isfinite(total).any():
        return reached
    s, stages = int(ends[np.argmin(total)]), list[Shard]()
    while s >= 0:
        stages.append(table.shards[s])
        s = int(parent[s])
    return tuple(reversed(stages))


def _sweep_partial(
    table: RoutingTable, span: LayerRange, tau: Floats, enter: Floats, after: Floats
) -> Pipeline | int:
    """dp₂ over the segments between boundaries, a stage being any run of layers a machine holds."""
    edges = sorted({edge for edge in table.boundaries if edge in span} | {span.start, span.end})
    steps: list[tuple[int, int, Ints, Ints]] = []  # start, end, holders, position of the parent
    d: Floats = np.empty(0)
    before: Ints = np.array([], dtype=np.int64)
    best: Ints
    for start, end in pairwise(edges):
        on = table.holders[int(np.searchsorted(table.boundaries, start, side="right")) - 1]
        if not steps:
            d, best = enter[on].copy(), np.full(on.size, -1, dtype=np.int64)
        else:
            # On equal cost a machine keeps the request rather than handing it over.
            ways = d[:, None] + table.hop_ms[np.ix_(before, on)]
            best = np.argmin(ways, axis=0)
            arrived = ways[best, np.arange(on.size)]
            stays, same = np.nonzero(before[:, None] == on[None, :])
            keeps = d[stays] <= arrived[same]
            best[same[keeps]] = stays[keeps]
            d = arrived
        d = d + tau[on] * (end - start)
        steps.append((start, end, on, best))
        if not np.isfinite(d).any():
            return start
        before = on
    total = d + after[before]
    if not np.isfinite(total).any():
        return span.end
    at = int(np.argmin(total))
    stages: list[Shard] = []
    for start, end, on, best in reversed(steps):
        machine_id = table.machines[int(on[at])].id
        if stages and stages[-1].machine_id == machine_id:
            end = stages.pop().layers.end
        stages.append(Shard(machine_id, LayerRange(start, end)))
        at = int(best[at])
    return tuple(reversed(stages))


def _with_breakdown(
    table: RoutingTable,
    span: LayerRange,
    stages: Pipeline,
    tau: Floats,
    enter: Floats,
    leave: Floats,
    head: Floats,
) -> Route:
    legs, previous = list[Leg](), -1
    for machine_id, layers in stages:
        g = table.index[machine_id]
        hop = enter[g] if previous < 0 else table.hop_ms[previous, g]
        compute = float(tau[g]) * len(layers)
        last = float(head[g]) if layers.end == span.end else 0.0
        legs.append(Leg(machine_id, layers, float(hop), compute, last))
        previous = g
    return_ms = float(leave[previous])
    latency = sum(leg.hop_ms + leg.compute_ms + leg.head_ms for leg in legs) + return_ms
    return Route(stages, latency, tuple(legs), return_ms)


def _listed(ranges: tuple[LayerRange, ...]) -> str:
    return ", ".join(str(layers) for layers in ranges)
