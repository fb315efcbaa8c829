"""Synthetic traces have the published statistics."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.errors import FleetError
from scheduler.simulate.traces import INPUT_TOKENS, OUTPUT_TOKENS, poisson


def test_synthetic_traces_have_the_published_means():
    trace = poisson(7, 20_000)
    assert mean(a.input_tokens for a in trace) == pytest.approx(763.1, rel=0.02)
    assert mean(a.output_tokens for a in trace) == pytest.approx(232.4, rel=0.02)
    assert len(trace) / trace[-1].at_s == pytest.approx(4.76, rel=0.05)


def test_independent_times_make_no_busy_minute():
    def busiest_minute(trace):
        counts: dict[int, int] = {}
        for a in trace:
            counts[int(a.at_s / 60)] = counts.get(int(a.at_s / 60), 0) + 1
        return max(counts.values()) / (len(trace) / trace[-1].at_s * 60)

    assert busiest_minute(poisson(1, 16_657)) < 1.25


@given(st.integers(0, 2**32), st.floats(0.1, 100.0))
@settings(max_examples=30)
def test_synthetic_traces_are_ordered_seeded_and_within_their_ranges(seed, rate):
    trace = poisson(seed, 50, rate)
    assert trace == poisson(seed, 50, rate)
    assert all(a.at_s <= b.at_s for a, b in pairwise(trace))
    for a in trace:
        assert INPUT_TOKENS[0] <= a.input_tokens <= INPUT_TOKENS[-1]
        assert OUTPUT_TOKENS[0] <= a.output_tokens <= OUTPUT_TOKENS[-1]


def test_a_rate_that_is_none_is_refused():
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(FleetError):
            poisson(0, 5, rate)
