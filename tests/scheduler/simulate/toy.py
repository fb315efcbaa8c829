"""Small worlds whose times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import (
    Coordinator,
    Fleet,
    Link,
    Links,
    Machine,
    ModelShape,
    Placement,
    Shard,
)
from scheduler.fleet.profile import Curve, Profile

#: 1,000 bytes a token between machines, 10 to and from the coordinator.
MODEL = ModelShape(
    layers=4,
    layer_bytes=1,
    embedding_bytes=0,
    head_bytes=0,
    tied=False,
    hidden=1,
    flops_per_layer_per_token=1.0,
    activation_bytes_per_token=1000,
    token_bytes=10,
)


def machine(
    machine_id: str,
    *,
    decode_ms: float = 10.0,
    prefill_ms: float = 0.1,
    kv_tokens: int = 100_000,
    region: str = "",
    max_decodes: int = 1000,
) -> Machine:
    """Each layer takes `prefill_ms` per prompt token and `decode_ms` for any number of decode
    steps.
    """
    return Machine(
        machine_id,
        1,
        1.0,
        1.0,
        region,
        profile=Profile(
            Curve((0.0, 10_000.0), (0.0, 10_000.0 * prefill_ms)),
            Curve((0.0, 1.0, 10_000.0), (0.0, decode_ms, decode_ms)),
            (kv_tokens,) * 4,
            (1,) * 4,
            (max_decodes,) * 4,
        ),
    )


def fleet_of(
    *machines: Machine,
    latency_ms: float = 5.0,
    mbit_s: float | None = 8.0,
    pairs: Mapping[tuple[str, str], Link] | None = None,
) -> Fleet:
    """All links alike: at 8 Mbit/s a token takes 1 ms between machines and 0.01 ms to or from the
    coordinator.
    """
    regions = {("", ""): Link(latency_ms, mbit_s)}
    return Fleet(machines, Links(pairs or {}, regions), Coordinator())


def placed(**layers: tuple[int, int]) -> Placement:
    """Shards by machine id."""
    return tuple(Shard(machine_id, LayerRange(*span)) for machine_id, span in layers.items())
