"""How fast do answers come? Tokens a second and time to the first token over the last minutes.

A page may look back over the last quarter of an hour, an hour or a day.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from client.dashboard.views.common import RequestLine

SPANS_MS = {"15m": 15 * 60_000, "1h": 3_600_000, "24h": 86_400_000}
SPAN = "15m"
SLICES = 60


@dataclass(frozen=True)
class Activity:
    """Points are (end of the slice in ms, value); None where nothing was measured."""

    span_ms: int
    tokens_per_s: tuple[tuple[int, float | None], ...]
    first_token_ms: tuple[tuple[int, float | None], ...]
    requests: int
    tokens: int


def activity(lines: Iterable[RequestLine], now_ms: int, span_ms: int = SPANS_MS[SPAN]) -> Activity:
    """A request's tokens count evenly over the time in which they came."""
    width = span_ms // SLICES
    start = now_ms - span_ms
    tokens = [0.0] * SLICES
    waits: list[list[int]] = [[] for _ in range(SLICES)]
    requests = total = 0
    for line in lines:
        if line.took_ms is None or line.at_ms <= start:
            continue
        requests, total = requests + 1, total + line.tokens_out
        began = line.at_ms - line.took_ms + (line.first_token_ms or 0)
        _spread(tokens, line.tokens_out, began - start, line.at_ms - start, width)
        if line.first_token_ms is not None:
            waits[min(SLICES - 1, max(0, (line.at_ms - start - 1) // width))].append(
                line.first_token_ms
            )
    ends = [start + (position + 1) * width for position in range(SLICES)]
    rates = tuple((end, count * 1000 / width) for end, count in zip(ends, tokens, strict=True))
    first = tuple(
        (end, sum(slice_) / len(slice_) if slice_ else None)
        for end, slice_ in zip(ends, waits, strict=True)
    )
    return Activity(span_ms, rates if requests else (), first if requests else (), requests, total)


def _spread(tokens: list[float], count: int, begin: int, end: int, width: int) -> None:
    begin = min(begin, end - 1)
    length = end - begin
    first = max(0, begin // width)
    for position in range(first, min(len(tokens), max(first, (end - 1) // width) + 1)):
        overlap = min(end, (position + 1) * width) - max(begin, position * width)
        tokens[position] += count * max(0, overlap) / length
