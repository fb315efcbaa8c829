"""Small GPU pools and models that placement tests share."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from scheduler.fabric.world import Demand, GpuType
from scheduler.fleet.fleet import ModelShape
from scheduler.fleet.workload import Workload

GIB = 2**30


def small_shape(layers: int = 8, mib_per_layer: int = 256) -> ModelShape:
    """A toy decoder whose layer weighs that many MiB in 16 bits."""
    return ModelShape(
        layers=layers,
        layer_bytes=mib_per_layer * 2**20,
        embedding_bytes=64 * 2**20,
        head_bytes=64 * 2**20,
        tied=False,
        hidden=2048,
        flops_per_layer_per_token=mib_per_layer * 2.0**20,
        attention_flops_per_context_token=8192.0,
        head_flops_per_token=64 * 2.0**20,
        kv_bytes_per_token_per_layer=4096,
        activation_bytes_per_token=4096,
    )


def demand(
    name: str = "m",
    rate: float = 1.0,
    tokens: tuple[float, float] = (500.0, 100.0),
    shape: ModelShape | None = None,
    **more: float,
) -> Demand:
    return Demand(name, shape or small_shape(), Workload(*tokens, rate), **more)


def scaled(asked: Demand, factor: float) -> Demand:
    """The same model at `factor` times its rate."""
    rate = asked.requests_per_s * factor
    return replace(asked, workload=replace(asked.workload, requests_per_s=rate))


def gpu(
    name: str = "big", count: int = 4, gib: float = 8, speed: float = 1.0, **more: int
) -> GpuType:
    return GpuType(name, count, int(gib * GIB), 100.0 * speed, 1000.0 * speed, 100.0, **more)


@st.composite
def worlds(
    draw: st.DrawFn, most_types: int = 2, most_models: int = 2, most_gpus: int = 4
) -> tuple[list[GpuType], list[Demand]]:
    types = [
        gpu(
            f"g{i}",
            draw(st.integers(0, most_gpus)),
            draw(st.sampled_from([2.0, 4.0, 8.0])),
            draw(st.sampled_from([0.5, 1.0, 3.0])),
            gpus_per_node=draw(st.sampled_from([1, 2, 4])),
        )
        for i in range(draw(st.integers(1, most_types)))
    ]
    demands = [
        demand(
            f"m{i}",
            draw(st.sampled_from([0.05, 1.0, 5.0, 20.0])),
            draw(st.sampled_from([(200.0, 100.0), (1000.0, 30.0), (50.0, 400.0)])),
            small_shape(draw(st.sampled_from([2, 6, 12]))),
            slo_ms=draw(st.sampled_from([300.0, 1000.0, 5000.0])),
        )
        for i in range(draw(st.integers(1, most_models)))
    ]
    return types, demands
