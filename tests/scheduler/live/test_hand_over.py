"""Planned slices go to those who hold most of them, and only between machines that are alike."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import cluster
from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet
from scheduler.live.hand_over import least_moved
from scheduler.live.holdings import overlap
from scheduler.stages.stage_patterns import stage_patterns
from tests.scheduler.worlds import holding, toy_model


def test_places_go_to_those_who_hold_them() -> None:
    fleet, model = cluster("single24")
    held = dict(stage_patterns(fleet, model, most_stages=14).placement)
    turned: dict[str, str] = {}
    for kind in ("A100", "L4", "T4"):
        ids = [m.id for m in fleet.machines if m.kind == kind]
        mixed = ids[:]
        random.Random(0).shuffle(mixed)
        turned |= dict(zip(ids, mixed, strict=True))
    shuffled = {turned[i]: layers for i, layers in held.items()}
    assert least_moved(fleet, model, shuffled, held) == held


def test_a_much_faster_machine_keeps_the_slice_planned_for_it() -> None:
    slow, fast = holding("a", 6), replace(holding("b", 6), tflops=4.0)
    fleet, model = Fleet((slow, fast)), toy_model(6)
    planned = {"a": LayerRange(0, 1), "b": LayerRange(1, 6)}
    held = {"a": LayerRange(1, 6), "b": LayerRange(0, 1)}
    assert least_moved(fleet, model, planned, held) == planned
    alike = Fleet((slow, replace(fast, tflops=slow.tflops)))
    assert least_moved(alike, model, planned, held) == held


def test_who_gets_no_planned_slice_stays_and_the_fixed_stay_out() -> None:
    fleet, model = Fleet(tuple(holding(i, 6) for i in "abc")), toy_model(6)
    held = {"a": LayerRange(0, 3), "b": LayerRange(3, 6), "c": LayerRange(2, 4)}
    planned = {"b": LayerRange(0, 6)}
    found = least_moved(fleet, model, planned, held, fixed={"c"})
    assert found["c"] == held["c"]
    assert LayerRange(0, 6) in found.values() and set(found) == {"a", "b", "c"}


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.permutations(range(4)))
def test_no_other_exchange_between_equals_loads_less(starts: list[int], order: list[int]) -> None:
    fleet, model = Fleet(tuple(holding(i, 6) for i in "abcd")), toy_model(6)
    held = {i: LayerRange(s, s + 3) for i, s in zip("abcd", starts, strict=True)}
    planned = {"abcd"[at]: LayerRange(n, n + 2) for n, at in enumerate(order)}

    def kept(found: dict[str, LayerRange]) -> int:
        return sum(overlap(held[i], layers) for i, layers in found.items())

    best = max(
        kept(dict(zip("abcd", slices, strict=True))) for slices in permutations(planned.values())
    )
    assert kept(least_moved(fleet, model, planned, held)) == best
