"""Absurd machines and links are refused, and ρ is looked up in the promised order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape
from scheduler.fleet.workload import Workload
from tests.scheduler.worlds import holding, links_of, toy_model


@pytest.mark.parametrize(
    "field",
    [
        {"tflops": math.nan},
        {"tflops": 0.0},
        {"tflops": math.inf},
        {"bandwidth_gb_s": -1.0},
        {"memory_bytes": -1},
        {"memory_bytes": 2**70},
        {"weight_fraction": 1.5},
        {"kv_fraction": math.nan},
        {"kv_tokens": -5},
        {"max_concurrent": -1},
        {"tau_ms_per_layer": 0.0},
        {"tau_ms_per_layer": math.nan},
        {"tau_ms_per_layer": math.inf},
        {"tau_batch": 0},
        {"access_ms": -1.0},
        {"id": ""},
    ],
)
def test_absurd_machine_is_refused(field: dict[str, object]) -> None:
    sound: dict[str, object] = {
        "id": "a",
        "memory_bytes": 2**30,
        "tflops": 1.0,
        "bandwidth_gb_s": 1.0,
    }
    Machine(**sound)  # type: ignore[arg-type]
    with pytest.raises(FleetError):
        Machine(**(sound | field))  # type: ignore[arg-type]


def test_machine_listed_twice_is_refused() -> None:
    with pytest.raises(FleetError, match="twice"):
        Fleet((holding("a", 1), holding("a", 2)))


def test_machines_are_kept_in_order_of_id() -> None:
    fleet = Fleet((holding("b", 1), holding("a", 2)))
    assert [machine.id for machine in fleet.machines] == ["a", "b"]
    assert fleet == Fleet((holding("a", 2), holding("b", 1)))


def test_tied_model_with_two_tables_is_refused() -> None:
    with pytest.raises(FleetError, match="tied"):
        toy_model(4, 10, 20, tied=True)


def test_dense_shape_counts_like_the_reference_fleets() -> None:
    shape = ModelShape.dense(
        layers=64,
        hidden=5120,
        intermediate=25600,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        tied=False,
    )
    assert shape.layer_bytes == 975_175_680
    assert shape.embedding_bytes == shape.head_bytes == 1_555_824_640
    assert shape.kv_bytes_per_token_per_layer == 4096
    assert shape.activation_bytes_per_token == 10240


@pytest.mark.parametrize(
    "absurd",
    [
        {"layers": 2.0},
        {"hidden": math.inf},
        {"heads": 0},
        {"head_dim": []},
        {"layer_bytes": 10**30},
        {"bytes_per_parameter": None},
        {"experts": True},
        {"tied": "no"},
    ],
)
def test_dense_shape_of_absurd_numbers_is_refused(absurd: dict[str, Any]) -> None:
    sound = {"layers": 2, "hidden": 8, "intermediate": 16, "heads": 2, "kv_heads": 1, "vocab": 9}
    ModelShape.dense(**sound, tied=False)
    with pytest.raises(FleetError, match=f"{next(iter(absurd))} is"):
        ModelShape.dense(**{**sound, "tied": False, **absurd})


@pytest.mark.parametrize(
    "absurd", [{"input_tokens": 0.5}, {"output_tokens": "9"}, {"requests_per_s": math.inf}]
)
def test_absurd_workload_is_refused(absurd: dict[str, Any]) -> None:
    with pytest.raises(FleetError, match=f"{next(iter(absurd))} is"):
        Workload(**absurd)


def test_rho_prefers_pair_then_reverse_then_region_then_default() -> None:
    a, b = holding("a", 1, region="x", access_ms=1.0), holding("b", 1, region="y", access_ms=2.0)
    assert Links({("a", "b"): Link(7)}, {("x", "y"): Link(30)}, 50).rho_ms(a, b) == 7
    assert Links({("b", "a"): Link(8)}, {("x", "y"): Link(30)}, 50).rho_ms(a, b) == 8
    assert Links({}, {("y", "x"): Link(30)}, 50).rho_ms(a, b) == 33
    assert Links({}, {}, 50).rho_ms(a, b) == 50
    assert Links({}, {}, 50, 8).between(a, b) == Link(50, 8)
    assert Links({("a", "b"): Link(7)}, {}, 50, 8).between(a, b) == Link(7), "its speed is unknown"
    assert Links().rho_ms(a, b) == math.inf
    assert Links().rho_ms(a, a) == 0


def test_pair_known_to_be_cut_off_is_not_rescued_by_default() -> None:
    a, b = holding("a", 1), holding("b", 1)
    links = links_of({("a", "b"): math.inf}, default_ms=5)
    assert links.between(a, b) is None


@pytest.mark.parametrize("latency", [-1.0, math.nan])
def test_absurd_link_is_refused(latency: float) -> None:
    with pytest.raises(FleetError):
        Link(latency)
