"""The one capacity formula and the roofline behave as planner, splitter and router rely on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import (
    Position,
    capacities,
    capacity,
    head_ms,
    hop_ms,
    kv_tokens,
    position_of,
    roofline_ms_per_layer,
    stage_ms,
    tau_ms_per_layer,
    weight_bytes,
)
from scheduler.fleet.fleet import Link, Links, Machine, ModelShape
from tests.scheduler.worlds import holding, models, toy_model


def test_ends_are_charged_by_position() -> None:
    machine, model = holding("a", 10), toy_model(20, embedding_bytes=150, head_bytes=250)
    assert [capacity(machine, model, position) for position in Position] == [10, 8, 7, 6]


def test_tied_table_is_charged_at_each_end_but_once_alone() -> None:
    machine, model = holding("a", 10), toy_model(20, embedding_bytes=250, tied=True)
    assert capacities(machine, model) == (10, 7, 7, 7)


def test_w13_single_stage_pays_the_head_too() -> None:
    model = toy_model(64, embedding_bytes=100)
    assert capacity(holding("a", 64), model, Position.BOTH) == 62


def test_w8_machine_too_small_for_a_layer_has_capacity_zero() -> None:
    machine = Machine("a", 99, 1.0, 1.0, weight_fraction=1.0, kv_fraction=0.0)
    assert capacities(machine, toy_model(4, 500)) == (0, 0, 0, 0)


def test_weights_leave_room_for_kv_and_overhead() -> None:
    machine = Machine("a", 1000, 1.0, 1.0, weight_fraction=0.9, kv_fraction=0.3, overhead_bytes=100)
    assert weight_bytes(machine) == 600


@given(models(), st.integers(0, 3000), st.integers(0, 3000))
def test_more_memory_never_lowers_a_capacity(model: ModelShape, a: int, b: int) -> None:
    small, large = (
        Machine(str(m), m, 1.0, 1.0, weight_fraction=1.0, kv_fraction=0.0) for m in sorted((a, b))
    )
    less, more = capacities(small, model), capacities(large, model)
    assert all(x <= y for x, y in zip(less, more, strict=True))
    assert less.both <= min(less.first, less.last) <= less.plain <= model.layers
    assert less == tuple(capacity(small, model, position) for position in Position)


def test_position_follows_the_ends_of_the_range() -> None:
    model = toy_model(8)
    assert position_of(LayerRange(0, 8), model) is Position.BOTH
    assert position_of(LayerRange(0, 7), model) is Position.FIRST
    assert position_of(LayerRange(1, 8), model) is Position.LAST
    assert position_of(LayerRange(1, 7), model) is Position.PLAIN


def test_w6_kv_room_shrinks_with_layers_held() -> None:
    model = ModelShape(10, 100, 0, 0, False, 8, 1e9, kv_bytes_per_token_per_layer=4)
    machine = Machine("a", 4000, 1.0, 1.0, weight_fraction=0.5, kv_fraction=0.25)
    assert kv_tokens(machine, model, 1) == 250
    assert kv_tokens(machine, model, 10) == 25


def test_roofline_is_the_larger_of_compute_and_memory_time() -> None:
    model = ModelShape(10, 10**9, 0, 0, False, 8, 1e12, kv_bytes_per_token_per_layer=1000)
    compute_bound = Machine("a", 1, tflops=1.0, bandwidth_gb_s=1000.0)
    memory_bound = Machine("b", 1, tflops=1000.0, bandwidth_gb_s=1.0)
    assert roofline_ms_per_layer(compute_bound, model, context_tokens=1000) == pytest.approx(1000)
    assert roofline_ms_per_layer(memory_bound, model, context_tokens=1000) == pytest.approx(1001)
    assert roofline_ms_per_layer(compute_bound, model, batch=3) == pytest.approx(3000)


def test_measured_tau_replaces_the_roofline_and_scales_it_for_other_batches() -> None:
    model = toy_model(10)
    machine = holding("a", 10, tau_ms_per_layer=2.5, tau_batch=2)
    assert tau_ms_per_layer(machine, model, batch=2) == pytest.approx(2.5)
    assert tau_ms_per_layer(machine, model, batch=4) == pytest.approx(5.0)


def test_w4_stage_time_is_layers_times_tau_and_the_head_only_at_the_end() -> None:
    model = ModelShape(10, 100, 0, 0, False, 8, 1e9, head_flops_per_token=3e9)
    machine = holding("a", 10)
    assert stage_ms(machine, model, LayerRange(2, 6)) == pytest.approx(4.0)
    assert head_ms(machine, model) == pytest.approx(3.0)
    assert stage_ms(machine, model, LayerRange(6, 10)) == pytest.approx(7.0)


def test_hop_counts_activation_bytes_where_bandwidth_is_known() -> None:
    model = ModelShape(4, 100, 0, 0, False, 8, 1e9, activation_bytes_per_token=1000)
    a, b = holding("a", 1), holding("b", 1)
    links = Links({("a", "b"): Link(5.0, bandwidth_mbit_s=8.0)})
    assert hop_ms(links, a, b, model, tokens=10) == pytest.approx(5.0 + 10.0)
