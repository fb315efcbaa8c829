"""Which maximum flow do Helix's placements follow where they are compared? (preflow-push, §4.3)

A placement has many maximum flows, and requests that follow another one are served otherwise: on
`het42` with Petals' placement scipy's flow decodes 6 % more tokens/s than this one. Figures of
other simulators are compared under the flow that Helix's paper names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.flow_graph import SINK, SOURCE, UNITS_PER_TOKEN, flow_graph


class ArcFlow(NamedTuple):
    """A maximum flow: its value, and the flow on each arc."""

    value: int
    on_arc: list[int]


def links_of(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> dict[tuple[str, str], float]:
    """Tokens/s on each link of a maximum flow, the coordinator's id at both ends."""
    graph = flow_graph(fleet, model, placement, partial=partial)
    found = preflow_push(graph.vertices, graph.arcs, SOURCE, SINK)
    machines = len(placement)
    return {
        ends: amount / UNITS_PER_TOKEN
        for ends, amount in zip(graph.ends[machines:], found.on_arc[machines:], strict=True)
        if amount
    }


def preflow_push(
    vertices: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int
) -> ArcFlow:
    """Maximum flow over arcs (tail, head, capacity ≥ 0) by highest label first, with exact labels
    and the gap rule.

    Excess that cannot reach the sink is returned to the source, so the result is a flow and not
    only its value.
    """
    network = _Network(vertices, arcs, source, sink)
    network.run()
    on_arc = [capacity - network.room[2 * i] for i, (_, _, capacity) in enumerate(arcs)]
    return ArcFlow(network.excess[sink], on_arc)


class _Network:
    """Residual network: arc 2i is arc i of the input and 2i + 1 its reverse; `room` is what still
    fits.
    """

    def __init__(
        self, vertices: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int
    ) -> None:
        self.n, self.source, self.sink = vertices, source, sink
        self.head: list[int] = []
        self.room: list[int] = []
        self.out: list[list[int]] = [[] for _ in range(vertices)]
        for tail, head, capacity in arcs:
            self.out[tail].append(len(self.head))
            self.out[head].append(len(self.head) + 1)
            self.head += (head, tail)
            self.room += (capacity, 0)
        self.excess = [0] * vertices
        self.height = [0] * vertices
        self.at_height = [0] * (2 * vertices + 1)
        self.next_arc = [0] * vertices
        self.active: list[list[int]] = [[] for _ in range(2 * vertices + 1)]
        self.highest = 0

    def run(self) -> None:
        for arc in self.out[self.source]:
            amount = self.room[arc]
            if amount and self.head[arc] != self.source:
                self.room[arc] = 0
                self.room[arc ^ 1] += amount
                self.excess[self.head[arc]] += amount
        self.label_exactly()
        relabels = 0
        while self.highest >= 0:
            waiting = self.active[self.highest]
            if not waiting:
                self.highest -= 1
                continue
            vertex = waiting.pop()
            if self.height[vertex] == self.highest and self.excess[vertex]:
                relabels += self.discharge(vertex)
                if relabels > self.n:
                    relabels = 0
                    self.label_exactly()

    def discharge(self, vertex: int) -> int:
        """Push a vertex's excess downhill, lifting it as often as needed; returns the number of
        lifts.
        """
        head, room, height, excess = self.head, self.room, self.height, self.excess
        arcs, lifts = self.out[vertex], 0
        left, at, level = excess[vertex], self.next_arc[vertex], height[vertex]
        while left:
            if at == len(arcs):
                lifts += 1
                level = self.lift(vertex)
                at = 0
                continue
            arc = arcs[at]
            if room[arc] and height[head[arc]] == level - 1:
                to = head[arc]
                amount = min(left, room[arc])
                room[arc] -= amount
                room[arc ^ 1] += amount
                left -= amount
                if not excess[to] and to != self.sink and to != self.source:
                    self.active[level - 1].append(to)
                    self.highest = max(self.highest, level - 1)
                excess[to] += amount
                if not left:
                    break
            at += 1
        excess[vertex] = 0
        self.next_arc[vertex] = at
        return lifts

    def lift(self, vertex: int) -> int:
        """Relabel to one above the lowest neighbour with room; a level left empty cuts off all
        above it from the sink.
        """
        height, old = self.height, self.height[vertex]
        new = 1 + min(height[self.head[arc]] for arc in self.out[vertex] if self.room[arc])
        self.at_height[old] -= 1
        if not self.at_height[old] and old < self.n:
            for other in range(self.n):
                if old < height[other] < self.n and other != vertex:
                    self.at_height[height[other]] -= 1
                    height[other] = self.n + 1
                    self.at_height[self.n + 1] += 1
                    self.next_arc[other] = 0
                    if self.excess[other]:
                        self.active[self.n + 1].append(other)
                        self.highest = max(self.highest, self.n + 1)
            new = max(new, self.n + 1)
        height[vertex] = new
        self.at_height[new] += 1
        return new

    def label_exactly(self) -> None:
        """Heights become distances to the sink, or n plus the distance to the source where the sink
        is out of reach.
        """
        n = self.n
        height = [2 * n] * n
        for root, base in ((self.sink, 0), (self.source, n)):
            height[root] = base
            frontier = [root]
            while frontier:
                following = []
                for vertex in frontier:
                    for arc in self.out[vertex]:
                        to = self.head[arc]
                        if height[to] == 2 * n and to != self.source and self.room[arc ^ 1]:
                            height[to] = height[vertex] + 1
                            following.append(to)
                frontier = following
        self.height = height
        self.next_arc = [0] * n
        self.at_height = [0] * (2 * n + 1)
        self.active = [[] for _ in range(2 * n + 1)]
        self.highest = -1
        for vertex in range(n):
            self.at_height[height[vertex]] += 1
            if self.excess[vertex] and vertex not in (self.source, self.sink):
                self.active[height[vertex]].append(vertex)
                self.highest = max(self.highest, height[vertex])
