"""T(B) from steps as they happen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batching.times import StepTimes, bucket_of


def test_nothing_is_known_at_first() -> None:
    times = StepTimes()
    assert not times
    assert times.seconds(4) == 0.0


def test_buckets_widen_with_the_size() -> None:
    assert [bucket_of(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 33, 48)] == [
        1,
        2,
        3,
        4,
        6,
        6,
        8,
        8,
        12,
        12,
        16,
        16,
        24,
        24,
        32,
        48,
        48,
    ]


def test_one_size_stands_for_others_by_halves() -> None:
    times = StepTimes()
    times.observe(8, 0.04)
    assert times.seconds(8) == pytest.approx(0.04)
    assert times.seconds(16) == pytest.approx(0.06)
    assert times.seconds(1) == pytest.approx(0.0225)


def test_between_and_beyond_measured_sizes_a_line_is_followed() -> None:
    times = StepTimes()
    times.observe(4, 0.04)
    times.observe(16, 0.08)
    assert times.seconds(2) == pytest.approx(0.04)
    assert times.seconds(10) == pytest.approx(0.06)
    assert times.seconds(28) == pytest.approx(0.12)
    assert times.by_rows() == {4: 0.04, 16: 0.08}


def test_a_step_that_was_held_up_once_is_forgotten_soon() -> None:
    times = StepTimes()
    for seconds in (0.04, 0.4, *[0.04] * 30):
        times.observe(4, seconds)
    assert times.seconds(4) == pytest.approx(0.04, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=30))
def test_more_rows_never_take_less(steps: list[tuple[int, float]]) -> None:
    times = StepTimes()
    for rows, seconds in steps:
        times.observe(rows, seconds)
    found = [times.seconds(rows) for rows in range(1, 400, 7)]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(found))
    assert found[0] > 0


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=30))
def test_a_row_among_more_is_never_dearer(steps: list[tuple[int, float]]) -> None:
    times = StepTimes()
    for rows, seconds in steps:
        times.observe(rows, seconds)
    for found in (times.seconds, times.hoped):
        a_row = [found(rows) / rows for rows in range(1, 400, 7)]
        assert all(a >= b * (1 - 1e-9) for a, b in pairwise(a_row))


def test_small_steps_hear_from_large_ones_that_a_machine_has_become_slow() -> None:
    """Measured when nobody else computed, and not run since: a batch was cut into ever smaller ones
    for their sake.
    """
    times = StepTimes()
    times.observe(16, 0.02)
    times.observe(128, 0.256)
    assert times.seconds(16) == pytest.approx(0.032)


def test_a_size_that_hardly_ran_is_believed_to_be_slow_by_as_often_as_it_did() -> None:
    """Three microbatches of 160 rows were never tried again after a few such steps that ran while
    the machine was opening requests.
    """
    times = StepTimes()
    times.observe(160, 0.48)
    for _ in range(8):
        times.observe(240, 0.6)
    assert times.hoped(160) == pytest.approx(0.4 + 0.08 / 8)
    assert times.seconds(160) == pytest.approx(0.48)
    for _ in range(7):
        assert times.hoped(160) < 0.48
        times.observe(160, 0.48)
    assert times.hoped(160) == pytest.approx(0.48)


def test_what_known_sizes_say_of_one_that_hardly_ran_is_a_line() -> None:
    times = StepTimes()
    for rows, seconds in ((16, 0.08), (32, 0.12)):
        for _ in range(8):
            times.observe(rows, seconds)
    times.observe(4, 0.1)  # less than 0.05 cannot be hoped for
    times.observe(24, 0.14)
    assert times.hoped(4) == pytest.approx(0.05 + 0.05 / 8)
    assert times.hoped(24) == pytest.approx(0.1 + 0.04 / 8)


def test_a_large_size_that_hardly_ran_is_believed_since_nothing_larger_is_known() -> None:
    times = StepTimes()
    for _ in range(8):
        times.observe(16, 0.08)
    times.observe(32, 0.5)
    assert times.hoped(32) == times.seconds(32) == pytest.approx(0.5)


def test_what_cannot_be_is_an_error() -> None:
    for rows, seconds in ((0, 1.0), (1, -1.0)):
        with pytest.raises(ValueError):
            StepTimes().observe(rows, seconds)


def test_a_size_that_a_neighbour_held_up_is_tried_again() -> None:
    """Measured while somebody else computed, eight rows look slower than sixteen are.

    What is not run is not measured anew.
    """
    times = StepTimes()
    for rows in (1, 8):
        for _ in range(4):
            times.observe(rows, {1: 0.02, 8: 0.2}[rows])
    for _ in range(40):
        times.observe(16, 0.06)
    assert times.seconds(8) < 0.05
    assert times.by_rows().keys() == {1, 16}


def test_sizes_that_run_in_turn_keep_what_was_measured() -> None:
    times = StepTimes()
    for _ in range(40):
        times.observe(8, 0.07)
        times.observe(16, 0.06)
    assert times.by_rows() == {8: pytest.approx(0.07), 16: pytest.approx(0.06)}


def test_smaller_steps_than_were_seen_are_hoped_to_take_as_little_as_can_be() -> None:
    times = StepTimes()
    assert times.hoped(3) == 0.0
    times.observe(16, 0.08)
    assert times.hoped(4) == pytest.approx(0.02)
    times.observe(32, 0.12)  # a line with a fixed part
    assert times.hoped(4) == pytest.approx(0.05)
    assert times.hoped(16) == times.seconds(16) and times.hoped(24) == times.seconds(24)
    times.observe(4, 0.06)  # now it is known
    assert times.hoped(4) == pytest.approx(0.06)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1)), min_size=1), st.integers(1, 300)
)
def test_hope_is_never_above_fear(seen: list[tuple[int, float]], rows: int) -> None:
    times = StepTimes()
    for size, seconds in seen:
        times.observe(size, seconds)
    assert 0 < times.hoped(rows) <= times.seconds(rows) * (1 + 1e-9)
