"""What arrives when? Traces from CSV text, and synthetic ones with the statistics of a published trace.

The constants are those of the conversation part of the Azure LLM inference trace (2023, Microsoft, CC-BY-4.0), requests
of 4 to 2,048 prompt and 4 to 1,024 output tokens: means 763.1 and 232.4, 4.76 requests/s, busiest minute 1.5 times the
mean. Lengths are drawn from its percentiles, not from a fitted lognormal: its prompts have two humps, and a lognormal of
the same mean has three times as many of the longest prompts, which costs a pipeline 12 % of its throughput.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from scheduler.errors import FleetError
from scheduler.workload import Arrival

REQUESTS_PER_S = 4.76
PEAK_OVER_MEAN = 1.5
#: Shares of requests, and the tokens that so many stay below.
_SHARES = (0.0, 0.01, *(step / 20 for step in range(1, 20)), 0.99, 1.0)
INPUT_TOKENS = (
    4, 27, 181, 203, 240, 378, 391, 397, 403, 412, 447, 947, 1004, 1029, 1050, 1072, 1094, 1121,
    1161, 1273, 1353, 1912, 2048,
)  # fmt: skip
OUTPUT_TOKENS = (
    4, 14, 52, 68, 80, 87, 92, 97, 104, 115, 133, 157, 181, 217, 383, 394, 397, 407, 415, 429,
    463, 609, 1024,
)  # fmt: skip
#: How far the two go together (correlation of their normal scores).
CORRELATION = 0.325


def read_trace(text: str) -> list[Arrival]:
    """Requests of a CSV text with columns arrival_s, input_tokens and output_tokens, in order of arrival.

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


def scaled(trace: Iterable[Arrival], factor: float) -> list[Arrival]:
    """The same requests `factor` times as fast."""
    if not (math.isfinite(factor) and factor > 0):
        raise FleetError(f"a time axis {factor} times as fast")
    return [Arrival(a.at_s / factor, a.input_tokens, a.output_tokens) for a in trace]


def at_rate(trace: Sequence[Arrival], requests_per_s: float) -> list[Arrival]:
    """The same requests with a time axis stretched to so many a second on average."""
    if len(trace) < 2 or trace[-1].at_s <= 0:
        raise FleetError(f"a trace of {len(trace)} requests has no rate to scale")
    return scaled(trace, requests_per_s / (len(trace) / trace[-1].at_s))


def repeated(trace: Sequence[Arrival]) -> Iterator[Arrival]:
    """The trace again and again, without end; one mean gap between the last request and the first."""
    if not trace or trace[-1].at_s <= 0:
        raise FleetError("a trace without length cannot be repeated")
    length_s = trace[-1].at_s * (1 + 1 / len(trace))
    start_s = 0.0
    while True:
        for a in trace:
            yield Arrival(start_s + a.at_s, a.input_tokens, a.output_tokens)
        start_s += length_s


def lengths(draw: random.Random) -> tuple[int, int]:
    """Prompt and output tokens of one request, each by its percentiles, joined by a Gaussian copula."""
    a = draw.gauss(0.0, 1.0)
    b = CORRELATION * a + math.sqrt(1 - CORRELATION**2) * draw.gauss(0.0, 1.0)
    return _below(a, INPUT_TOKENS), _below(b, OUTPUT_TOKENS)


def _below(score: float, tokens: tuple[int, ...]) -> int:
    share = (1 + math.erf(score / math.sqrt(2))) / 2
    right = min(max(1, bisect_left(_SHARES, share)), len(_SHARES) - 1)
    left = right - 1
    along = (share - _SHARES[left]) / (_SHARES[right] - _SHARES[left])
    return round(tokens[left] + along * (tokens[right] - tokens[left]))


def poisson(seed: int, requests: int, requests_per_s: float = REQUESTS_PER_S) -> list[Arrival]:
    """So many requests at independent times."""
    return list(islice(_bursts(seed, requests_per_s, 1.0, 1.0, 1.0), requests))


def bursty(
    seed: int,
    requests: int,
    requests_per_s: float = REQUESTS_PER_S,
    peak_over_mean: float = PEAK_OVER_MEAN,
    burst_share: float = 0.25,
    burst_s: float = 60.0,
) -> list[Arrival]:
    """So many requests whose rate is `peak_over_mean` times the mean in bursts and lower between them.

    Bursts last `burst_s` on average and take up `burst_share` of the time; lengths of bursts and calms are exponential.
    """
    return list(
        islice(_bursts(seed, requests_per_s, peak_over_mean, burst_share, burst_s), requests)
    )


def _bursts(seed: int, rate: float, peak: float, share: float, burst_s: float) -> Iterator[Arrival]:
    if not (math.isfinite(rate) and rate > 0 and burst_s > 0):
        raise FleetError(f"{rate} requests/s in bursts of {burst_s} s")
    if not (0 < share <= 1 <= peak) or share * peak > 1:
        raise FleetError(f"bursts of {peak} times the mean for {share} of the time")
    draw = random.Random(seed)
    calm = rate * (1 - share * peak) / (1 - share) if share < 1 else rate
    now_s, is_burst = 0.0, draw.random() < share
    state_ends_s = math.inf
    if share < 1:
        state_ends_s = draw.expovariate(1 / burst_s)
    while True:
        present = rate * peak if is_burst else calm
        gap_s = draw.expovariate(present) if present > 0 else math.inf
        if now_s + gap_s > state_ends_s:
            now_s, is_burst = state_ends_s, not is_burst
            mean_s = burst_s if is_burst else burst_s * (1 - share) / share
            state_ends_s = now_s + draw.expovariate(1 / mean_s)
            continue
        now_s += gap_s
        yield Arrival(now_s, *lengths(draw))
