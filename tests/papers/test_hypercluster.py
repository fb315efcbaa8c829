"""HyperCluster's Algorithm 1 (memory-weighted layer partitioning), line by line against
`scheduler.methods.baselines`.

Water-filling by hand, which looks at speed and capacity as this does not, is in
tests/papers/test_parallax.py and tests/scheduler/fleet/test_water_fill.py.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, Machine
from scheduler.fleet.validate import validate_pipeline
from scheduler.fleet.water_fill import water_fill
from scheduler.methods.baselines import memory_proportional
from tests.scheduler.worlds import holding, toy_model

GIB = 2**30


def of_memory(*gib: float) -> list[Machine]:
    return [Machine(f"n{i}", int(g * GIB), 1.0, 1.0) for i, g in enumerate(gib)]


def printed(layers: int, memories: list[int]) -> list[tuple[int, int]]:
    """Lines 1–13 as printed: inclusive layer windows of nodes already sorted by memory, in exact
    arithmetic.
    """
    total, current, windows = sum(memories), 0, list[tuple[int, int]]()
    for i, memory in enumerate(memories, start=1):
        fraction = Fraction(memory, total)
        if i == len(memories):
            count = layers - current
        else:
            count = max(1, math.floor(fraction * layers))
        windows.append((current, current + count - 1))
        current += count
    return windows


def test_the_three_node_24_layer_ring_of_listing_1() -> None:
    """Node 0 [L0-7], Node 1 [L8-15], Node 2 [L16-23]: three equal nodes."""
    cut = memory_proportional(24, of_memory(8, 8, 8))
    assert [(s.layers.start, s.layers.end - 1) for s in cut] == [(0, 7), (8, 15), (16, 23)]
    assert [s.machine_id for s in cut] == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("model", "layers", "expected"),
    [("Llama-3.2-1B", 16, (8, 4, 4)), ("Qwen3-0.6B", 28, (14, 7, 7))],
)
def test_the_paper_s_own_machines(model: str, layers: int, expected: tuple[int, ...]) -> None:
    """Evaluation: a 16 GB MacBook Air, an 8 GB Mac Mini and an 8 GB laptop; f = (1/2, 1/4, 1/4)."""
    cut = memory_proportional(layers, of_memory(8, 16, 8))
    assert tuple(len(s.layers) for s in cut) == expected
    assert [s.machine_id for s in cut] == ["n1", "n0", "n2"]  # rank 0 has most memory


def test_every_step_by_hand() -> None:
    """L = 10, m = (7, 2, 1): f₁L = 7, f₂L = 2, the last takes 10 − 9 = 1; with m = (6, 3, 2) floors
    leave it 10 − 5 − 2 = 3.
    """
    assert [len(s.layers) for s in memory_proportional(10, of_memory(7, 2, 1))] == [7, 2, 1]
    assert [len(s.layers) for s in memory_proportional(10, of_memory(6, 3, 2))] == [5, 2, 3]


def test_line_8_gives_a_tiny_node_one_layer() -> None:
    """max(1, ⌊f L⌋): ⌊1/101 × 10⌋ = 0 becomes 1."""
    assert [len(s.layers) for s in memory_proportional(10, of_memory(99, 1, 1))] == [9 - 1, 1, 1]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(1, 90))
def test_equal_to_the_printed_lines_wherever_those_are_legal(
    memories: list[int], layers: int
) -> None:
    ranked = sorted(memories, reverse=True)
    machines = [Machine(f"n{i}", memory, 1.0, 1.0) for i, memory in enumerate(ranked)]
    if len(machines) > layers:
        with pytest.raises(PlanError):
            memory_proportional(layers, machines)
        return
    windows = printed(layers, ranked)
    cut = memory_proportional(layers, machines)
    if windows[-1][1] >= windows[-1][0]:  # the printed lines leave something for the last node
        assert [(s.layers.start, s.layers.end - 1) for s in cut] == windows
    assert all(len(s.layers) >= 1 for s in cut) and cut[-1].layers.end == layers


def test_memory_alone_overfills_where_water_filling_does_not() -> None:
    """Neither capacity nor speed is looked at: 12 layers as 6 | 6 though one machine is four times
    as fast.
    """
    fast, slow = holding("fast", 10, tflops=4.0), holding("slow", 10, tflops=1.0)
    by_memory = memory_proportional(12, [fast, slow])
    assert [len(s.layers) for s in by_memory] == [6, 6]
    assert water_fill(12, (10, 10), (4.0, 1.0)) == (10, 2)
    lopsided = [holding("a", 9), Machine("b", 900, 1.0, 1e6, weight_fraction=0.2, kv_fraction=0.0)]
    cut = memory_proportional(8, lopsided)  # b keeps most of its memory for other things
    with pytest.raises(PlanError) as refused:
        validate_pipeline(cut, Fleet(tuple(lopsided)), toy_model(8))
    assert refused.value.problem == "over-capacity"
