"""Which requests arrive when, by the built-in trace or by a file?

A file is `{"schema": "trace/1", "requests": [[at_s, input_tokens, output_tokens], …]}`, in order of
arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.protocol.errors import UsageError
from matcher.planning.plan_file import read_document
from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop, Work

#: Requests whose lengths are drawn from while caches are kept full.
LENGTHS = 2000
MOST_TOKENS = 2**20
MOST_REQUESTS = 10**6
LATEST_S = 1e9


def built_in(requests_per_s: float | None, until_s: float, seed: int = 0) -> Work:
    """Conversations as of the Azure trace, at this rate until then; without a rate as many as keep
    KV caches filled. Raises UsageError for a rate that is none.
    """
    if requests_per_s is None:
        return ClosedLoop(poisson(seed, LENGTHS))
    try:
        expected = requests_per_s * until_s
        if not 0 < expected <= MOST_REQUESTS:
            raise FleetError(f"{expected:g} requests in {until_s:g} s, at most {MOST_REQUESTS}")
        many = math.ceil(expected + 5 * math.sqrt(expected) + 5)
        return poisson(seed, many, requests_per_s)
    except FleetError as error:
        raise UsageError("no such rate of requests", why=str(error)) from None


def read_trace(path: Path) -> Sequence[Arrival]:
    """The requests in a file. Raises UsageError naming the one that is wrong."""
    return trace_of(read_document(path), str(path))


def trace_of(content: Any, name: str) -> Sequence[Arrival]:
    """The requests of a document. Raises UsageError naming the one that is wrong."""
    try:
        if not isinstance(content, dict) or content.get("schema") != "trace/1":
            raise ValueError("its schema is not trace/1")
        listed = content.get("requests")
        if not isinstance(listed, list) or not 0 < len(listed) <= MOST_REQUESTS:
            raise ValueError(f"'requests' is no list of 1 to {MOST_REQUESTS} requests")
        found, now_s = list[Arrival](), 0.0
        for i, entry in enumerate(listed):
            arrival = _arrival(entry, f"requests[{i}]")
            if arrival.at_s < now_s:
                raise ValueError(f"requests[{i}] comes before the one above it")
            now_s = arrival.at_s
            found.append(arrival)
        return found
    except ValueError as error:
        raise UsageError(f"{name} is not a trace", why=str(error)) from None


def _arrival(entry: Any, name: str) -> Arrival:
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError(f"{name} is not [at_s, input_tokens, output_tokens]")
    at_s, *tokens = entry
    is_time = isinstance(at_s, int | float) and not isinstance(at_s, bool)
    if not is_time or not 0 <= at_s <= LATEST_S:
        raise ValueError(f"{name}: at_s is no number from 0 to {LATEST_S:g}")
    for many in tokens:
        if isinstance(many, bool) or not isinstance(many, int) or not 1 <= many <= MOST_TOKENS:
            raise ValueError(f"{name}: tokens are whole numbers from 1 to {MOST_TOKENS}")
    return Arrival(float(at_s), *tokens)
