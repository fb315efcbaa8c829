"""Which path looks quickest to a client, as Petals chooses it?

Petals' shortest path over servers: link latency, plus the layers over the server's speed, plus a
penalty where its cache is short. Load is not part of it: the same path is taken until caches fill.
"""

from __future__ import annotations

import math

from benchmarks.scheduler.routers.hop_router import GrowingRoute, HopRouter
from scheduler.fleet.costs import hop_ms, stage_ms
from scheduler.fleet.fleet import Coordinator, Fleet, ModelShape
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.topology import HOME, Hop, Topology

#: What a machine without room for the request costs besides.
SHORT_CACHE_MS = 10_000.0


class PetalsRouter(HopRouter):
    """The whole path of least estimated time per token at batch 1."""

    def __init__(
        self,
        topology: Topology,
        kv: KvEstimate,
        fleet: Fleet,
        model: ModelShape,
        *,
        masks_full: bool = False,
    ) -> None:
        super().__init__(topology, kv, masks_full=masks_full)
        self._cost_ms = [_cost_ms(hop, fleet, model) for hop in topology.hops]
        ends = {hop.target: hop.stage.layers.end for hop in topology.hops if hop.stage is not None}
        self._order = [HOME, *sorted(ends, key=lambda vertex: ends[vertex])]

    def choose(self, prompt_tokens: int) -> GrowingRoute | None:
        quickest = [math.inf] * len(self.topology.ids)
        came_by: list[Hop | None] = [None] * len(self.topology.ids)
        quickest[HOME] = 0.0
        best_ms, last = math.inf, None
        for vertex in self._order:
            if quickest[vertex] == math.inf:
                continue
            for hop in self.topology.out[vertex]:
                if not self.may_take(hop, prompt_tokens):
                    continue
                total_ms = quickest[vertex] + self._cost_ms[hop.id]
                if hop.target == HOME:
                    if total_ms < best_ms:
                        best_ms, last = total_ms, hop
                    continue
                if not self.kv.fits(hop.target_id, prompt_tokens):
                    total_ms += SHORT_CACHE_MS
                if total_ms < quickest[hop.target]:
                    quickest[hop.target], came_by[hop.target] = total_ms, hop
        if last is None:
            return None
        hops = [last]
        while (before := came_by[hops[0].source]) is not None:
            hops.insert(0, before)
        route = GrowingRoute(prompt_tokens)
        for hop in hops:
            self.take(hop, route)
        return route


def _cost_ms(hop: Hop, fleet: Fleet, model: ModelShape) -> float:
    home = fleet.coordinator or Coordinator()
    at_home = HOME in (hop.source, hop.target)
    cost_ms = 0.0
    if not (at_home and fleet.coordinator is None):
        source = home if hop.source == HOME else fleet.by_id[hop.source_id]
        target = home if hop.target == HOME else fleet.by_id[hop.target_id]
        cost_ms = hop_ms(fleet.links, source, target, model)
    if hop.stage is not None:
        cost_ms += stage_ms(fleet.by_id[hop.target_id], model, hop.stage.layers)
    return cost_ms
