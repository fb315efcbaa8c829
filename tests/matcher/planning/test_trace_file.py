"""A trace is read whole or refused by the request that is wrong, whatever a file holds."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol.errors import UsageError
from matcher.planning.trace_file import MOST_TOKENS, built_in, read_trace, trace_of
from scheduler.fleet.workload import Arrival
from scheduler.simulate.work import ClosedLoop

GOOD = {"schema": "trace/1", "requests": [[0, 10, 1], [0.5, 700, 200]]}


def test_a_file_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(GOOD))
    assert read_trace(path) == [Arrival(0.0, 10, 1), Arrival(0.5, 700, 200)]


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "no list of 1 to"),
        ("many", "no list of 1 to"),
        ([[0, 1]], "requests[0] is not"),
        ([[0, 1, 1], [-1, 1, 1]], "requests[1]: at_s"),
        ([[math.nan, 1, 1]], "at_s"),
        ([[True, 1, 1]], "at_s"),
        ([[1, 1, 1], [0, 1, 1]], "requests[1] comes before"),
        ([[0, 0, 1]], "tokens"),
        ([[0, 1.0, 1]], "tokens"),
        ([[0, 1, MOST_TOKENS + 1]], "tokens"),
        ([[0, 1, "x" * 10**6]], "tokens"),
    ],
)
def test_what_is_no_request_is_named_and_not_at_length(requests: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        trace_of({"schema": "trace/1", "requests": requests}, "it")
    assert words in caught.value.why
    assert len(caught.value.why) < 200


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@given(_JSON)
def test_any_document_is_a_trace_or_refused(content: Any) -> None:
    for document in (content, {"schema": "trace/1", "requests": content}):
        try:
            found = trace_of(document, "it")
        except UsageError:
            continue
        assert all(later.at_s >= one.at_s for one, later in pairwise(found))


def test_the_built_in_trace_comes_at_a_rate_until_the_end_or_keeps_caches_filled() -> None:
    found = built_in(2.0, 300.0)
    assert not isinstance(found, ClosedLoop)
    assert found[-1].at_s >= 300.0
    assert sum(arrival.at_s < 300.0 for arrival in found) == pytest.approx(600, abs=100)
    assert built_in(2.0, 300.0) == found
    assert isinstance(built_in(None, 300.0), ClosedLoop)
    for rate in (0.0, -1.0, math.nan, math.inf, 1e9):
        with pytest.raises(UsageError):
            built_in(rate, 300.0)
