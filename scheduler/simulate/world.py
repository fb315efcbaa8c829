"""What moves in a simulation: workers, links, and requests with their visits to stages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from core.batching import KvLedger, RequestStep, StepBatch
from core.protocol.types import LayerRange
from scheduler.simulate.dispatch.router import RequestRoute
from scheduler.simulate.pass_cost import PassCost


@dataclass(slots=True, eq=False)
class SimLink:
    """One direction between two places: messages are sent one after another, then travel.

    ``free_at`` is when everything sent so far has left. Decode messages go at once to that point;
    prompt messages wait in ``prompts`` when decode steps go first and the link is busy.
    """

    source_id: str
    target_id: str
    latency_s: float
    token_s: float
    message_s: float
    decode_s: float = field(init=False)
    free_at: float = 0.0
    prompts: deque[tuple[float, Visit]] = field(default_factory=deque)
    is_scheduled: bool = False
    #: Single decode steps sent, and all other messages with the time they took.
    decodes: int = 0
    messages: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    max_wait_s: float = 0.0

    def __post_init__(self) -> None:
        self.decode_s = self.token_s + self.message_s

    def send(self, now: float, seconds: float) -> float:
        """Put a message that takes `seconds` on the link; returns when it arrives."""
        start = self.free_at
        if start > now:
            wait = start - now
            self.wait_s += wait
            if wait > self.max_wait_s:
                self.max_wait_s = wait
        else:
            start = now
        self.messages += 1
        self.busy_s += seconds
        self.free_at = start = start + seconds
        return start + self.latency_s

    def close_run(self, now: float, free_at: float, wait_s: float, sent: int) -> None:
        """Decode messages were sent in a row; the last left at `free_at` and waited longest."""
        self.decodes += sent
        self.wait_s += wait_s
        self.max_wait_s = max(self.max_wait_s, free_at - self.decode_s - now)
        self.free_at = free_at

    def clear_counts(self) -> int:
        """Begin to count afresh; returns the messages so far."""
        messages = self.messages + self.decodes
        self.messages = self.decodes = 0
        self.busy_s = self.wait_s = self.max_wait_s = 0.0
        return messages


class Line(Protocol):
    """What waits at a worker: a `BatchFormer`, or a miner's line-up. Its length is in steps."""

    def __len__(self) -> int: ...
    def add_decodes(self, steps: Iterable[Visit]) -> None: ...
    def add_prefill(self, step: Visit) -> None: ...
    def form(self) -> StepBatch[Visit] | None: ...
    def cancel(self, request: int) -> object: ...


@dataclass(slots=True, eq=False)
class Worker:
    """A machine with its slice: batch former, KV ledger, and messages on their way to it."""

    id: str
    layers: LayerRange
    former: Line
    ledger: KvLedger
    cost: PassCost
    #: Seconds of the output projection a token, and at least; None without one.
    head: tuple[float, float] | None
    many_layers: int = field(init=False)
    #: Whether any request uses only part of the slice.
    mixed: bool = False
    slowness: float = 1.0
    is_present: bool = True
    epoch: int = 0
    #: What it runs, or ran last.
    batch: StepBatch[Visit] | None = None
    #: When the next event wakes it: minus infinity while it is busy, infinity while nothing is
    #: on its way.
    wake_at: float = math.inf
    #: (arrival, sequence number, visit): taken up in order of time when the worker is free.
    decodes_in: list[tuple[float, int, Visit]] = field(default_factory=list)
    prompts_in: list[tuple[float, int, Visit]] = field(default_factory=list)
    busy_s: float = 0.0
    passes: int = 0
    decodes_run: int = 0
    prefill_run: int = 0

    def __post_init__(self) -> None:
        self.many_layers = len(self.layers)


@dataclass(slots=True, eq=False)
class RunningRequest:
    """One request: how far it is and where it runs.

    ``prompt_tokens`` grows by what was already produced when the request has to start again.
    ``epoch`` tells tokens of an earlier start from those of the present one.
    """

    id: int
    arrived_s: float
    prompt_tokens: int
    #: Decode steps to come.
    remaining: int
    job: int = 0
    issued_s: float = field(init=False)
    context: int = field(init=False)
    epoch: int = 0
    in_time: bool = True
    has_token: bool = False
    route: RequestRoute | None = None
    visits: list[Visit] = field(default_factory=list)
    home: SimLink | None = None

    def __post_init__(self) -> None:
        self.issued_s = self.arrived_s
        self.context = self.prompt_tokens


class Visit(RequestStep):
    """A request's step at a stage. ``base`` is the decode visit of that stage, maybe itself."""

    __slots__ = ("base", "is_dead", "link", "next", "running", "worker")

    def __init__(
        self,
        running: RunningRequest,
        worker: Worker,
        link: SimLink,
        layers: LayerRange | None,
        first: int = 0,
        end: int = 1,
        base: Visit | None = None,
    ) -> None:
        self.request = running.id
        self.first = first
        self.end = end
        self.job = running.job
        self.layers = layers
        self.guessed = 0
        self.is_waiting = False
        self.running = running
        self.worker = worker
        self.link = link
        self.next: Visit | None = None
        self.base = self if base is None else base
        self.is_dead = False

    def part(self, first: int, end: int) -> Visit:
        """A chunk of this prompt at the same stage."""
        return Visit(self.running, self.worker, self.link, self.layers, first, end, self.base)

    def prompt(self, first: int, end: int) -> Visit:
        """A prompt's tokens at the stage of this decode visit."""
        return Visit(self.running, self.worker, self.link, self.layers, first, end, self)
