"""What work is a plan made for?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scheduler.fleet.numbers import check_number


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
            check_number(name, getattr(self, name), least=1)
        if self.requests_per_s is not None:
            check_number("requests_per_s", self.requests_per_s)
