"""Traces: read strictly, scaled exactly, and synthesised with the published statistics."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import FleetError
from scheduler.simulate.traces import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    at_rate,
    bursty,
    poisson,
    read_trace,
    repeated,
    scaled,
)
from scheduler.workload import Arrival

TEXT = "arrival_s,input_tokens,output_tokens\n0.0,374,44\n1.5,879,55\n\n"


def test_a_trace_is_read_by_the_names_of_its_columns():
    assert read_trace(TEXT) == [Arrival(0.0, 374, 44), Arrival(1.5, 879, 55)]
    turned = "output_tokens, arrival_s ,input_tokens,model\n44,0,374,x\n"
    assert read_trace(turned) == [Arrival(0.0, 374, 44)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "columns missing"),
        ("arrival_s,input\n1,2\n", "needs arrival_s"),
        (TEXT + "2.0,x,3\n", "line 5"),
        (TEXT + "2.0,3\n", "line 5"),
        (TEXT + "1.0,3,3\n", "after 1.5 s"),
        (TEXT + "nan,3,3\n", "line 5"),
        (TEXT + "inf,3,3\n", "line 5"),
        (TEXT + "2.0,0,3\n", "line 5"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(text, said):
    with pytest.raises(FleetError, match=said):
        read_trace(text)


def test_the_time_axis_is_scaled_and_nothing_else():
    trace = read_trace(TEXT)
    assert scaled(trace, 3.0) == [Arrival(0.0, 374, 44), Arrival(0.5, 879, 55)]
    assert at_rate(trace, 4.0)[-1].at_s == pytest.approx(0.5)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(FleetError):
            scaled(trace, wrong)
    with pytest.raises(FleetError):
        at_rate(trace[:1], 1.0)


def test_a_repeated_trace_goes_on_without_a_jump_back():
    times = [a.at_s for a in islice(repeated(read_trace(TEXT)), 6)]
    assert times == pytest.approx([0.0, 1.5, 2.25, 3.75, 4.5, 6.0])


@pytest.mark.parametrize("make", [poisson, bursty])
def test_synthetic_traces_have_the_published_means(make):
    trace = make(7, 20_000)
    assert mean(a.input_tokens for a in trace) == pytest.approx(763.1, rel=0.02)
    assert mean(a.output_tokens for a in trace) == pytest.approx(232.4, rel=0.02)
    assert len(trace) / trace[-1].at_s == pytest.approx(4.76, rel=0.05)


def test_bursts_reach_the_asked_peak_and_poisson_does_not():
    def busiest_minute(trace):
        counts: dict[int, int] = {}
        for a in trace:
            counts[int(a.at_s / 60)] = counts.get(int(a.at_s / 60), 0) + 1
        return max(counts.values()) / (len(trace) / trace[-1].at_s * 60)

    assert busiest_minute(poisson(1, 16_657)) < 1.25
    assert 1.35 < busiest_minute(bursty(1, 16_657)) < 1.8
    assert busiest_minute(bursty(1, 16_657, peak_over_mean=10, burst_share=0.05)) > 4


@given(st.integers(0, 2**32), st.floats(0.1, 100.0))
@settings(max_examples=30)
def test_synthetic_traces_are_ordered_seeded_and_within_their_ranges(seed, rate):
    trace = bursty(seed, 50, rate)
    assert trace == bursty(seed, 50, rate)
    assert all(a.at_s <= b.at_s for a, b in pairwise(trace))
    for a in trace:
        assert INPUT_TOKENS[0] <= a.input_tokens <= INPUT_TOKENS[-1]
        assert OUTPUT_TOKENS[0] <= a.output_tokens <= OUTPUT_TOKENS[-1]


def test_impossible_bursts_are_refused():
    for wrong in (
        {"requests_per_s": 0.0},
        {"peak_over_mean": 0.5},
        {"peak_over_mean": 5.0, "burst_share": 0.5},
        {"burst_s": 0.0},
    ):
        with pytest.raises(FleetError):
            bursty(0, 5, **wrong)
    with pytest.raises(FleetError):
        next(repeated([]))
