"""Which placement does SWARM make? (Ryabinin et al. 2023; as Helix §6.2 adapts it)"""

from __future__ import annotations

import math

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities, tokens_per_s
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Placement, Shard, in_layer_order


def swarm(fleet: Fleet, model: ModelShape, stages: int | None = None) -> Placement:
    """Equal stages; the fastest machine left joins the stage of least throughput so far.

    ``stages`` defaults to the fewest with which the weakest machine can hold any of them. Where it
    does not divide L the first stages take a layer more (Helix asks for a divisor of L, the paper
    leaves it open). Speed is T at a stage's size, ties go to the larger id. Machines that hold
    nothing are left out.

    Raises PlanError when no number of stages is possible, or fewer machines than stages are there.
    """
    able = [m for m in fleet.machines if min(capacities(m, model)[:3]) >= 1]
    if not able:
        raise PlanError("empty", "no machine can hold a layer")
    weakest = min(min(capacities(m, model)[:3]) for m in able)
    stages = stages or max(1, math.ceil(model.layers / weakest))
    if not 1 <= stages <= min(model.layers, len(able)):
        raise PlanError(
            "empty", f"{stages} stages for {len(able)} machines and {model.layers} layers"
        )
    share, more = divmod(model.layers, stages)
    starts = [i * share + min(i, more) for i in range(stages + 1)]
    size = share + (more > 0)
    if stages == 1 and any(capacities(m, model).both < size for m in able):
        raise PlanError("empty", "one stage, which not every machine can hold")
    if size > weakest:
        raise PlanError(
            "over-capacity", f"stages of {size} layers, the weakest machine holds {weakest}"
        )

    def speed(machine: Machine) -> tuple[float, str]:
        return tokens_per_s(machine, model, size), machine.id

    throughput = [0.0] * stages
    shards = []
    for machine in sorted(able, key=speed, reverse=True):
        at = throughput.index(min(throughput))
        throughput[at] += tokens_per_s(machine, model, size)
        shards.append(Shard(machine.id, LayerRange(starts[at], starts[at + 1])))
    return in_layer_order(shards)
