"""How is a world written down: `fleet/1`, `cluster/1`, `gpu_profiles/1` and `placements/1`?

Parsers of documents already read; units are in the keys. The formats are described in
`docs/scheduler.md`. Every mistake is a FleetError that names the entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.protocol.foreign import shown
from core.protocol.types import LayerRange
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import (
    Coordinator,
    Fleet,
    Link,
    Links,
    Machine,
    ModelShape,
    Placement,
    Shard,
    in_layer_order,
)
from scheduler.fleet.profile import Curve, Profile

GIB = 2**30
#: fp16 Tflop/s and GB/s of cards whose profile file gives none.
DATASHEET = {
    "V100": (125.0, 900.0),
    "L4x2": (484.0, 600.0),
    "T4x2": (130.0, 600.0),
    "T4x4": (260.0, 1200.0),
}


def read_fleet(document: Mapping[str, Any], model: str) -> tuple[Fleet, ModelShape]:
    """A `fleet/1` document and one of its models."""
    _schema(document, "fleet/1")
    shapes = _get(document, "models", Mapping)
    if model not in shapes:
        raise FleetError(f"model {model!r} is not in the file; it has {shown(shapes)}")
    columns = list(_get(document, "columns", Sequence))
    machines = []
    for i, row in enumerate(_get(document, "nodes", Sequence)):
        if len(row) != len(columns):
            raise FleetError(f"nodes[{i}] has {len(row)} values for {len(columns)} columns")
        values = dict(zip(columns, row, strict=True))
        machines.append(_fleet_machine(values, f"nodes[{i}]"))
    regions = {
        (a, b): Link(_number(ms, f"region_latency_ms.{a}.{b}"))
        for a, to in _get(document, "region_latency_ms", Mapping).items()
        for b, ms in to.items()
    }
    return Fleet(tuple(machines), Links({}, regions)), _fleet_model(shapes[model], model)


def _fleet_machine(values: Mapping[str, Any], name: str) -> Machine:
    try:
        return Machine(
            str(values["id"]),
            round(_number(values["memory_gib"], f"{name}.memory_gib") * GIB),
            _number(values["tflops_fp16"], f"{name}.tflops_fp16"),
            _number(values["bandwidth_gb_s"], f"{name}.bandwidth_gb_s"),
            str(values.get("region", "")),
            access_ms=_number(values.get("access_ms", 0.0), f"{name}.access_ms"),
            kind=str(values.get("gpu", "")),
        )
    except KeyError as error:
        raise FleetError(f"{name}: {error} is missing") from None


def _fleet_model(values: Mapping[str, Any], name: str) -> ModelShape:
    try:
        table = int(values["embedding_bytes"])
        dense = ModelShape.dense(
            layers=values["layers"],
            hidden=values["hidden"],
            intermediate=values["intermediate"],
            heads=values["heads"],
            kv_heads=values["kv_heads"],
            head_dim=values.get("head_dim"),
            vocab=values["vocab"],
            tied=values.get("tied", False),
            bytes_per_parameter=values.get("param_bytes", 2.0),
            kv_bytes_per_value=values.get("kv_bytes", 2),
            layer_bytes=values["layer_bytes"],
            experts=values.get("experts", 0),
            experts_per_token=values.get("experts_per_token", 0),
            expert_intermediate=values.get("expert_intermediate", 0),
        )
    except KeyError as error:
        raise FleetError(f"models.{name}: {error} is missing") from None
    except TypeError as error:
        raise FleetError(f"models.{name}: {error}") from None
    return replace(dense, embedding_bytes=table, head_bytes=table)


def read_cluster(
    document: Mapping[str, Any],
    profiles: Mapping[str, Any],
    model: str | None = None,
    rates: str | None = None,
) -> tuple[Fleet, ModelShape]:
    """A `cluster/1` document with measured `gpu_profiles/1`.

    ``rates`` names the table of T(k) to use (None: the one made for as many nodes, else T(k) stays
    to be derived).
    """
    _schema(document, "cluster/1")
    _schema(profiles, "gpu_profiles/1")
    model = model or str(_get(document, "model", str))
    measured = _get(profiles, "profiles", Mapping).get(model)
    if measured is None:
        raise FleetError(f"no profile of model {model!r}; there are {shown(profiles['profiles'])}")
    entries = _get(document, "nodes", Sequence)
    many = sum(int(entry.get("count", 1)) for entry in entries)
    machines = []
    for i, entry in enumerate(entries):
        for name in ("id", "gpu", "region"):
            if name not in entry:
                raise FleetError(f"nodes[{i}]: '{name}' is missing")
        if entry["gpu"] not in measured:
            raise FleetError(f"nodes[{i}]: no profile of {entry['gpu']!r} with {model}")
        profile = _profile(measured[entry["gpu"]], rates or f"{many}-node")
        card = _get(profiles, "gpus", Mapping)[entry["gpu"]]
        tflops, bandwidth = DATASHEET.get(entry["gpu"], (0.0, 0.0))
        count = int(entry.get("count", 1))
        for j in range(count):
            machines.append(
                Machine(
                    str(entry["id"]) if count == 1 else f"{entry['id']}.{j}",
                    round(card["vram_gb"] * 1e9),
                    float(card.get("fp16_tflops", tflops)),
                    float(card.get("mem_bw_gb_s", bandwidth)),
                    str(entry["region"]),
                    max_concurrent=2**31,
                    kind=str(entry["gpu"]),
                    profile=profile,
                )
            )
    regions = {
        (link["a"], link["b"]): Link(float(link["latency_ms"]), float(link["mbit_s"]))
        for link in _get(document, "links", Sequence)
    }
    pairs = {
        (a, b): Link(float(latency_ms), float(mbit_s))
        for a, b, mbit_s, latency_ms in document.get("node_links", ())
    }
    at = Coordinator(region=str(_get(document, "coordinator", Mapping).get("region", "")))
    shape = _get(profiles, "models", Mapping)[model]
    return (
        Fleet(tuple(machines), Links(pairs, regions), at),
        ModelShape(
            layers=shape["layers"],
            layer_bytes=round(shape["layer_bytes_planning"]),
            embedding_bytes=0,
            head_bytes=0,
            tied=False,
            hidden=shape["hidden"],
            flops_per_layer_per_token=float(round(shape["layer_bytes_planning"])),
            activation_bytes_per_token=shape["activation_bytes_per_token"],
            token_bytes=shape["token_bytes"],
        ),
    )


def _profile(values: Mapping[str, Any], rates: str) -> Profile:
    table = values.get("planner_tokens_per_s_by_layers", {}).get(rates)
    return Profile(
        Curve.of(values["prefill_ms_per_layer"]),
        Curve.of(values["decode_ms_per_layer"]),
        tuple(values["kv_tokens_by_layers"]),
        tuple(values["max_prefill_requests_per_batch_by_layers"]),
        tuple(values["max_decode_batch_by_layers"]),
        None if table is None else tuple(table),
    )


def read_placement(layers_of: Mapping[str, Sequence[int]], model: ModelShape) -> Placement:
    """Shards from `{machine: [first, end)}`, in layer order. Refuses ranges beyond the model."""
    shards = []
    for machine_id, listed in sorted(layers_of.items()):
        if len(listed) != 2 or not 0 <= listed[0] < listed[1] <= model.layers:
            raise FleetError(f"{machine_id}: layers {list(listed)} of a model of {model.layers}")
        shards.append(Shard(machine_id, LayerRange(int(listed[0]), int(listed[1]))))
    return in_layer_order(shards)


def _schema(document: Mapping[str, Any], expected: str) -> None:
    found = document.get("schema") if isinstance(document, Mapping) else None
    if found != expected:
        raise FleetError(f"schema is {found!r}, expected {expected!r}")


def _get(document: Mapping[str, Any], key: str, kind: type) -> Any:
    value = document.get(key)
    if not isinstance(value, kind):
        raise FleetError(f"'{key}' is {'missing' if value is None else 'of the wrong kind'}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FleetError(f"{name} is {value!r}, not a number")
    return float(value)
