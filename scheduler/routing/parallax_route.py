"""Which chain of machines should answer this request (phase 2, Parallax §3.3)?

dp₂(ℓ + 1, g′) = min over g of dp₂(ℓ, g) + ρ(g, g′) + τ(g′, ℓ + 1): a shortest path over the layer
DAG. τ is the same for all layers a machine holds, so cost is linear between shard boundaries and an
optimal switch lies on one: the sweep goes boundary by boundary instead of layer by layer and finds
the same minimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Flags
from scheduler.fleet.fleet import Pipeline, Shard
from scheduler.routing.partial import best_everywhere, best_partial, edges_within
from scheduler.routing.query import Priced, RouteQuery
from scheduler.routing.routing_table import RoutingTable
from scheduler.routing.sweep import Run
from scheduler.routing.whole import sweep_whole

__all__ = ["Answer", "Leg", "NoRoute", "Route", "RouteQuery", "disjoint_backups", "route"]

DEFAULT = RouteQuery()


class Leg(NamedTuple):
    """One stage of a route: the hop into it, its layers, and the head where it ends the model."""

    machine_id: str
    layers: LayerRange
    hop_ms: float
    compute_ms: float
    head_ms: float


@dataclass(frozen=True, slots=True)
class Route:
    """The fastest chain. ``latency_ms`` is a token's way from the client and back."""

    stages: Pipeline
    latency_ms: float
    legs: tuple[Leg, ...]
    return_ms: float

    @property
    def machine_ids(self) -> frozenset[str]:
        return frozenset(shard.machine_id for shard in self.stages)


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Why there is no chain: nobody holds ``layers``, all holders are masked, or none connect."""

    reason: Literal["uncovered", "masked", "disconnected"]
    layers: tuple[LayerRange, ...]
    text: str


Answer: TypeAlias = Route | NoRoute


class Stages(Protocol):
    """What stages of a route cost."""

    @property
    def ends(self) -> bool: ...
    def edge_ms(self, g: int) -> tuple[float, float]: ...
    def stage_ms(self, g: int) -> tuple[float, float]: ...
    def masked(self) -> Flags: ...


def route(table: RoutingTable, query: RouteQuery | None = None) -> Answer:
    """The chain of least latency that covers the span once and in order; exact.

    With partial slices it may leave a machine and come back to it, where what lies between is so
    much faster elsewhere. On equal cost a machine keeps the request rather than handing it over;
    then the lower locality and id go first.
    """
    return _search(table, query or DEFAULT, 1)


def _search(table: RoutingTable, query: RouteQuery, states: int) -> Answer:
    span = query.span
    many = table.model.layers
    prices = Priced(table, query, ends=span is None or span.end == many)
    found: list[Run] | int
    edges: Sequence[int] | None = None  # runs count segments between these; None: layers
    if not query.partial:
        tau, head = prices.all()
        enter, leave = prices.edges()
        found = sweep_whole(table, span or LayerRange(0, many), tau, enter, head + leave)
    elif span is None or len(span) == many:
        edges = table.grid
        found = best_partial(table, prices, query.has_edges, states)
    else:
        edges = edges_within(table, span)
        found = best_everywhere(table, edges, prices)
    if isinstance(found, int):
        return no_route(table, span, prices, found)
    if edges is not None:
        found = [(g, edges[first], edges[end]) for g, first, end in found]
    return priced_route(table, prices, found)


def disjoint_backups(
    table: RoutingTable, primary: Route, n: int, query: RouteQuery | None = None
) -> tuple[Route, ...]:
    """Up to n further chains, each the best that shares no machine with those before it."""
    query = query or DEFAULT
    excluded = query.excluded | primary.machine_ids
    backups: list[Route] = []
    least_ms = primary.latency_ms
    while len(backups) < n:
        states = table.states_within(least_ms) if query.partial and query.span is None else 1
        found = _search(table, replace(query, excluded=excluded), states)
        if isinstance(found, NoRoute):
            break
        backups.append(found)
        excluded |= found.machine_ids
        least_ms = found.latency_ms
    return tuple(backups)


def priced_route(table: RoutingTable, prices: Stages, runs: Sequence[Run]) -> Route:
    """Runs (machine, first layer, end layer) as a route, with what each stage costs."""
    legs: list[Leg] = []
    stages: list[Shard] = []
    previous, latency, final = -1, 0.0, len(runs) - 1
    for i, run in enumerate(runs):
        g, start, end = run
        stage = table.stages.get(run)
        if stage is None:
            stage = table.stages[run] = Shard(table.machines[g].id, LayerRange(start, end))
        hop_ms = table.hops.between(previous, g) if i else prices.edge_ms(g)[0]
        tau_ms, head_ms = prices.stage_ms(g)
        compute_ms = tau_ms * (end - start)
        head_ms = head_ms if i == final and prices.ends else 0.0
        legs.append(Leg(stage.machine_id, stage.layers, hop_ms, compute_ms, head_ms))
        stages.append(stage)
        latency += hop_ms + compute_ms + head_ms
        previous = g
    return_ms = prices.edge_ms(previous)[1]
    return Route(tuple(stages), latency + return_ms, tuple(legs), return_ms)


def without_returns(stages: Pipeline) -> Pipeline:
    """The chain in which a machine that it comes back to does what lies between by itself.

    It holds those layers, because what it holds is one range. Its stages have the same layers
    together.
    """
    kept: list[Shard] = []
    for stage in stages:
        at = next((i for i, other in enumerate(kept) if other.machine_id == stage.machine_id), None)
        if at is None:
            kept.append(stage)
        else:
            first = kept[at].layers.start
            kept[at:] = [Shard(stage.machine_id, LayerRange(first, stage.layers.end))]
    return tuple(kept)


def no_route(table: RoutingTable, span: LayerRange | None, prices: Stages, reached: int) -> NoRoute:
    """Why there is no chain over the span (None: the model), given how far the best one reaches."""
    span = span or LayerRange(0, table.model.layers)
    nobody: Flags = np.zeros(len(table.machines), dtype=np.bool_)
    holes = _uncovered(table, span, nobody)
    if holes:
        return NoRoute("uncovered", holes, f"no machine holds layers {_listed(holes)}")
    holes = _uncovered(table, span, prices.masked())
    if holes:
        text = f"every machine that holds layers {_listed(holes)} is excluded or full"
        return NoRoute("masked", holes, text)
    stuck = (LayerRange(reached, span.end),) if reached < span.end else (span,)
    return NoRoute("disconnected", stuck, f"no connected chain reaches past layer {reached}")


def _uncovered(table: RoutingTable, span: LayerRange, masked: Flags) -> tuple[LayerRange, ...]:
    """Runs of layers in the span that no unmasked machine holds."""
    held: Flags = np.zeros(table.model.layers, dtype=np.bool_)
    for g, (_, layers) in zip(table.shard_machine.tolist(), table.shards, strict=True):
        if not masked[g]:
            held[layers.start : layers.end] = True
    holes: list[LayerRange] = []
    for layer in range(span.start, span.end):
        if held[layer]:
            continue
        start = holes.pop().start if holes and holes[-1].end == layer else layer
        holes.append(LayerRange(start, layer + 1))
    return tuple(holes)


def _listed(ranges: tuple[LayerRange, ...]) -> str:
    return ", ".join(str(layers) for layers in ranges)
