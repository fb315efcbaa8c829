"""Which GPUs would serve which of several models? A `models/1` file (`docs/scheduler.md`) says what
there is and what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from core.protocol.errors import HeadraceError, NoCapacity, UsageError
from core.protocol.units import parse_bytes
from core.runtime.commands.results import Result
from matcher.planning.plan_file import (
    MODEL_KEYS,
    checked_table,
    out_of_range,
    read_document,
    saying_where,
)
from scheduler.fabric.objective import Objective
from scheduler.fabric.place import FabricPlan, place
from scheduler.fabric.switching import Switch
from scheduler.fabric.world import Demand, Efficiency, GpuType, Group, NeedsChain, Overloaded
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import ModelShape
from scheduler.fleet.workload import Workload

T = TypeVar("T")
_WORK_KEYS = {field.name for field in fields(Workload)}
_DEMAND_KEYS = {"id", "slo_ms", "weight"} | _WORK_KEYS | MODEL_KEYS
_GPU_KEYS = {field.name for field in fields(GpuType)} - {"name"} | {"id", "memory"}
_EFFICIENCY_KEYS = {field.name for field in fields(Efficiency)}
_FILE_KEYS = {
    "schema",
    "id",
    "models",
    "gpus",
    "objective",
    "sharing",
    "efficiency",
    "serving",
    "ms_per_gpu",
}


class PlacedModels(Result, frozen=True):
    """`plan --models`: the replicas of each model, and how good that is. Latencies are means."""

    id: str
    objective: str
    value: float
    bound: float | None
    gap: float
    method: str
    latency_ms: float
    models: list[dict[str, Any]]
    shared: list[list[str]]
    idle: dict[str, int]


@dataclass(frozen=True)
class ModelsQuestion:
    """What a `models/1` file asks."""

    id: str
    gpus: tuple[GpuType, ...]
    demands: tuple[Demand, ...]
    objective: Objective
    sharing: bool
    efficiency: Efficiency
    switch: Switch


def read_models(path: Path) -> ModelsQuestion:
    """The question in a file. Raises UsageError naming the entry that is wrong."""
    content = read_document(path)
    with saying_where(str(path)):
        document = checked_table(content, "the file", _FILE_KEYS)
        if document.get("schema") != "models/1":
            raise FleetError(f"schema {document.get('schema')!r} is not models/1")
        gpus = _each(document["gpus"], "gpus", _gpu)
        models = _each(document["models"], "models", _demand)
        sharing = document.get("sharing", False)
        if not isinstance(sharing, bool):
            raise FleetError(f"sharing is {sharing!r}, not true or false")
        serving = _serving(document.get("serving", {}), gpus, models)
        efficiency = checked_table(document.get("efficiency", {}), "efficiency", _EFFICIENCY_KEYS)
        return ModelsQuestion(
            str(document.get("id", path.stem)),
            gpus,
            models,
            document.get("objective", "sum"),
            sharing,
            Efficiency(**efficiency),
            Switch(serving, document.get("ms_per_gpu", 0.0)),
        )


def _each(entries: Any, name: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    """What is wrong with an entry is said with its place."""
    if not isinstance(entries, list):
        raise FleetError(f"{name} is not a list")
    found = []
    for i, entry in enumerate(entries):
        try:
            found.append(read(entry))
        except KeyError as error:
            raise FleetError(f"{name}[{i}]: {error} is missing") from None
        except (HeadraceError, TypeError, ValueError, ArithmeticError) as error:
            what = error.what if isinstance(error, HeadraceError) else str(error)
            raise FleetError(f"{name}[{i}]: {what}") from None
    return tuple(found)


def _gpu(entry: Any) -> GpuType:
    values = checked_table(entry, "it", _GPU_KEYS)
    if "memory" in values:
        try:
            values["memory_bytes"] = parse_bytes(str(values.pop("memory")))
        except UsageError as error:
            raise FleetError(f"memory: {error.what}") from None
    return GpuType(str(values.pop("id")), **values)


def _demand(entry: Any) -> Demand:
    values = checked_table(entry, "it", _DEMAND_KEYS)
    own = {key: values.pop(key, None) for key in ("slo_ms", "weight")}
    return Demand(
        str(values.pop("id")),
        workload=Workload(**{key: values.pop(key) for key in _WORK_KEYS & set(values)}),
        shape=ModelShape.dense(**values),
        bytes_per_parameter=values.get("bytes_per_parameter", 2.0),
        kv_heads=values["kv_heads"],
        **own,
    )


def _serving(
    entry: Any, gpus: Sequence[GpuType], models: Sequence[Demand]
) -> dict[str, tuple[Group, ...]]:
    """What runs now, by model. Raises FleetError for a model or GPU that the file does not list."""
    known = [gpu.name for gpu in gpus]

    def read(group: Any) -> Group:
        values = checked_table(group, "it", set(Group._fields))
        if values["gpu"] not in known:
            raise FleetError(f"gpu is {values['gpu']!r}, not one of {known}")
        return Group(**values)

    by_model = checked_table(entry, "serving", {model.name for model in models})
    return {model: _each(groups, f"serving.{model}", read) for model, groups in by_model.items()}


def place_models(asked: ModelsQuestion) -> PlacedModels:
    """The placement of least cost.

    Raises NoCapacity when no GPUs hold a model or serve the load, UsageError for any other reason
    why nothing can be placed.
    """
    try:
        plan = place(
            asked.gpus,
            asked.demands,
            asked.objective,
            efficiency=asked.efficiency,
            switch=asked.switch,
            sharing=asked.sharing,
        )
    except NeedsChain as error:
        raise NoCapacity(
            f"no GPUs of {asked.id} hold one of its models",
            why=str(error),
            next_step="add larger GPUs, or plan that model alone with `matcher plan --nodes FILE`",
        ) from None
    except Overloaded as error:
        raise NoCapacity(
            f"the GPUs of {asked.id} do not serve its models",
            why=str(error),
            next_step="lower requests_per_s, or add GPUs",
        ) from None
    except FleetError as error:
        raise UsageError(f"{asked.id} cannot be planned", why=str(error)) from None
    except ArithmeticError as error:
        raise out_of_range(asked.id, error) from None
    return _placed(asked, plan)


def _placed(asked: ModelsQuestion, plan: FabricPlan) -> PlacedModels:
    names = [demand.name for demand in asked.demands]
    return PlacedModels(
        id=asked.id,
        objective=plan.objective,
        value=round(plan.value, 6),
        bound=None if plan.gap == 1.0 else round(plan.bound, 6),
        gap=round(plan.gap, 6),
        method=plan.method,
        latency_ms=round(plan.mean_latency_ms, 3),
        models=[
            {
                "model": names[part.model],
                "groups": [group._asdict() for group in part.groups],
                "latency_ms": round(part.latency_ms, 3),
                "used": round(part.utilisation, 4),
            }
            for part in plan.parts
        ],
        shared=[[names[one], names[other]] for one, other in plan.shared],
        idle={gpu.name: gpu.count - plan.gpus[gpu.name] for gpu in plan.types},
    )


def model_rows(result: PlacedModels) -> list[dict[str, Any]]:
    """One row a model, for people."""
    return [
        {
            "model": one["model"],
            "replicas × GPUs": ", ".join(
                f"{group['replicas']} × {group['tensor']} {group['gpu']}" for group in one["groups"]
            ),
            "used": f"{one['used']:.0%}",
            "ms/request": f"{one['latency_ms']:.0f}",
        }
        for one in result.models
    ]


def models_summary(result: PlacedModels) -> list[str]:
    """What the table does not say."""
    idle = ", ".join(f"{count} {gpu}" for gpu, count in result.idle.items() if count)
    proof = "unknown" if result.bound is None else f"{result.gap:.2%}"
    return [
        f"{result.objective}: {result.value:,.1f}, gap {proof} ({result.method})",
        f"mean latency over all requests: {result.latency_ms:,.0f} ms",
        f"idle: {idle or 'no GPU'}",
        *(f"{one} and {other} take turns on the same GPUs" for one, other in result.shared),
    ]
