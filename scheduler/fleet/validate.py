"""May this plan be told to machines?"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.fleet.costs import capacity, position_of
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Pipeline


def validate_pipeline(pipeline: Pipeline, fleet: Fleet, model: ModelShape) -> None:
    """Raise PlanError unless the stages tile [0, L) in order, fit, and reach each other."""
    if not pipeline:
        raise PlanError("empty", "a pipeline without stages")
    cursor = 0
    for at, (machine_id, layers) in enumerate(pipeline):
        machine = fleet.by_id.get(machine_id)
        if machine is None:
            raise PlanError("unknown-machine", f"{machine_id} is not in the fleet", machine_id)
        if layers.start != cursor:
            problem, between = ("gap", f"[{cursor}, {layers.start})")
            if layers.start < cursor:
                problem, between = ("overlap", f"[{layers.start}, {cursor})")
            raise PlanError(problem, f"layers {between} before {machine_id}", machine_id)
        position = position_of(layers, model)
        most = capacity(machine, model, position)
        if layers.end > model.layers or len(layers) > most:
            raise PlanError(
                "over-capacity",
                f"{machine_id} as {position.value} stage holds {most} layers, not {len(layers)}",
                machine_id,
            )
        if at:
            before = fleet.by_id[pipeline[at - 1].machine_id]
            if fleet.links.between(before, machine) is None:
                raise PlanError(
                    "unreachable", f"{machine_id} cannot be reached from {before.id}", machine_id
                )
        cursor = layers.end
    if cursor != model.layers:
        raise PlanError("gap", f"layers [{cursor}, {model.layers}) after the last stage")


def validate_pipelines(pipelines: Iterable[Pipeline], fleet: Fleet, model: ModelShape) -> None:
    """Raise PlanError unless every pipeline is valid and no machine appears twice."""
    seen: set[str] = set()
    for pipeline in pipelines:
        validate_pipeline(pipeline, fleet, model)
        for machine_id, _ in pipeline:
            if machine_id in seen:
                raise PlanError("machine-twice", f"{machine_id} has two shards", machine_id)
            seen.add(machine_id)
