"""Benchmarks read the published trace strictly."""

from __future__ import annotations

import pytest

from benchmarks.scheduler.measure.traces import read_trace
from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival

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
