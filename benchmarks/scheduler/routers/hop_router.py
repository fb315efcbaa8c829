"""What do routers do alike that choose among the hops of a placement?"""

from __future__ import annotations

from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.router import RequestRoute
from scheduler.simulate.dispatch.topology import HOME, Hop, Topology


class GrowingRoute(RequestRoute):
    """A route that may get further stages while the prompt is on its way."""

    __slots__ = ("is_complete",)

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__(prompt_tokens)
        self.is_complete = False


class HopRouter:
    """A router that ignores decode steps, books the estimate, and passes absent machines over.

    ``masks_full`` passes over machines beyond the estimate's high-water mark too, which only
    Helix's own router does as published; without it requests may fill a cache until they must start
    again. The estimate counts a machine as soon as it is chosen.
    """

    def __init__(self, topology: Topology, kv: KvEstimate, *, masks_full: bool = False) -> None:
        self.topology = topology
        self.kv = kv
        self._masks_full = masks_full
        self._absent: set[str] = set()

    def choose(self, prompt_tokens: int) -> GrowingRoute | None:
        """A route with its first stage, or with all of them; None to wait."""
        route = GrowingRoute(prompt_tokens)
        return route if self._extend_from(HOME, route) else None

    def extend(self, route: GrowingRoute) -> bool:
        """Add a stage when the prompt leaves the last one; False when no machine may take it."""
        return self._extend_from(self.topology.hops[route.hops[-1]].target, route)

    def _extend_from(self, vertex: int, route: GrowingRoute) -> bool:
        out = self.topology.out[vertex]
        allowed = [hop for hop in out if self.may_take(hop, route.prompt_tokens)]
        if not allowed:
            return False
        hop = self.pick(allowed)
        self.take(hop, route)
        if hop.stage is not None and hop.stage.layers.end == self.topology.layers:
            self.take(self.topology.out[hop.target][0], route)
        return True

    def pick(self, allowed: list[Hop]) -> Hop:
        """The next hop."""
        raise NotImplementedError

    def may_take(self, hop: Hop, prompt_tokens: int) -> bool:
        """Whether a prompt may go there."""
        return hop.target == HOME or (
            hop.target_id not in self._absent
            and (not self._masks_full or self.kv.fits(hop.target_id, prompt_tokens))
        )

    def take(self, hop: Hop, route: GrowingRoute) -> None:
        """Append a hop; the one back to the coordinator completes the route."""
        route.hops.append(hop.id)
        if hop.stage is None:
            route.is_complete = True
        else:
            route.stages.append(hop.stage)
            self.kv.add((hop.stage,), route.prompt_tokens)

    def note_step(self, route: RequestRoute) -> None:
        """Decode steps do not matter."""

    def finish(self, route: RequestRoute) -> None:
        """Free the estimate of what the route had booked."""
        self.kv.remove(route.stages, route.prompt_tokens)

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """New requests avoid a machine while it is absent."""
        if is_present:
            self._absent.discard(machine_id)
        else:
            self._absent.add(machine_id)
