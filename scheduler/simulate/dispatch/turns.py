"""Which way is next, so that every hop is taken in proportion to the flow over it?

Interleaved weighted round robin at every vertex (Helix §5.1): weights are the flow on the hops that
leave it, and the hop with the least load + amount / weight is next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from scheduler.fleet.errors import FleetError
from scheduler.simulate.dispatch.topology import HOME, Hop, Topology

#: Links that carry less of what leaves a vertex are not used (as shipped).
LEAST_SHARE = 0.05


class WeightedTurns:
    """Loads of all hops. ``way`` adds to them, and leaves them alone where it leads nowhere."""

    def __init__(self, topology: Topology, flow: Mapping[tuple[str, str], float]) -> None:
        self.topology = topology
        self._weights: list[float] = []
        self._loads: list[float] = []
        self._used: list[tuple[Hop, ...]] = []
        self.reweigh(flow)

    def reweigh(self, flow: Mapping[tuple[str, str], float]) -> None:
        """Follow another flow from now on. All loads begin at zero.

        Raises FleetError for flow over a hop that the placement does not allow.
        """
        hops = self.topology.hops
        self._weights = [max(0.0, flow.get((hop.source_id, hop.target_id), 0.0)) for hop in hops]
        self._loads = [0.0] * len(hops)
        known = {(hop.source_id, hop.target_id) for hop in hops}
        for pair, tokens_per_s in flow.items():
            if tokens_per_s > 0 and pair not in known:
                raise FleetError(f"flow over {pair[0]} → {pair[1]}, where no request can go")
        self._used = [self._worth_using(out) for out in self.topology.out]

    def way(self, amount: int, may_enter: Callable[[str], bool]) -> list[Hop] | None:
        """The next way through the model over machines that may be entered, or None.

        `amount` is what it adds to the loads, in requests or tokens.
        """
        hops: list[Hop] = []
        before: list[float] = []
        vertex = HOME
        while not hops or vertex != HOME:
            hop = self._next(vertex, amount, may_enter)
            if hop is None:
                for taken, load in zip(hops, before, strict=True):
                    self._loads[taken.id] = load
                return None
            before.append(self._loads[hop.id])
            self._loads[hop.id] += amount / self._weights[hop.id]
            hops.append(hop)
            vertex = hop.target
        return hops

    def add(self, hops: Iterable[int], amount: float) -> None:
        """More load on these hops, those of an older flow left out."""
        loads, weights = self._loads, self._weights
        for hop in hops:
            if weights[hop]:
                loads[hop] += amount / weights[hop]

    def _next(self, vertex: int, amount: int, may_enter: Callable[[str], bool]) -> Hop | None:
        loads, weights = self._loads, self._weights
        best, least = None, math.inf
        for hop in self._used[vertex]:
            load = loads[hop.id] + amount / weights[hop.id]
            if load < least and (hop.target == HOME or may_enter(hop.target_id)):
                best, least = hop, load
        return best

    def _worth_using(self, out: tuple[Hop, ...]) -> tuple[Hop, ...]:
        total = sum(self._weights[hop.id] for hop in out)
        return tuple(hop for hop in out if 0 < self._weights[hop.id] >= LEAST_SHARE * total)
