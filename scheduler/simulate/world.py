"""What moves in a simulation: workers, links, and requests with their visits to stages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from core.batching import KvLedger, RequestStep, StepBatch
from core.protocol.types import LayerRange
from scheduler.simulate.dispatch.router import RequestRoute
from scheduler.simulate.pass_cost import PassCost


class SimLink:
    """One direction between two places: messages are sent one after another, then travel.

    ``free_at`` is when everything sent so far has left. Decode messages go at once to that point;
    prompt messages wait in ``prompts`` when decode steps go first and the link is busy.
    """

    __slots__ = (
        "busy_s",
        "decode_s",
        "decodes",
        "free_at",
        "is_scheduled",
        "latency_s",
        "max_wait_s",
        "messages",
        "prompts",
        "source_id",
        "target_id",
        "token_s",
        "wait_s",
    )

    def __init__(
        self,
        source_id: str,
        target_id: str,
        latency_s: float,
        token_s: float,
        message_s: float,
    ) -> None:
        self.source_id = source_id
        self.target_id = target_id
        self.latency_s = latency_s
        self.token_s = token_s
        self.decode_s = token_s + message_s
        self.free_at = 0.0
        self.prompts: deque[tuple[float, Visit]] = deque()
        self.is_scheduled = False
        #: Single decode steps sent, and all other messages with the time they took.
        self.decodes = 0
        self.messages = 0
        self.busy_s = 0.0
        self.wait_s = 0.0
        self.max_wait_s = 0.0

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


class Worker:
    """A machine with its slice: batch former, KV ledger, and messages on their way to it."""

    __slots__ = (
        "batch",
        "busy_s",
        "context_matters",
        "cost",
        "decodes_in",
        "decodes_run",
        "epoch",
        "former",
        "head",
        "id",
        "is_present",
        "layers",
        "ledger",
        "many_layers",
        "mixed",
        "passes",
        "prefill_run",
        "prompts_in",
        "slowness",
        "wake_at",
    )

    def __init__(
        self,
        machine_id: str,
        layers: LayerRange,
        former: Line,
        ledger: KvLedger,
        cost: PassCost,
        head: tuple[float, float] | None,
    ) -> None:
        self.id = machine_id
        self.layers = layers
        self.many_layers = len(layers)
        self.former = former
        self.ledger = ledger
        self.cost = cost
        self.context_matters = cost.needs_context
        self.head = head
        #: Whether any request uses only part of the slice.
        self.mixed = False
        self.slowness = 1.0
        self.is_present = True
        self.epoch = 0
        #: What it runs, or ran last.
        self.batch: StepBatch[Visit] | None = None
        #: When the next event wakes it: minus infinity while it is busy, infinity while nothing is
        #: on its way.
        self.wake_at = math.inf
        #: (arrival, sequence number, visit): taken up in order of time when the worker is free.
        self.decodes_in: list[tuple[float, int, Visit]] = []
        self.prompts_in: list[tuple[float, int, Visit]] = []
        self.busy_s = 0.0
        self.passes = 0
        self.decodes_run = 0
        self.prefill_run = 0


class RunningRequest:
    """One request: how far it is and where it runs.

    ``prompt_tokens`` grows by what was already produced when the request has to start again.
    ``epoch`` tells tokens of an earlier start from those of the present one.
    """

    __slots__ = (
        "arrived_s",
        "context",
        "epoch",
        "has_token",
        "home",
        "id",
        "in_time",
        "issued_s",
        "job",
        "prompt_tokens",
        "remaining",
        "route",
        "visits",
    )

    def __init__(self, request_id: int, arrived_s: float, prompt_tokens: int, steps: int) -> None:
        self.id = request_id
        self.job = 0
        self.arrived_s = arrived_s
        self.issued_s = arrived_s
        self.prompt_tokens = prompt_tokens
        self.remaining = steps
        self.context = prompt_tokens
        self.epoch = 0
        self.in_time = True
        self.has_token = False
        self.route: RequestRoute | None = None
        self.visits: list[Visit] = []
        self.home: SimLink | None = None


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
