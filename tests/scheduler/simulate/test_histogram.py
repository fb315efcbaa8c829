"""Percentiles from a fixed number of bins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulate.histogram import GROWTH, Histogram


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=200), st.sampled_from([0.05, 0.5, 0.95]))
def test_percentiles_are_within_a_bin_of_the_exact_ones(durations, share):
    histogram = Histogram()
    for seconds in durations:
        histogram.add(seconds)
    exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
    assert histogram.quantile(share) == pytest.approx(exact, rel=GROWTH)
    assert histogram.summary().mean_s == pytest.approx(sum(durations) / len(durations))
    assert histogram.summary().max_s == max(durations)


def test_nothing_counted_is_zero_everywhere():
    summary = Histogram().summary()
    assert (summary.count, summary.mean_s, summary.p99_s, summary.max_s) == (0, 0, 0, 0)


def test_durations_beyond_the_bins_are_counted_at_the_edges():
    histogram = Histogram()
    for seconds in (0.0, 1e-9, 1e9):
        histogram.add(seconds)
    assert (histogram.count, histogram.max_s) == (3, 1e9)
    assert histogram.quantile(0.3) < 1.01e-5
