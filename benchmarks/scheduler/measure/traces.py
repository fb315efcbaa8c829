"""Which requests does the simulator serve? Those of a published trace, where it is at hand."""

from __future__ import annotations

import csv
import math

from benchmarks.scheduler.worlds import SHARED
from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival
from scheduler.simulate.traces import poisson

PUBLISHED = SHARED / "azure_conversation.csv"


def lengths() -> list[Arrival]:
    """Request lengths of the published trace, else of a synthetic one with its statistics."""
    if PUBLISHED.exists():
        return read_trace(PUBLISHED.read_text())
    return poisson(0, 16_657)


def reservation() -> str:
    """What a comparison with other systems' figures has to say of `lengths`, "" if nothing."""
    return "" if PUBLISHED.exists() else "lengths are synthetic: the published trace is not at hand"


def read_trace(text: str) -> list[Arrival]:
    """Requests of a CSV text with columns arrival_s, input_tokens and output_tokens, in order of
    arrival.

    Raises FleetError with the line of a missing column, a wrong number or a time that goes back.
    """
    rows = csv.reader(text.splitlines())
    head = [name.strip() for name in next(rows, [])]
    try:
        at, given, made = (
            head.index(name) for name in ("arrival_s", "input_tokens", "output_tokens")
        )
    except ValueError:
        raise FleetError(
            f"a trace with columns {', '.join(head) or 'missing'}; "
            "needs arrival_s, input_tokens, output_tokens"
        ) from None
    trace: list[Arrival] = []
    before_s = 0.0
    for row in rows:
        if not row:
            continue
        try:
            arrival = Arrival(float(row[at]), int(row[given]), int(row[made]))
        except (ValueError, IndexError):
            raise FleetError(f"line {rows.line_num} of the trace: {','.join(row)!r}") from None
        if not before_s <= arrival.at_s < math.inf or min(arrival[1:]) < 1:
            raise FleetError(f"line {rows.line_num} of the trace: {arrival} after {before_s} s")
        before_s = arrival.at_s
        trace.append(arrival)
    return trace
