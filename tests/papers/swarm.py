"""A fleet from day to day: machines come and go, the matcher's planner tells them what to load."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from core.protocol.types import LayerRange
from matcher.fleet.fleet_view import Sighting, fleet_of
from matcher.fleet.shapes import shape_of
from matcher.planning.planner import Placement, nobody, plan, seen
from scheduler.fleet.fleet import Fleet, ModelShape, Shard
from scheduler.live.churn import Cluster
from scheduler.live.standby import Rules
from scheduler.routing.parallax_route import Answer, NoRoute, RouteQuery, disjoint_backups, route
from scheduler.routing.routing_table import prepare
from tests.town.fleet import NOW_MS, SPEC, machine_key, serving_at, sighting

MIB = 2**20
#: Layers of the test model (30 of 13.5 MiB, tables 108 MiB) that a machine of that many MiB holds:
#: plain, first, both.
THIRD, HALF, ALL = 300, 420, 1000  # 16/8/0, 23/15/7 and 30/30/30


@cache
def operator(number: int) -> str:
    """The id of machine `number`."""
    return machine_key(number).address


class Swarm:
    """Machines by number, what they were told last, and what they serve. Every event is an hour
    after the last.
    """

    def __init__(self, rules: Rules = Rules(partial=False)) -> None:
        self.rules = rules
        self.cluster: Cluster = nobody(self.shape)
        self.memory_mib: dict[int, int] = {}
        self.placement: Placement | None = None
        self.decisions = 0
        self.now_ms = NOW_MS
        self.loading: set[int] = set()

    @property
    def shape(self) -> ModelShape:
        return shape_of(SPEC)

    @property
    def told(self) -> dict[int, LayerRange]:
        """Layers by number of machine."""
        if self.placement is None:
            return {}
        by_operator = {operator(n): n for n in range(1, 200)}
        return {by_operator[op]: layers for op, layers in self.placement.assignments.items()}

    @property
    def standby(self) -> set[int]:
        return {
            n for n in self.memory_mib if self.placement and operator(n) in self.placement.standby
        }

    def sightings(self) -> list[Sighting]:
        found = []
        for number, mib in sorted(self.memory_mib.items()):
            layers = self.told.get(number)
            memory = {"memory_bytes": mib * MIB}
            if layers is None or number in self.loading:
                found.append(sighting(number, **memory))
            else:
                found.append(serving_at(number, layers.start, layers.end, **memory))
        return [replace(heard, seen_ms=self.now_ms) for heard in found]

    def decide(self) -> Placement | None:
        """One look of the planner; what it decides is loaded at once, except on machines that are
        loading.
        """
        self.now_ms += 3_600_000
        cluster = seen(self.cluster, self.sightings(), self.now_ms)
        self.cluster, found = plan(cluster, self.placement, self.now_ms, self.rules)
        if found is not None:
            self.placement = found
            self.decisions += 1
        return found

    def join(self, *numbers: int, mib: int = THIRD) -> Placement | None:
        """Machines come, together."""
        self.memory_mib |= dict.fromkeys(numbers, mib)
        return self.decide()

    def leave(self, *numbers: int) -> Placement | None:
        """Machines go, together."""
        for number in numbers:
            del self.memory_mib[number]
        return self.decide()

    @property
    def fleet(self) -> Fleet:
        return fleet_of(self.sightings())

    @property
    def shards(self) -> tuple[Shard, ...]:
        """What is served now: by machines that are there and have loaded."""
        ready = set(self.memory_mib) - self.loading
        return tuple(
            Shard(operator(n), layers) for n, layers in sorted(self.told.items()) if n in ready
        )

    def route(self, query: RouteQuery | None = None) -> Answer:
        """Who would answer a request now."""
        return route(prepare(self.fleet, self.shape, self.shards), query)

    def pipelines(self) -> int:
        """Disjoint whole-shard chains over what is served."""
        table = prepare(self.fleet, self.shape, self.shards)
        first = route(table)
        return 0 if isinstance(first, NoRoute) else 1 + len(disjoint_backups(table, first, 99))
