"""How does Helix spread requests over its maximum flow?

Helix §5: turns by the flow at every vertex, and machines over the high-water mark of the KV
estimate are masked.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.simulate.dispatch.estimate import HIGH_WATER, MEAN_OUTPUT_TOKENS, KvEstimate
from scheduler.simulate.dispatch.router import RequestRoute
from scheduler.simulate.dispatch.topology import Topology
from scheduler.simulate.dispatch.turns import WeightedTurns


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
        self.kv = kv
        self.by_load = by_load
        self._absent: set[str] = set()
        self._turns = WeightedTurns(topology, flow)

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        flow: Mapping[tuple[str, str], float],
        *,
        high_water: float = HIGH_WATER,
        output_tokens: int = MEAN_OUTPUT_TOKENS,
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
        self._turns.reweigh(flow)

    def choose(self, prompt_tokens: int) -> RequestRoute | None:
        def may_enter(machine_id: str) -> bool:
            return machine_id not in self._absent and self.kv.fits(machine_id, prompt_tokens)

        hops = self._turns.way(prompt_tokens if self.by_load else 1, may_enter)
        if hops is None:
            return None
        route = RequestRoute(prompt_tokens)
        route.hops = [hop.id for hop in hops]
        route.stages = [hop.stage for hop in hops if hop.stage is not None]
        self.kv.add(route.stages, prompt_tokens)
        return route

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
            self._turns.add(route.hops, 1.0)
