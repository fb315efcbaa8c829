"""A tolerance counts once enough honest windows on enough kinds of machines leave it room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.dispute.trace.calibration import LEAST_ROOM, delta_for, tolerance_for
from core.dispute.trace.families import LEAST_DELTA_MICRO
from tests.core.dispute.trace.shadow import (
    LEAST_MACHINES,
    LEAST_WINDOWS,
    Measured,
    in_shadow_because,
)

PARTS = 10**12
MACHINES = ("a", "b", "c")


def test_enough_of_everything_leaves_shadow() -> None:
    assert in_shadow_because(Measured(LEAST_WINDOWS, 4.9e-6, MACHINES), 10**7) == []


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (Measured(LEAST_WINDOWS - 1, 1e-6, MACHINES), "windows"),
        (Measured(LEAST_WINDOWS, 1e-6, ("a", "b", "b")), f"2 of {LEAST_MACHINES}"),
        (Measured(LEAST_WINDOWS, 5.1e-6, MACHINES), "half of T"),
    ],
)
def test_each_lack_alone_keeps_in_shadow(measured: Measured, says: str) -> None:
    (why,) = in_shadow_because(measured, 10**7)
    assert says in why


def test_a_tokens_room_grows_with_what_a_head_can_round() -> None:
    assert delta_for(64, 1.0) == LEAST_DELTA_MICRO
    assert delta_for(640, 1e-3) == LEAST_DELTA_MICRO
    assert delta_for(640, 107.3) == 51_775  # 640^1.5 · 107.3 · 2^-25 nat
    assert delta_for(8192, 1.0) == 22_098


@given(st.floats(1e-9, 1e-1), st.integers(1, 10**11))
def test_tolerance_never_falls_and_always_leaves_room(largest: float, published: int) -> None:
    found = tolerance_for(largest, published)
    assert found >= published
    assert found >= LEAST_ROOM * largest * PARTS * (1 - 1e-12)
    if found != published:
        assert found <= 2.1 * LEAST_ROOM * largest * PARTS + 1, "and not much more than is needed"
