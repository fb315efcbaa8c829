"""What do the two simplest routers of Helix §6.7 do? Neither looks at KV caches."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from benchmarks.scheduler.routers.hop_router import HopRouter
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.topology import Hop, Topology


class RandomRouter(HopRouter):
    """Any next machine, equally likely; with ``weights`` of hops (source id, target id) in
    proportion to them.
    """

    def __init__(
        self,
        topology: Topology,
        kv: KvEstimate,
        *,
        seed: int = 0,
        weights: Mapping[tuple[str, str], float] | None = None,
        masks_full: bool = False,
    ) -> None:
        super().__init__(topology, kv, masks_full=masks_full)
        self._draw = random.Random(seed)
        self._weights = weights

    def pick(self, allowed: list[Hop]) -> Hop:
        if self._weights is None:
            return self._draw.choice(allowed)
        weights = [self._weights.get((hop.source_id, hop.target_id), 0.0) for hop in allowed]
        return self._draw.choices(allowed, weights)[0]


class ShortestQueueRouter(RandomRouter):
    """The next machine where the fewest steps wait; among equals any."""

    #: Steps that wait at a machine; the simulation puts its own count here.
    waiting_at: Callable[[str], int] = staticmethod(lambda machine_id: 0)

    def pick(self, allowed: list[Hop]) -> Hop:
        waiting = [self.waiting_at(hop.target_id) if hop.stage else 0 for hop in allowed]
        least = min(waiting)
        shortest = [hop for hop, many in zip(allowed, waiting, strict=True) if many == least]
        return self._draw.choice(shortest)
