"""May these shards be a placement: known machines, one shard each, within model and memory?"""

from __future__ import annotations

from scheduler.fleet.costs import capacity, position_of
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement


def check_shards(placement: Placement, fleet: Fleet, model: ModelShape) -> None:
    """Raise PlanError on machines that are unknown or have two shards, and layers beyond L."""
    seen: set[str] = set()
    for machine_id, layers in placement:
        if machine_id not in fleet.by_id:
            raise PlanError("unknown-machine", f"{machine_id} is not in the fleet", machine_id)
        if machine_id in seen:
            raise PlanError("machine-twice", f"{machine_id} has two shards", machine_id)
        if layers.end > model.layers:
            raise PlanError(
                "gap", f"{machine_id}: layers {layers}, the model has {model.layers}", machine_id
            )
        seen.add(machine_id)


def validate_placement(placement: Placement, fleet: Fleet, model: ModelShape) -> None:
    """`check_shards`, and raise PlanError where layers do not fit or nobody holds one."""
    check_shards(placement, fleet, model)
    held = [False] * model.layers
    for machine_id, layers in placement:
        position = position_of(layers, model)
        most = capacity(fleet.by_id[machine_id], model, position)
        if len(layers) > most:
            raise PlanError(
                "over-capacity",
                f"{machine_id} as {position.value} stage holds {most} layers, not {len(layers)}",
                machine_id,
            )
        held[layers.start : layers.end] = [True] * len(layers)
    if not all(held):
        raise PlanError("gap", f"nobody holds layer {held.index(False)}")
