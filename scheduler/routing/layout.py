"""Which few (machine, segment) states can matter, and which chain over them is best?

Plain lists: for the handful of states that a bound leaves, or a fleet of a few machines, they are
faster than any array. Machines are numbered anew from 0, as k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from scheduler.routing.hops import Hops
from scheduler.routing.sweep import Run

#: One state of a segment: its k, its position in the segment before (−1), and (position, hop) of
#: all who may hand over.
State = tuple[int, int, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, eq=False)
class RoutingLayout:
    """States by segment. ``segments[i]`` is (layers, states), ``first[i]`` where it starts.

    Grid segments over which nobody can hand over are one here. ``touches[k]`` is where machine k
    first appears.
    """

    machines: tuple[int, ...]
    segments: tuple[tuple[int, tuple[State, ...]], ...]
    first: tuple[int, ...]
    grid_segments: int
    touches: tuple[int, ...]

    @cached_property
    def pairs(self) -> int:
        """How many hand-overs one pass looks at."""
        return sum(len(ways) for _, states in self.segments for _, _, ways in states)


def layout_of(
    states: Sequence[Sequence[int]],
    lengths: Sequence[int],
    hops: Hops,
    open_at: Sequence[frozenset[int] | None],
) -> RoutingLayout:
    """The layout of these machines by segment.

    `open_at[s]` are the machines between which a hand-over just before segment s can be optimal:
    one that ends there or one that starts there must be part of it; None means anybody may.
    """
    numbers: dict[int, int] = {}
    touches: list[int] = []
    segments: list[tuple[int, tuple[State, ...]]] = []
    first: list[int] = []
    before: Sequence[int] = ()
    for s, on in enumerate(states):
        where = {g: p for p, g in enumerate(before)}
        rows: list[State] = []
        ready = open_at[s]
        for g in on:
            ways: list[tuple[int, float]] = []
            for p, other in enumerate(before):
                if other != g and (ready is None or g in ready or other in ready):
                    hop_ms = hops.between(other, g)
                    if hop_ms < inf:
                        ways.append((p, hop_ms))
            if g not in numbers:
                numbers[g] = len(numbers)
                touches.append(len(segments))
            rows.append((numbers[g], where.get(g, -1), tuple(ways)))
        same = segments and tuple(on) == tuple(before) and not any(ways for _, _, ways in rows)
        if same:
            layers, kept = segments[-1]
            segments[-1] = layers + lengths[s], kept
        else:
            segments.append((lengths[s], tuple(rows)))
            first.append(s)
        before = on
    return RoutingLayout(tuple(numbers), tuple(segments), tuple(first), len(states), tuple(touches))


@dataclass(slots=True)
class Sweep:
    """Costs and parents of a pass over a layout, so that a later one may begin in the middle."""

    costs: list[list[float]]
    parents: list[list[int]]


def sweep(
    layout: RoutingLayout,
    tau: Sequence[float],
    enter: Sequence[float] | None,
    kept: Sweep | None = None,
    start: int = 0,
) -> Sweep:
    """Least cost of every state from segment `start` on; `kept` has the rest. By k: τ and entry."""
    costs = kept.costs[:start] if kept is not None else []
    parents = kept.parents[:start] if kept is not None else []
    if not costs:
        layers, states = layout.segments[0]
        if enter is None:
            costs.append([tau[k] * layers for k, _, _ in states])
        else:
            costs.append([enter[k] + tau[k] * layers for k, _, _ in states])
        parents.append([-1] * len(states))
    d = costs[-1]
    for layers, states in layout.segments[len(costs) :]:
        row: list[float] = []
        back: list[int] = []
        for k, at, ways in states:
            best = d[at] if at >= 0 else inf
            for p, hop_ms in ways:
                cost = d[p] + hop_ms
                if cost < best:
                    best, at = cost, p
            row.append(best + tau[k] * layers)
            back.append(at)
        costs.append(row)
        parents.append(back)
        d = row
    return Sweep(costs, parents)


def best_end(layout: RoutingLayout, swept: Sweep, after: Sequence[float]) -> tuple[float, int]:
    """Least total cost and its last state's position; `after` by k is what follows layer L."""
    best, at = inf, -1
    for p, (cost, state) in enumerate(zip(swept.costs[-1], layout.segments[-1][1], strict=True)):
        total = cost + after[state[0]]
        if total < best:
            best, at = total, p
    return best, at


def trace(layout: RoutingLayout, swept: Sweep, at: int) -> list[Run]:
    """The chain that ends at this position, as (g, first, end) in grid segments."""
    runs: list[Run] = []
    end = layout.grid_segments
    i = len(layout.segments) - 1
    k = layout.segments[i][1][at][0]
    while i >= 0:
        before = swept.parents[i][at]
        start = layout.first[i]
        other = layout.segments[i - 1][1][before][0] if before >= 0 else -1
        if other != k:
            runs.append((layout.machines[k], start, end))
            end, k = start, other
        at = before
        i -= 1
    return runs[::-1]
