"""What work is a plan made for?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.fleet.errors import FleetError


class Arrival(NamedTuple):
    """One request of a trace: when it comes, tokens of its prompt, tokens it will produce."""

    at_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Mean lengths and rate of requests; ``requests_per_s`` None: as many as can be served."""

    input_tokens: float = 763.1
    output_tokens: float = 232.4
    requests_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 1):
                raise FleetError(f"{name} is {value}, a request has at least one")
        rate = self.requests_per_s
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise FleetError(f"requests_per_s is {rate}, must be above 0")
