"""Who waits in front of a stage, and which steps does its next batch take?

A new request waits until memory is promised to it, jobs taking turns; its steps wait with it. Then
decode steps leave, at a first stage by tickets and at later ones by the microbatches they came in,
and prompts fill up to a budget of tokens, a small one while a request decodes. Where requests are
in groups, each of which has memory of its own, a batch is of one group, and the groups take turns.
Pure: no clock, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from core.batching.batch_former import BatchFormer, StepBatch
from core.batching.step import RequestStep, StepError
from core.batching.tickets import Tickets

S = TypeVar("S", bound=RequestStep)


class Admission(Protocol):
    """Who promises memory."""

    def try_admit(self, request: Hashable) -> bool: ...

    def release(self, request: Hashable) -> None:
        """Take a promise back; requests without one are passed over."""


class _QueuedRequest:
    __slots__ = ("early", "group", "is_admitted", "is_gated", "job", "ring")

    def __init__(self, job: Hashable, ring: Hashable, is_gated: bool = True) -> None:
        self.job, self.ring, self.is_gated = job, ring, is_gated
        self.is_admitted = False
        self.group = 0
        self.early: list[RequestStep] = []


class _QueuedGroup(Generic[S]):
    """Requests whose steps may run together: their tickets by ring, and their prompts."""

    __slots__ = ("prompts", "rings")

    def __init__(self, budget_tokens: int) -> None:
        self.rings: dict[Hashable, Tickets[S]] = {}
        self.prompts: BatchFormer[S] = BatchFormer(budget_tokens=budget_tokens)

    @property
    def is_ready(self) -> bool:
        """Whether something of it could run now."""
        return bool(len(self.prompts)) or any(ring.may_leave for ring in self.rings.values())


class Lineup(Generic[S]):
    """The queue of one stage.

    `gated` is a first stage, whose decode steps leave by tickets, one ring at a time each.

    Promises: admitted in turns between jobs and first come, first served within one, nobody
    overtaking a request that does not fit; no decode step waits for a prompt longer than
    `budget_tokens`; a step leaves once.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        gated: bool,
        max_rows: int = 256,
        budget_tokens: int = 128,
        quiet_budget_tokens: int = 512,
        group_of: Callable[[Hashable], int] | None = None,
        joins: Callable[[int, int], bool] | None = None,
    ) -> None:
        """A batch has at most `max_rows` decode steps, and `quiet_budget_tokens` of prompts while
        nobody decodes.

        `group_of` says of an admitted request which group it is in; None: there is only one.
        `joins` says whether some rows of a later stage's batch and some more of another
        microbatch run together; None: always, as those of one group do among several.
        """
        self.gated, self.max_rows = gated, max_rows
        self._admission = admission
        self._budgets = budget_tokens, quiet_budget_tokens
        self._requests: dict[Hashable, _QueuedRequest] = {}
        self._waiting: dict[Hashable, deque[Hashable]] = {}
        self._inside: dict[Hashable, int] = {}  # admitted requests by job
        self._group_of, self._joins = group_of, joins
        self._groups: dict[int, _QueuedGroup[S]] = {}  # whose turn was longest ago first
        self._decoding: set[Hashable] = set()

    def __contains__(self, request: Hashable) -> bool:
        return request in self._requests

    @property
    def open_requests(self) -> int:
        return len(self._requests)

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for memory."""
        return sum(len(waiting) for waiting in self._waiting.values())

    @property
    def waiting_rows(self) -> int:
        """Rows that could run if the stage were free."""
        decodes = sum(len(tickets) for _, tickets in self.rings())
        return decodes + sum(g.prompts.waiting_prefill_tokens for g in self._groups.values())

    def rings(self) -> Iterable[tuple[Hashable, Tickets[S]]]:
        """The tickets of every ring with requests; a ring in several groups has some in each."""
        return (named for group in self._groups.values() for named in group.rings.items())

    def is_waiting(self, request: Hashable) -> bool:
        queued = self._requests.get(request)
        return queued is not None and not queued.is_admitted

    def open(
        self, request: Hashable, job: Hashable, ring: Hashable = None, *, is_gated: bool = True
    ) -> None:
        """A request begins; it waits for memory. Raises StepError for one that is here.

        At a gated stage all requests of a ring begin here, or none of them does and `is_gated` is
        False.
        """
        if request in self._requests:
            raise StepError(f"request {request} is here already")
        self._requests[request] = _QueuedRequest(job, ring, is_gated)
        self._waiting.setdefault(job, deque()).append(request)

    def add(self, step: S) -> None:
        """Queue a step of an open request."""
        queued = self._requests.get(step.request)
        if queued is None:
            raise StepError(f"{step} of a request that is not here")
        if queued.is_admitted:
            self._queue(queued, step)
        else:
            queued.early.append(step)

    def drop(self, request: Hashable) -> None:
        """Forget a request and what waits of it; unknown ones are passed over."""
        queued = self._requests.pop(request, None)
        if queued is None:
            return
        self._decoding.discard(request)
        if queued.is_admitted:
            self._inside[queued.job] -= 1
            if not self._inside[queued.job]:
                del self._inside[queued.job]
            group = self._groups[queued.group]
            group.prompts.cancel(request)
            tickets = group.rings[queued.ring]
            tickets.drop(request)
            if not tickets.members:
                del group.rings[queued.ring]
        else:
            self._waiting[queued.job].remove(request)
            if not self._waiting[queued.job]:
                del self._waiting[queued.job]

    def recall(self, request: Hashable, job: Hashable, ring: Hashable) -> bool:
        """Take out what waits of a request, which goes on for another job and round another ring;
        its promise stays.

        False, and it is forgotten, where nothing was promised to it yet.
        """
        queued = self._requests.get(request)
        was_in = queued is not None and queued.is_admitted
        self.drop(request)
        if queued is not None and was_in:
            self._requests[request] = _QueuedRequest(job, ring, queued.is_gated)
            self._enter(request)
        return was_in

    def land(self, request: Hashable) -> None:
        """What left for this request came home and is its last."""
        queued = self._requests.get(request)
        if queued is not None and queued.is_admitted:
            self._groups[queued.group].rings[queued.ring].land(request)

    def form(self) -> StepBatch[S] | None:
        """Take the next batch; None when nothing may run now."""
        self._admit()
        for number in list(self._groups):
            batch = self._form_of(number)
            if batch is not None:
                self._groups[number] = self._groups.pop(number)  # last next time
                batch.following = self._following(number)
                return batch
        return None

    def _form_of(self, number: int) -> StepBatch[S] | None:
        rings, decodes, rows = self._groups[number].rings, list[S](), 0
        # Among groups a turn is worth more than a microbatch: the next one's memory is fetched for
        # it.
        joins = self._joins if len(self._groups) == 1 else None
        for name in list(rings):
            left = rings[name].leave(self.max_rows - len(decodes), rows, joins)
            if left:
                decodes += left
                rows += sum(step.tokens for step in left)
                rings[name] = rings.pop(name)  # last next time, should the rows not suffice
        prefills, tokens = self._take_prompts(self._groups[number].prompts)
        if not decodes and not prefills:
            return None
        return StepBatch(decodes, prefills, tokens, number)

    def _following(self, number: int) -> int | None:
        """Of the other groups with requests the first that is ready by turn, else the first."""
        others = [at for at, group in self._groups.items() if at != number and group.rings]
        return next((at for at in others if self._groups[at].is_ready), next(iter(others), None))

    def put_back(self, steps: list[S]) -> None:
        """Steps of a batch that could not run now."""
        for step in steps:
            queued = self._requests.get(step.request)
            if queued is not None:
                self._queue(queued, step)

    def _take_prompts(self, prompts: BatchFormer[S]) -> tuple[list[S], int]:
        if not len(prompts):
            return [], 0
        prompts.budget_tokens = self._budgets[0 if self._decoding else 1]
        batch = prompts.form()
        return ([], 0) if batch is None else (batch.prefills, batch.prefill_tokens)

    def _queue(self, queued: _QueuedRequest, step: S) -> None:
        group = self._groups[queued.group]
        if step.is_decode:
            self._decoding.add(step.request)
            group.rings[queued.ring].add(step)
        else:
            group.rings[queued.ring].land(step.request)
            group.prompts.add_prefill(step)

    def _admit(self) -> None:
        while self._waiting:
            job = min(self._waiting, key=lambda job: self._inside.get(job, 0))
            request = self._waiting[job][0]
            if not self._admission.try_admit(request):
                return
            self._waiting[job].popleft()
            if not self._waiting[job]:
                del self._waiting[job]
            self._enter(request)

    def _enter(self, request: Hashable) -> None:
        queued = self._requests[request]
        queued.is_admitted = True
        self._inside[queued.job] = self._inside.get(queued.job, 0) + 1
        if self._group_of is not None:
            queued.group = self._group_of(request)
        group = self._groups.get(queued.group)
        if group is None:
            group = self._groups[queued.group] = _QueuedGroup(self._budgets[1])
        ring = group.rings.get(queued.ring)
        if ring is None:
            is_gated = self.gated and queued.is_gated
            ring = group.rings[queued.ring] = Tickets(1 if is_gated else None)
        ring.join(request)
        for step in queued.early:
            self._queue(queued, step)  # type: ignore[arg-type]
        queued.early = []
