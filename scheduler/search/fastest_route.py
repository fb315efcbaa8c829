"""How does a simulated request get its chain as the matcher gives it?

The fastest one with room, where every request that runs counts at once at each of its stages.
"""

from __future__ import annotations

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.routing.live import LiveRouter
from scheduler.routing.parallax_route import Route, without_returns
from scheduler.routing.routing_table import prepare
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.router import RequestRoute


class FastestRouter:
    """A `LiveRouter` for the simulator. Machines that are full or absent are masked."""

    def __init__(
        self, fleet: Fleet, model: ModelShape, placement: Placement, kv: KvEstimate
    ) -> None:
        self.kv = kv
        self._router = LiveRouter(prepare(fleet, model, placement))
        self._layers = {shard.machine_id: len(shard.layers) for shard in placement}
        self._running = dict.fromkeys(self._layers, 0)
        for machine_id in self._layers:
            self._tell(machine_id)

    def choose(self, prompt_tokens: int) -> RequestRoute | None:
        found = self._router.route(prompt_tokens + self.kv.output_tokens)
        if not isinstance(found, Route):
            return None
        route = RequestRoute(prompt_tokens)
        route.stages = list(without_returns(found.stages))
        self.kv.add(route.stages, prompt_tokens)
        self._count(route, 1)
        return route

    def note_step(self, route: RequestRoute) -> None:
        """Nothing: a request counts as one for as long as it runs."""

    def finish(self, route: RequestRoute) -> None:
        """Its room at every stage is free again."""
        self.kv.remove(route.stages, route.prompt_tokens)
        self._count(route, -1)

    def set_present(self, machine_id: str, is_present: bool) -> None:
        """New requests avoid a machine while it is absent."""
        self._router.ready(machine_id, is_present)

    def _count(self, route: RequestRoute, more: int) -> None:
        for machine_id, _ in route.stages:
            self._running[machine_id] += more
            self._tell(machine_id)

    def _tell(self, machine_id: str) -> None:
        kv = self.kv
        room = kv.high_water * kv.capacity[machine_id] - kv.used[machine_id]
        self._router.load(machine_id, self._running[machine_id])
        self._router.room(machine_id, int(room) // self._layers[machine_id])
