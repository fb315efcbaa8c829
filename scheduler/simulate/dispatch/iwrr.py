"""How does Helix spread requests over its maximum flow?

Helix §5.1: an interleaved weighted round robin at every vertex, weights are the flow on the links
that leave it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.router import RequestRoute
from scheduler.simulate.dispatch.topology import HOME, Hop, Topology

#: Links that carry less of what leaves a vertex are not used (as shipped).
LEAST_SHARE = 0.05


class IwrrRouter:
    """A whole route per request, one weighted round robin per vertex.

    ``by_load`` is the form that Helix ships: take the link with the least load + tokens / weight;
    decode steps add to the load too. Otherwise the form of the paper: requests are counted, each
    link in proportion to its weight and as evenly interleaved as can be. Machines over the
    high-water mark of the KV estimate are masked; when nobody is left at a vertex all loads are put
    back and the request is refused.
    """

    def __init__(
        self,
        topology: Topology,
        kv: KvEstimate,
        flow: Mapping[tuple[str, str], float],
        *,
        by_load: bool = True,
    ) -> None:
        self.topology = topology
        self.kv = kv
        self._absent: set[str] = set()
        self.by_load = by_load
        self._weights: list[float] = []
        self._loads: list[float] = []
        self._used: list[tuple[Hop, ...]] = []
        self.reweigh(flow)

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        flow: Mapping[tuple[str, str], float],
        *,
        high_water: float = 0.85,
        output_tokens: int = 240,
        by_load: bool = True,
    ) -> IwrrRouter:
        """The router of a placement with these tokens/s on each (machine, machine) link."""
        kv = KvEstimate(fleet, model, placement, high_water=high_water, output_tokens=output_tokens)
        return cls(Topology.of(fleet, model, placement, partial=True), kv, flow, by_load=by_load)

    def reweigh(self, flow: Mapping[tuple[str, str], float]) -> None:
        """Follow another flow from now on, as after a departure; requests keep their routes.

        All loads begin at zero. Raises FleetError for flow over a hop that the placement does not
        allow.
        """
        hops = self.topology.hops
        self._weights = [max(0.0, flow.get((hop.source_id, hop.target_id), 0.0)) for hop in hops]
        self._loads = [0.0] * len(hops)
        known = {(hop.source_id, hop.target_id) for hop in hops}
        for pair, tokens_per_s in flow.items():
            if tokens_per_s > 0 and pair not in known:
                raise FleetError(f"flow over {pair[0]} → {pair[1]}, where no request can go")
        self._used = [self._worth_using(out) for out in self.topology.out]

    def _worth_using(self, out: tuple[Hop, ...]) -> tuple[Hop, ...]:
        total = sum(self._weights[hop.id] for hop in out)
        return tuple(hop for hop in out if 0 < self._weights[hop.id] >= LEAST_SHARE * total)

    def choose(self, prompt_tokens: int) -> RequestRoute | None:
        hops: list[Hop] = []
        before: list[float] = []
        vertex = HOME
        while not hops or vertex != HOME:
            hop = self._next(vertex, prompt_tokens)
            if hop is None:
                for taken, load in zip(hops, before, strict=True):
                    self._loads[taken.id] = load
                return None
            before.append(self._loads[hop.id])
            self._loads[hop.id] += (prompt_tokens if self.by_load else 1) / self._weights[hop.id]
            hops.append(hop)
            vertex = hop.target
        route = RequestRoute(prompt_tokens)
        route.hops = [hop.id for hop in hops]
        route.stages = [hop.stage for hop in hops if hop.stage is not None]
        self.kv.add(route.stages, prompt_tokens)
        return route

    def _next(self, vertex: int, prompt_tokens: int) -> Hop | None:
        amount = prompt_tokens if self.by_load else 1
        loads, weights = self._loads, self._weights
        best, least = None, math.inf
        for hop in self._used[vertex]:
            load = loads[hop.id] + amount / weights[hop.id]
            if load < least and self._may_take(hop, prompt_tokens):
                best, least = hop, load
        return best

    def _may_take(self, hop: Hop, prompt_tokens: int) -> bool:
        return hop.target == HOME or (
            hop.target_id not in self._absent and self.kv.fits(hop.target_id, prompt_tokens)
        )

    def finish(self, route: RequestRoute) -> None:
        """Free the estimate of what the route had booked."""
        self.kv.remove(route.stages, route.prompt_tokens)

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """New requests avoid a machine while it is absent."""
        if is_present:
            self._absent.discard(machine_id)
        else:
            self._absent.add(machine_id)

    def note_step(self, route: RequestRoute) -> None:
        """A decode step adds one token to the load of every link of its route."""
        if self.by_load:
            loads, weights = self._loads, self._weights
            for hop in route.hops:
                if weights[hop]:
                    loads[hop] += 1.0 / weights[hop]
