"""How does a placement serve when the next machine is chosen as a prompt leaves the last one?

The product's simulator, with routers that it does not have: `extend` is asked for the next stage,
`note_seconds` told what each step took, and `waiting_at` set to count the steps that wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.scheduler.routers.hop_router import GrowingRoute, HopRouter
from benchmarks.scheduler.routers.swarm import SwarmRouter
from core.batching import StepBatch
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.simulate.coordinator import SimulatedCoordinator
from scheduler.simulate.network import Network
from scheduler.simulate.options import SimOptions
from scheduler.simulate.simulation import Simulation
from scheduler.simulate.work import Work
from scheduler.simulate.world import RunningRequest, Visit, Worker


class TimedNetwork(Network):
    """Remembers when each step set out to the stage where it is."""

    def __init__(self, fleet: Fleet, model: ModelShape, options: SimOptions) -> None:
        super().__init__(fleet, model, options)
        # By the decode visit of a stage: (end of the tokens sent, when), in order.
        self._sent: defaultdict[Visit, list[tuple[int, float]]] = defaultdict(list)

    def sent_at(self, visit: Visit) -> float:
        """When the message came off its sender that brought these tokens, or the last of them."""
        sent = self._sent[visit.base]
        while len(sent) > 1 and sent[0][0] < visit.end:
            del sent[0]
        return sent[0][1]

    def send_prompt(self, visit: Visit, now: float) -> None:
        self._sent[visit.base].append((visit.end, now))
        super().send_prompt(visit, now)

    def send_decode(self, visit: Visit, now: float) -> None:
        self._sent[visit] = [(visit.end, now)]
        super().send_decode(visit, now)

    def send_decodes(self, done: list[Visit], now: float) -> None:
        for visit in done:
            if visit.next is not None:
                self._sent[visit.next] = [(visit.next.end, now)]
        super().send_decodes(done, now)

    def send_framed(self, visits: Iterable[Visit], now: float) -> None:
        together = list(visits)
        for visit in together:
            self._sent[visit] = [(visit.end, now)]
        super().send_framed(together, now)


class StepwiseCoordinator(SimulatedCoordinator):
    """A coordinator whose requests set out before they know their way home."""

    def extend(self, running: RunningRequest, router: HopRouter, now: float) -> None:
        """Let the router add a stage; a request that no machine can take starts again."""
        route = running.route
        assert isinstance(route, GrowingRoute)
        if route.is_complete:
            return
        if not router.extend(route) or not self._enter(running, route.stages[-1]):
            self.counts.refusals += 1
            self.restart(running, now)
        elif route.is_complete:
            running.home = self.network.link(running.visits[-1].worker.id, self.network.home.id)


class StepwiseSimulation(Simulation):
    """One run with a router that may choose hop by hop."""

    network_type = TimedNetwork
    coordinator_type = StepwiseCoordinator

    def __init__(
        self,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        router: HopRouter,
        work: Work,
        options: SimOptions,
    ) -> None:
        self.now = 0.0
        self._router = router
        if hasattr(router, "waiting_at"):
            router.waiting_at = self._waiting_at
        super().__init__(fleet, model, placement, router, work, options)

    def _finish_pass(self, worker: Worker, now: float) -> None:
        self.now = now
        batch, coordinator = worker.batch, self.coordinator
        assert batch is not None and isinstance(coordinator, StepwiseCoordinator)
        if isinstance(self._router, SwarmRouter):
            self._tell_seconds(batch, self._router, now)
        for visit in batch.prefills:
            if visit.base.next is None and not visit.base.is_dead:
                coordinator.extend(visit.running, self._router, now)
        super()._finish_pass(worker, now)

    def _tell_seconds(self, batch: StepBatch[Visit], router: SwarmRouter, now: float) -> None:
        network = self.network
        assert isinstance(network, TimedNetwork)
        for visit in (*batch.decodes, *batch.prefills):
            route = visit.running.route
            if not visit.base.is_dead and route is not None:
                stage = visit.running.visits.index(visit.base)
                router.note_seconds(route, stage, now - network.sent_at(visit))

    def _waiting_at(self, machine_id: str) -> int:
        worker = self.workers[machine_id]
        inboxes = (*worker.decodes_in, *worker.prompts_in)
        return len(worker.former) + sum(entry[0] <= self.now for entry in inboxes)
