"""How fast do tokens come when requests decode on chosen chains? A simulator of decode steps alone.

A request is pinned to its chain. Each of its tokens takes Σ layers × τ(batch) over its stages, the
head on the last, and the hops between them. The batch of a machine is the mean over its layers of
the requests that use the layer at that moment. KV room is hard: a request enters only where its
context fits into every stage's layers, else it waits, first come first served. Prompts are not
simulated.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol

from scheduler.fleet.costs import hop_ms
from scheduler.fleet.fleet import Fleet, ModelShape, Pipeline
from scheduler.routing.routing_table import RoutingTable

#: Tokens of a request between two looks at the residents, who change far more slowly.
AT_ONCE = 4
#: Tokens of KV cache that one request takes in every layer.
CONTEXT = 1024


class Chooser(Protocol):
    """A router under test. It hears of entries and ends, and of machines that had no room."""

    def choose(self, now_s: float) -> Pipeline | None: ...
    def entered(self, chain: Pipeline, now_s: float) -> None: ...
    def ended(self, chain: Pipeline, now_s: float) -> None: ...
    def refused(self, machine_id: str, now_s: float) -> None: ...


@dataclass(frozen=True)
class Served:
    """What the window saw: tokens per second, and milliseconds per token with the wait for room and
    without it.
    """

    tokens_per_s: float
    offered_per_s: float
    mean_ms: float
    p95_ms: float
    mean_with_wait_ms: float
    refused: int
    waiting: int


@dataclass(slots=True)
class _Request:
    chain: Pipeline
    hosts: tuple[int, ...]
    layers: tuple[int, ...]
    hops_ms: float
    left: int
    came_s: float
    entered_s: float


class World:
    """Load and KV room of every machine, as they are."""

    def __init__(self, table: RoutingTable, fleet: Fleet) -> None:
        self.table, self.fleet = table, fleet
        held = table.held_layers
        self.loaded = [0] * len(table.machines)  # layers that residents use, each counted as often
        self.room = [
            tokens * layers for tokens, layers in zip(table.kv_tokens.tolist(), held, strict=True)
        ]

    def batch(self, g: int) -> int:
        """Mean residents of a layer of this machine, in whole requests."""
        return round(self.loaded[g] / self.table.held_layers[g])

    def first_without_room(self, chain: Pipeline) -> str | None:
        """The first machine of a chain whose room does not suffice."""
        for machine_id, layers in chain:
            if self.room[self.table.index[machine_id]] < CONTEXT * len(layers):
                return machine_id
        return None


def run(
    world: World,
    model: ModelShape,
    chooser: Callable[[World], Chooser],
    *,
    tokens_per_s: float,
    output_tokens: int = 128,
    warm_s: float,
    window_s: float,
    seed: int = 1,
) -> Served:
    """Poisson arrivals that ask for `tokens_per_s`, seen from `warm_s` on for
    `window_s`.
    """
    draw = random.Random(seed)
    table, router = world.table, chooser(world)
    paces, loaded, room = table.paces, world.loaded, world.room
    requests_per_s = tokens_per_s / output_tokens
    end_s = warm_s + window_s
    events: list[tuple[float, int, _Request | None]] = [(draw.expovariate(requests_per_s), 0, None)]
    waiting: deque[float] = deque()
    per_token, with_wait = list[float](), list[float]()
    offered = tokens = refused = 0
    number = 1
    rows = [[paces.one(g, max(1, b)) for b in range(1024)] for g in range(len(loaded))]

    def enter(came_s: float, now_s: float) -> bool:
        nonlocal refused, number
        for _ in range(len(loaded)):
            chain = router.choose(now_s)
            if chain is None:
                return False
            full = world.first_without_room(chain)
            if full is None:
                break
            refused += 1
            router.refused(full, now_s)
        else:
            return False
        hosts = tuple(table.index[machine_id] for machine_id, _ in chain)
        machines = [table.machines[g] for g in hosts]
        hops = sum(hop_ms(world.fleet.links, a, b, model) for a, b in pairwise(machines))
        layers = tuple(len(stage.layers) for stage in chain)
        for g, many in zip(hosts, layers, strict=True):
            loaded[g] += many
            room[g] -= CONTEXT * many
        router.entered(chain, now_s)
        request = _Request(chain, hosts, layers, hops, output_tokens, came_s, now_s)
        heappush(events, (now_s + AT_ONCE * step_ms(request) / 1e3, number, request))
        number += 1
        return True

    def step_ms(request: _Request) -> float:
        time_ms = request.hops_ms
        for g, many in zip(request.hosts, request.layers, strict=True):
            time_ms += rows[g][world.batch(g)][0] * many
        last = request.hosts[-1]
        return time_ms + rows[last][world.batch(last)][1]

    while events:
        now_s, _, request = heappop(events)
        if now_s > end_s:
            break
        if request is None:
            offered += output_tokens if now_s >= warm_s else 0
            if waiting or not enter(now_s, now_s):
                waiting.append(now_s)
            heappush(events, (now_s + draw.expovariate(requests_per_s), number, None))
            number += 1
            continue
        request.left -= AT_ONCE
        tokens += AT_ONCE if now_s >= warm_s else 0
        if request.left > 0:
            heappush(events, (now_s + AT_ONCE * step_ms(request) / 1e3, number, request))
            number += 1
            continue
        for g, many in zip(request.hosts, request.layers, strict=True):
            loaded[g] -= many
            room[g] += CONTEXT * many
        router.ended(request.chain, now_s)
        if now_s >= warm_s:
            per_token.append((now_s - request.entered_s) * 1e3 / output_tokens)
            with_wait.append((now_s - request.came_s) * 1e3 / output_tokens)
        while waiting and enter(waiting[0], now_s):
            waiting.popleft()
    per_token.sort()
    return Served(
        tokens / window_s,
        offered / window_s,
        _mean(per_token),
        per_token[int(0.95 * len(per_token))] if per_token else 0.0,
        _mean(with_wait),
        refused,
        len(waiting),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
