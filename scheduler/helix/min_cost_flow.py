"""Which of the maximum flows of a network is the cheapest? (successive shortest paths, several at a time)"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

FAR = 1 << 62


def min_cost_flow(
    vertices: int,
    arcs: Sequence[tuple[int, int, int]],
    costs: Sequence[int],
    source: int,
    sink: int,
) -> list[int]:
    """Flow on each arc (tail, head, capacity ≥ 0) of a maximum flow of least total cost; costs are whole and ≥ 0.

    Potentials keep reduced costs from falling below zero; after each Dijkstra, all paths of the shortest length are
    filled by advancing and retreating over arcs of reduced cost zero.
    """
    head, room, price = list[int](), list[int](), list[int]()
    out: list[list[int]] = [[] for _ in range(vertices)]
    for (tail, to, capacity), cost in zip(arcs, costs, strict=True):
        out[tail].append(len(head))
        out[to].append(len(head) + 1)
        head += (to, tail)
        room += (capacity, 0)
        price += (cost, -cost)
    potential = [0] * vertices
    while True:
        distance = [FAR] * vertices
        distance[source] = 0
        heap = [(0, source)]
        while heap:
            d, vertex = heapq.heappop(heap)
            if d > distance[vertex]:
                continue
            if vertex == sink:
                break
            base = d + potential[vertex]
            for arc in out[vertex]:
                if room[arc]:
                    to = head[arc]
                    reached = base + price[arc] - potential[to]
                    if reached < distance[to]:
                        distance[to] = reached
                        heapq.heappush(heap, (reached, to))
        nearest = distance[sink]
        if nearest == FAR:
            break
        for vertex in range(vertices):
            potential[vertex] += min(distance[vertex], nearest)
        _fill_shortest(head, room, price, out, potential, source, sink)
    return [capacity - room[2 * i] for i, (_, _, capacity) in enumerate(arcs)]


def _fill_shortest(
    head: list[int],
    room: list[int],
    price: list[int],
    out: list[list[int]],
    potential: list[int],
    source: int,
    sink: int,
) -> None:
    """Augment along arcs of reduced cost zero until none leads to the sink any more (or only round a cycle)."""
    next_arc = [0] * len(out)
    on_path = [False] * len(out)
    on_path[source] = True
    path: list[int] = []
    vertex = source
    while True:
        if vertex == sink:
            amount = min(room[arc] for arc in path)
            for arc in path:
                room[arc] -= amount
                room[arc ^ 1] += amount
            first = next(i for i, arc in enumerate(path) if not room[arc])
            for arc in path[first:]:
                on_path[head[arc]] = False
            vertex = head[path[first] ^ 1]
            del path[first:]
            continue
        arcs = out[vertex]
        while next_arc[vertex] < len(arcs):
            arc = arcs[next_arc[vertex]]
            to = head[arc]
            if room[arc] and not on_path[to] and potential[vertex] + price[arc] == potential[to]:
                path.append(arc)
                on_path[to] = True
                vertex = to
                break
            next_arc[vertex] += 1
        else:
            if not path:
                return
            on_path[vertex] = False
            vertex = head[path.pop() ^ 1]
            next_arc[vertex] += 1
