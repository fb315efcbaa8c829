"""What is simulated, by which rules, and for how long?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scheduler.fleet.errors import FleetError


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Something that happens to a machine at a time.

    ``leave``: no new requests, those it has are served to their end. ``crash``: it is gone at once,
    its requests start again elsewhere. ``join``: it is there from now on; a machine whose first
    change is to join is absent until then. ``speed``: from now on its passes take 1 / ``factor`` of
    their time.
    """

    at_s: float
    machine_id: str
    kind: Literal["join", "leave", "crash", "speed"]
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise FleetError(f"a change at {self.at_s} s")
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise FleetError(f"machine {self.machine_id}: speed factor {self.factor}")


@dataclass(frozen=True, slots=True)
class SimOptions:
    """``warmup_s`` are simulated first and not counted, then ``duration_s``.

    ``chunk_tokens`` cuts prompts (None: whole prompts), ``budget_tokens`` bounds the prompt tokens
    of a batch (None: one chunk). ``decode_first`` lets decode messages pass waiting prompt messages
    on a link; ``frames`` sends all decode steps of a batch that go to the same place in one
    message, which takes ``step_s`` for each of them. ``message_s`` is a fixed time per message on a
    link, ``coordinator_s`` what the coordinator takes between a token and its next step.
    ``helix_rules`` charges as Helix's simulator does: a lone decode step twice, and a copy of every
    input (and counts one decode step more per request).
    ``prompt_limit_s`` and ``decode_limit_s`` define
    goodput: tokens that came in time of requests whose prompt did.
    """

    warmup_s: float = 60.0
    duration_s: float = 600.0
    chunk_tokens: int | None = 256
    budget_tokens: int | None = None
    decode_first: bool = True
    frames: bool = False
    message_s: float = 0.0
    step_s: float = 0.0
    coordinator_s: float = 0.0
    helix_rules: bool = False
    page_tokens: int = 16
    prompt_limit_s: float = math.inf
    decode_limit_s: float = math.inf
    changes: tuple[FleetChange, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("warmup_s", "message_s", "step_s", "coordinator_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise FleetError(f"{name} is {value}, must not be negative")
        for name in ("duration_s", "prompt_limit_s", "decode_limit_s"):
            if not getattr(self, name) > 0:
                raise FleetError(f"{name} is {getattr(self, name)}, must be above 0")
        if not math.isfinite(self.duration_s):
            raise FleetError("duration_s is endless")
        if self.page_tokens < 1:
            raise FleetError(f"pages of {self.page_tokens} tokens")
