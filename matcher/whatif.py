"""What would phase 1 do with a fleet that exists only in a file?

The file is JSON: `model` (a registered shape, or its dimensions), `machines` and, if known, `links`::

    {"model": {"layers": 30, "hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3, "vocab": 49152, "tied": true},
     "machines": [{"id": "a", "memory": "6GiB", "tflops": 20, "bandwidth_gb_s": 300, "region": "eu"}],
     "links": {"rho_ms": {"a": {"b": 12.5}}, "default_ms": 50}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from core.protocol.errors import HeadraceError, UsageError
from core.protocol.units import parse_bytes
from scheduler.allocate import AllocateOptions, Allocation, allocate
from scheduler.errors import FleetError
from scheduler.explain import explain_allocation, explain_pipeline
from scheduler.fleet import UNMEASURED_RHO_MS, Fleet, Links, Machine, ModelShape

_MACHINE_KEYS = {item.name for item in fields(Machine)} | {"memory"}
_MODEL_KEYS = {
    "layers", "hidden", "intermediate", "heads", "kv_heads", "vocab", "tied", "head_dim",
    "bytes_per_parameter", "kv_bytes_per_value", "activation_bytes_per_value", "layer_bytes",
}  # fmt: skip


@dataclass(frozen=True)
class WhatIf:
    """A fleet and a model to plan for."""

    fleet: Fleet
    model: ModelShape


def read_what_if(path: Path) -> WhatIf:
    """A fleet file. Raises UsageError naming the entry that is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON", why=str(error)) from None
    try:
        document = _table(content, "the file", {"model", "machines", "links"})
        model = ModelShape.dense(**_table(document["model"], "model", _MODEL_KEYS))
        machines = tuple(
            _machine(entry, f"machines[{i}]") for i, entry in enumerate(document["machines"])
        )
        return WhatIf(Fleet(machines, _links(document.get("links", {}))), model)
    except KeyError as error:
        raise UsageError(f"{path} is incomplete", why=f"{error} is missing") from None
    except (FleetError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{path} cannot be planned", why=str(error)) from None


def _table(value: Any, name: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is not a table")
    unknown = sorted(set(value) - known)
    if unknown:
        raise TypeError(f"{name} has unknown keys {unknown}; known: {sorted(known)}")
    return dict(value)


def _machine(entry: Any, name: str) -> Machine:
    values = _table(entry, name, _MACHINE_KEYS)
    try:
        if "memory" in values:
            values["memory_bytes"] = parse_bytes(str(values.pop("memory")))
        return Machine(**values)
    except HeadraceError as error:
        raise TypeError(f"{name}: {error.what}") from None


def _links(entry: Any) -> Links:
    values = _table(entry, "links", {"rho_ms", "default_ms"})
    pairs = {
        (a, b): float(ms)
        for a, to in dict(values.get("rho_ms", {})).items()
        for b, ms in dict(to).items()
    }
    default = values.get("default_ms", UNMEASURED_RHO_MS)
    return Links.from_rho_ms(pairs, None if default is None else float(default))


def plan_what_if(asked: WhatIf, options: AllocateOptions) -> Allocation:
    """Phase 1 over the file's fleet. Raises UsageError for absurd options."""
    try:
        return allocate(asked.fleet, asked.model, options)
    except FleetError as error:
        raise UsageError("this cannot be planned", why=str(error)) from None


def what_if_json(asked: WhatIf, found: Allocation, *, explain: bool) -> dict[str, Any]:
    """The plan as JSON-ready values."""
    pipelines, total = list[dict[str, Any]](), 0.0
    for pipeline in found.pipelines:
        report = explain_pipeline(pipeline, asked.fleet, asked.model)
        total += report.tokens_per_s
        pipelines.append(
            {
                "stages": [
                    {"machine": s.machine_id, "layers": [s.layers.start, s.layers.end]}
                    for s in report.stages
                ],
                "latency_ms": round(report.latency_ms, 3),
                "tokens_per_s": round(report.tokens_per_s, 1),
                "bottleneck": report.bottleneck,
            }
        )
    result = {
        "pipelines": pipelines,
        "standby": list(found.standby),
        "ignored": [{"machine": machine, "why": why} for machine, why in found.ignored],
        "tokens_per_s": round(total, 1),
        "z": found.z,
        "gap": found.gap,
        "method": found.method,
    }
    if explain or not found.pipelines:
        result["explanation"] = list(explain_allocation(found, asked.fleet, asked.model))
    return result


def what_if_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a stage, for people."""
    return [
        {
            "pipeline": number,
            "machine": stage["machine"],
            "layers": f"{stage['layers'][0]}-{stage['layers'][1] - 1}",
            "tokens/s": pipeline["tokens_per_s"],
            "ms/token": pipeline["latency_ms"],
            "bottleneck": "yes" if stage["machine"] == pipeline["bottleneck"] else "",
        }
        for number, pipeline in enumerate(result["pipelines"], start=1)
        for stage in pipeline["stages"]
    ]
