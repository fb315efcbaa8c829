"""What arrives when? Synthetic traces with the statistics of a published one.

The constants are those of the conversation part of the Azure LLM inference trace (2023, Microsoft,
CC-BY-4.0), requests of 4 to 2,048 prompt and 4 to 1,024 output tokens: means 763.1 and 232.4 and
4.76 requests/s. Lengths are drawn from its percentiles, not from a fitted lognormal: its prompts
have two humps, and a lognormal of the same mean has three times as many of the longest prompts,
which costs a pipeline 12 % of its throughput.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left

from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival

REQUESTS_PER_S = 4.76
#: Shares of requests, and the tokens that each share stays below.
_SHARES = (0.0, 0.01, *(step / 20 for step in range(1, 20)), 0.99, 1.0)
INPUT_TOKENS = (
    4,
    27,
    181,
    203,
    240,
    378,
    391,
    397,
    403,
    412,
    447,
    947,
    1004,
    1029,
    1050,
    1072,
    1094,
    1121,
    1161,
    1273,
    1353,
    1912,
    2048,
)
OUTPUT_TOKENS = (
    4,
    14,
    52,
    68,
    80,
    87,
    92,
    97,
    104,
    115,
    133,
    157,
    181,
    217,
    383,
    394,
    397,
    407,
    415,
    429,
    463,
    609,
    1024,
)
#: How far the two go together (correlation of their normal scores).
CORRELATION = 0.325


def lengths(draw: random.Random) -> tuple[int, int]:
    """Prompt and output tokens of a request by percentiles, joined by a Gaussian copula."""
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
    """Requests at independent times. Raises FleetError for a rate that is none."""
    if not (math.isfinite(requests_per_s) and requests_per_s > 0):
        raise FleetError(f"{requests_per_s} requests/s")
    draw = random.Random(seed)
    draw.random()  # unused: what follows stays what published figures were measured with
    trace, now_s = list[Arrival](), 0.0
    for _ in range(requests):
        now_s += draw.expovariate(requests_per_s)
        trace.append(Arrival(now_s, *lengths(draw)))
    return trace
