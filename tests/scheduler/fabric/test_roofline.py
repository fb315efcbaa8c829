"""Iteration times grow with work, shrink with GPUs, and hold the ratios that were measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fabric.replica import replica
from scheduler.fabric.roofline import operators
from scheduler.fabric.world import Demand, Efficiency, GpuType
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import ModelShape
from scheduler.fleet.workload import Workload
from tests.scheduler.fabric.worlds import demand, gpu, small_shape

PEAK = Efficiency(1, 1, 1, kernel_us=0, all_reduce_us=0, step_ms=0)


def step(decodes: float, prompt_tokens: float, of: Demand | None = None, tensor: int = 1) -> float:
    found = operators(gpu(), tensor, of or demand(), PEAK)
    return float(
        found.iteration_ms(np.asarray(decodes), np.asarray(prompt_tokens), np.asarray(600.0), 500.0)
    )


def test_one_decode_step_reads_every_weight_and_its_kv_once() -> None:
    shape = small_shape()
    read = shape.layers * shape.layer_bytes + shape.head_bytes
    kv = shape.layers * 600 * shape.kv_bytes_per_token_per_layer
    activations = shape.layers * 8 * shape.activation_bytes_per_token
    assert step(1, 0) == pytest.approx((read + kv + activations) / 1e9)  # ms at 1000 GB/s


def test_a_long_prompt_costs_its_flops() -> None:
    shape = small_shape()
    linear = 500 * shape.layers * shape.flops_per_layer_per_token
    attention = 500 * 250 * shape.layers * shape.attention_flops_per_context_token
    head = shape.head_bytes / 1e9
    assert step(0, 500) == pytest.approx((linear + attention) / 1e11 + head)


def test_tensor_parallelism_divides_reads_and_pays_all_reduces() -> None:
    alone, split = step(1, 0), step(1, 0, tensor=4)
    shape = small_shape()
    exchanged = shape.layers * 2 * 2 * 3 / 4 * shape.activation_bytes_per_token / 100e6
    activations = shape.layers * 8 * shape.activation_bytes_per_token / 1e9
    assert split == pytest.approx((alone - activations) / 4 + activations + exchanged)


def test_kv_is_not_divided_beyond_its_heads() -> None:
    two_heads = demand(kv_heads=2)
    at_4 = operators(gpu(), 4, two_heads, PEAK).attention_read
    assert at_4 == operators(gpu(), 2, two_heads, PEAK).attention_read
    assert at_4 == 2 * operators(gpu(), 4, demand(), PEAK).attention_read


def test_experts_are_read_as_far_as_tokens_visit_them() -> None:
    """W16: an idle mixture of experts still reads the experts of one token, a full batch reads all
    of them.
    """
    shape = replace(small_shape(), experts=8, experts_per_token=2, expert_bytes=28 * 2**20)
    moe = demand(shape=shape)
    dense = step(1, 0)
    one, many = step(1, 0, moe), step(200, 0, moe)
    visited = shape.layers * 28 * 2**20 * 8 * (1 - (6 / 8)) / 1e9
    rest = dense - shape.layers * 28 * 2**20 * 8 / 1e9
    assert one == pytest.approx(rest + visited)
    assert many > step(1, 0)


@given(st.floats(0, 300), st.floats(0, 3000), st.floats(0, 50), st.floats(0, 500))
def test_more_work_never_takes_less_time(
    decodes: float, prompt: float, more_decodes: float, more_prompt: float
) -> None:
    assert step(decodes, prompt) <= step(decodes + more_decodes, prompt + more_prompt) + 1e-9


@pytest.mark.parametrize(("inputs", "outputs"), [(256, 128), (512, 256), (1024, 256), (512, 512)])
def test_rtx_3090_takes_about_three_times_as_long_as_h100(inputs: int, outputs: int) -> None:
    """§5, figure 6: 3.2–3.4 times, measured and simulated. The paper does not name the model; 8B in
    16 bits fits both.
    """
    shape = ModelShape.dense(
        layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=128256, tied=False
    )
    asked = Demand("8b", shape, Workload(inputs, outputs, 1e-6))
    times = []
    for card in (
        GpuType("H100", 1, 80 * 10**9, 989, 3350),
        GpuType("RTX3090", 1, 24 * 10**9, 71, 936),
    ):
        alone = replica(card, 1, asked, Efficiency())
        assert alone is not None
        times.append(float(alone.times(np.array([1e-6])).total_ms[0]))
    assert 2.8 <= times[1] / times[0] <= 3.6


@pytest.mark.parametrize(
    "absurd",
    [
        {"compute": 0.0},
        {"bandwidth": 1.5},
        {"step_ms": -1.0},
        {"token_budget": 0},
        {"token_budget": math.nan},
        {"max_sequences": 2.5},
        {"kernels_per_layer": True},
    ],
)
def test_absurd_efficiency_is_refused(absurd: dict[str, float]) -> None:
    with pytest.raises(FleetError, match=next(iter(absurd))):
        Efficiency(**absurd)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "absurd",
    [
        {"count": 2.0},
        {"count": -1},
        {"count": 2**20},
        {"memory_bytes": 0},
        {"memory_bytes": 8e9},
        {"gpus_per_node": True},
        {"gpus_per_node": 0},
        {"tflops": math.nan},
        {"interconnect_gb_s": "25"},
    ],
)
def test_absurd_gpu_type_is_refused(absurd: dict[str, Any]) -> None:
    with pytest.raises(FleetError, match=f"GPU type big: {next(iter(absurd))} is"):
        replace(gpu(), **absurd)
