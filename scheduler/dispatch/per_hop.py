"""What do routers do that choose the next machine when a prompt leaves the last one?"""

from __future__ import annotations

import random

from scheduler.dispatch.base import BaseRouter
from scheduler.dispatch.estimate import KvEstimate
from scheduler.dispatch.router import Route
from scheduler.dispatch.topology import HOME, Hop, Topology


class PerHopRouter(BaseRouter):
    """One hop at a time; the path is kept for the decode steps."""

    def choose(self, prompt_tokens: int) -> Route | None:
        route = Route(prompt_tokens)
        return route if self._extend_from(HOME, route) else None

    def extend(self, route: Route) -> bool:
        return self._extend_from(self.topology.hops[route.hops[-1]].target, route)

    def _extend_from(self, vertex: int, route: Route) -> bool:
        allowed = [
            hop for hop in self.topology.out[vertex] if self._may_take(hop, route.prompt_tokens)
        ]
        if not allowed:
            return False
        hop = self._pick(allowed)
        route.hops.append(hop.id)
        if hop.stage is not None:
            route.stages.append(hop.stage)
            self.kv.add((hop.stage,), route.prompt_tokens)
            if hop.stage.layers.end == self.topology.layers:
                way_home = self.topology.out[hop.target][0]
                route.hops.append(way_home.id)
                route.is_complete = True
        return True

    def _pick(self, allowed: list[Hop]) -> Hop:
        raise NotImplementedError


class RandomRouter(PerHopRouter):
    """Any next machine, equally likely; with ``by_weight`` in proportion to the weights of the hops."""

    def __init__(
        self,
        topology: Topology,
        kv: KvEstimate,
        *,
        seed: int = 0,
        by_weight: bool = False,
        masks_full: bool = False,
    ) -> None:
        super().__init__(topology, kv, masks_full=masks_full)
        self._draw = random.Random(seed)
        self._by_weight = by_weight

    def _pick(self, allowed: list[Hop]) -> Hop:
        if self._by_weight:
            return self._draw.choices(allowed, [hop.weight for hop in allowed])[0]
        return self._draw.choice(allowed)


class ShortestQueueRouter(RandomRouter):
    """The next machine where the fewest steps wait; among equals any."""

    def _pick(self, allowed: list[Hop]) -> Hop:
        waiting = [
            0 if hop.stage is None else self.waiting_at(hop.stage.machine_id) for hop in allowed
        ]
        least = min(waiting)
        return self._draw.choice(
            [hop for hop, many in zip(allowed, waiting, strict=True) if many == least]
        )
