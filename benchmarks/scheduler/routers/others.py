"""What do other systems' routers serve on one placement? (Helix §6.7, and Petals')

They go over the hops of Helix's flow graph, and do not look at KV caches; requests for which a
machine has no page left start again.
"""

from __future__ import annotations

from benchmarks.scheduler.routers.chance import RandomRouter, ShortestQueueRouter
from benchmarks.scheduler.routers.hop_router import HopRouter
from benchmarks.scheduler.routers.petals import PetalsRouter
from benchmarks.scheduler.routers.stepwise import StepwiseSimulation
from benchmarks.scheduler.routers.swarm import SwarmRouter
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.topology import Topology
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.work import Work


def others(
    fleet: Fleet, model: ModelShape, placement: Placement, work: Work, options: SimOptions
) -> dict[str, SimReport]:
    """Router → what it served."""
    topology = Topology.of(fleet, model, placement)

    def served(router: HopRouter) -> SimReport:
        return StepwiseSimulation(fleet, model, placement, router, work, options).run()

    def estimate() -> KvEstimate:
        return KvEstimate(fleet, model, placement)

    return {
        "Swarm's": served(SwarmRouter(topology, estimate())),
        "random": served(RandomRouter(topology, estimate())),
        "shortest queue": served(ShortestQueueRouter(topology, estimate())),
        "Petals'": served(PetalsRouter(topology, estimate(), fleet, model)),
    }
