"""How is one direction of a link, and when does a byte that enters it come out?"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from core.protocol.errors import UsageError

State = Literal["open", "frozen", "lost"]
STATES: tuple[State, ...] = ("open", "frozen", "lost")
#: Towards the program that the link leads to, and back from it.
WAYS = ("in", "out")
#: Longest piece of a shaped stream: a receiver sees bytes trickle, not whole buffers arrive.
PIECE_S = 0.001
LEAST_PIECE_BYTES = 1448


@dataclass(frozen=True)
class Conditions:
    """One direction. Latency is one way; jitter adds up to its value, anew for every piece.

    0 bytes/s: no limit. frozen: bytes wait, and senders feel it once the buffer is full. lost:
    bytes vanish, and a connection that lost some is reset when the direction opens again.
    """

    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    bytes_per_s: float = 0.0
    state: State = "open"

    def __post_init__(self) -> None:
        for name in ("latency_ms", "jitter_ms", "bytes_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} cannot be {value}", "it is a number from 0")
        if self.state not in STATES:
            raise UsageError(f"'{self.state}' is no state", f"there are {', '.join(STATES)}")

    def changed(self, **changes: Any) -> Conditions:
        """These conditions with some replaced. Raises UsageError for what makes no sense."""
        return replace(self, **changes)


class Way:
    """One direction of a link: its connections share the bandwidth, each keeps its own order."""

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self.conditions = conditions
        self._random = random.Random(seed)
        self._free_at_s = 0.0

    @property
    def latency_s(self) -> float:
        return self.conditions.latency_ms / 1000

    @property
    def piece_bytes(self) -> int:
        """How finely a stream is cut, 0: not at all."""
        rate = self.conditions.bytes_per_s
        return max(LEAST_PIECE_BYTES, int(rate * PIECE_S)) if rate else 0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """When the last of these bytes, sent now, comes out; the line is busy until it entered."""
        have = self.conditions
        entered_s = now_s
        if have.bytes_per_s:
            entered_s = max(now_s, self._free_at_s) + size_bytes / have.bytes_per_s
            self._free_at_s = entered_s
        jitter_ms = self._random.uniform(0, have.jitter_ms) if have.jitter_ms else 0.0
        return entered_s + (have.latency_ms + jitter_ms) / 1000
