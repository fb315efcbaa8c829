"""The simple cuts are as printed and always tile the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Machine
from scheduler.methods.baselines import even_split, memory_proportional


def of_memory(*gib: int) -> list[Machine]:
    return [Machine(f"m{i}", g * 2**30, 1.0, 1.0) for i, g in enumerate(gib)]


def test_algorithm_1_cuts_by_memory_and_the_last_takes_the_rest() -> None:
    cut = memory_proportional(24, of_memory(8, 16, 24))
    assert [(s.machine_id, s.layers.start, s.layers.end) for s in cut] == [
        ("m2", 0, 12),
        ("m1", 12, 20),
        ("m0", 20, 24),
    ]


def test_last_machine_gets_a_layer_even_where_rounding_left_none() -> None:
    assert [len(s.layers) for s in memory_proportional(3, of_memory(100, 1, 1))] == [1, 1, 1]


def test_even_split_gives_the_remainder_to_the_first() -> None:
    assert [len(s.layers) for s in even_split(10, of_memory(1, 1, 1))] == [4, 3, 3]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9), st.integers(0, 40))
def test_cuts_tile_the_model(gib: list[int], more: int) -> None:
    layers = len(gib) + more
    for cut in (memory_proportional(layers, of_memory(*gib)), even_split(layers, of_memory(*gib))):
        assert len(cut) == len(gib)
        cursor = 0
        for stage in cut:
            assert stage.layers.start == cursor
            cursor = stage.layers.end
        assert cursor == layers


@pytest.mark.parametrize("cut", [memory_proportional, even_split])
def test_more_machines_than_layers_is_refused(cut: object) -> None:
    with pytest.raises(PlanError):
        cut(2, of_memory(1, 1, 1))  # type: ignore[operator]
    with pytest.raises(PlanError):
        cut(2, [])  # type: ignore[operator]
