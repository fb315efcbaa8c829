"""Which chain is best when stages may enter and leave a shard at any layer?

Exact in every case; what differs is how little must be looked at: all states of a few machines, the
states that a bound leaves of many (plain lists), and all states in arrays where the bound leaves
too many.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Floats
from scheduler.routing import sweep as arrays
from scheduler.routing.bounds import Bounds, Subset
from scheduler.routing.layout import RoutingLayout, best_end, sweep, trace
from scheduler.routing.routing_table import RoutingTable
from scheduler.routing.sweep import Run

#: Up to this many machines a sweep over all of them costs no more than one over this many states.
ALL_AT_ONCE = 384
MOST_STATES = 500
#: A chain as runs over segments, or the furthest layer that any chain reaches.
Found: TypeAlias = list[Run] | int


class Prices(Protocol):
    """What each machine costs the request at hand."""

    def one(self, g: int) -> tuple[float, float]: ...
    def edge_ms(self, g: int) -> tuple[float, float]: ...
    def all(self) -> tuple[Floats, Floats]: ...
    def edges(self) -> tuple[Floats, Floats]: ...


def best_partial(
    table: RoutingTable,
    prices: Prices,
    has_edges: bool,
    at_least: int = 1,
    bounds: Bounds | None = None,
    slack: float = 0.0,
) -> Found:
    """The best chain over [0, L), or the furthest layer that any chain reaches.

    `at_least` is how many states the caller thinks it takes; it changes the time, not the answer.
    `slack` is how much cheaper a chain may have become since `bounds` were made.
    """
    if table.every_state is not None:
        found = among_states(table.every_state, prices, has_edges)
        return found[0] if found is not None else best_everywhere(table, table.grid, prices)
    if not all(on.size for on in table.holders):
        return best_everywhere(table, table.grid, prices)
    bounds = bounds or table.bounds
    size = bounds.size_for(at_least)
    few = table.hops.is_exact and len(table.machines) <= ALL_AT_ONCE
    while True:
        if few and size > MOST_STATES:
            return best_everywhere(table, table.grid, prices)
        layout = bounds.layout(size)
        if layout is not None:
            found = among_states(layout, prices, has_edges)
        elif not bounds.is_too_large(size):
            found = None
        else:
            found = _among_machines(table, bounds.subset(size), prices)
        if found is not None and found[1] <= bounds.next_bound(size) - slack:
            return found[0]
        if size >= len(bounds):
            return best_everywhere(table, table.grid, prices)
        # The first chain found may be far from the best one: what would prove it is not looked at
        # all at once.
        wanted = bounds.states_within(found[1] + slack) if found is not None else len(bounds)
        size = min(4 * size, bounds.size_for(wanted))


def edges_within(table: RoutingTable, span: LayerRange) -> tuple[int, ...]:
    """Where chains over a part of the model may switch without losing the optimum."""
    inner = set(range(span.start, span.end + 1))
    if table.hops.is_metric:
        # Next to the ends a single layer may be worth while, as for the model's own.
        inner &= {span.start, span.start + 1, span.end - 1, span.end, *table.boundaries}
    return tuple(sorted(inner))


def among_states(
    layout: RoutingLayout, prices: Prices, has_edges: bool
) -> tuple[list[Run], float] | None:
    """The best chain over the states of a layout, and its cost."""
    weights = [prices.one(g) for g in layout.machines]
    tau = [weight[0] for weight in weights]
    after = [weight[1] for weight in weights]
    enter = None
    if has_edges:
        edges = [prices.edge_ms(g) for g in layout.machines]
        enter = [edge[0] for edge in edges]
        after = [head + edge[1] for head, edge in zip(after, edges, strict=True)]
    swept = sweep(layout, tau, enter)
    cost, at = best_end(layout, swept, after)
    return None if at < 0 else (trace(layout, swept, at), cost)


def _among_machines(
    table: RoutingTable, subset: Subset, prices: Prices
) -> tuple[list[Run], float] | None:
    """`among_states` in arrays: factored over all states of the machines, or over these exactly."""
    chosen = subset.machines
    listed = chosen.tolist()
    weights = np.array([prices.one(g) + prices.edge_ms(g) for g in listed]).reshape(-1, 4)
    if table.hops.is_exact:
        tau, enter, after = weights[:, 0], weights[:, 2], weights[:, 1] + weights[:, 3]
        reached = arrays.forward(subset.hops, subset.lengths, tau, enter)
        total = reached[-1] - subset.hops.access + after
        last = int(np.argmin(total))
        if not np.isfinite(total[last]):
            return None
        runs = arrays.trace_factored(subset.hops, subset.lengths, tau, reached, last)
        return [(listed[g], first, end) for g, first, end in runs], float(total[last])
    tau, enter, after = np.full((3, len(table.machines)), np.inf)
    tau[chosen], enter[chosen], after[chosen] = (
        weights[:, 0],
        weights[:, 2],
        weights[:, 1] + weights[:, 3],
    )
    costs, parents = arrays.dense(table.hops, subset.holders, table.layers, tau, enter)
    total = costs[-1] + after[subset.holders[-1]]
    last = int(np.argmin(total)) if total.size else -1
    if last < 0 or not np.isfinite(total[last]):
        return None
    return arrays.trace_dense(subset.holders, parents, last), float(total[last])


def best_everywhere(table: RoutingTable, edges: tuple[int, ...], prices: Prices) -> Found:
    """The best chain over all states, in arrays, or the furthest layer that any chain reaches."""
    if not table.machines:
        return edges[0]
    tau, head = prices.all()
    enter, leave = prices.edges()
    after = head + leave
    lengths = table.lengths if edges is table.grid else table.lengths_over(edges)
    if table.hops.is_exact:
        reached = arrays.forward(table.hops, lengths, tau, enter)
        total = reached[-1] - table.hops.access + after
        if np.isfinite(total).any():
            return arrays.trace_factored(table.hops, lengths, tau, reached, int(np.argmin(total)))
        stuck = np.flatnonzero(~np.isfinite(reached).any(axis=1))
        return edges[int(stuck[0])] if stuck.size else edges[-1]
    holders = [np.flatnonzero(np.isfinite(length)) for length in lengths]
    if not all(on.size for on in holders):
        return edges[next(s for s, on in enumerate(holders) if not on.size)]
    layers = [end - start for start, end in pairwise(edges)]
    costs, parents = arrays.dense(table.hops, holders, layers, tau, enter)
    total = costs[-1] + after[holders[-1]]
    if np.isfinite(total).any():
        return arrays.trace_dense(holders, parents, int(np.argmin(total)))
    stuck = np.flatnonzero([not np.isfinite(row).any() for row in costs])
    return edges[int(stuck[0])] if stuck.size else edges[-1]
