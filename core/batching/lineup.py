"""Who waits in front of a stage, and which steps does its next batch take?

A new request stands in the lobby until memory is promised to it, jobs taking turns; its steps wait with it. Then decode
steps leave by tickets, and prompts fill up to a budget of tokens, a small one while anybody decodes. Pure: no clock, no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from core.batching.batch_former import Batch, BatchFormer
from core.batching.step import Step, StepError
from core.batching.tickets import Tickets

S = TypeVar("S", bound=Step)


class Admission(Protocol):
    """Who promises memory."""

    def try_admit(self, request: Hashable) -> bool: ...

    def release(self, request: Hashable) -> None:
        """Take a promise back; requests without one are passed over."""


class _Guest:
    __slots__ = ("early", "is_gated", "is_in", "job", "ring")

    def __init__(self, job: Hashable, ring: Hashable, is_gated: bool = True) -> None:
        self.job, self.ring, self.is_gated = job, ring, is_gated
        self.is_in = False
        self.early: list[Step] = []


class Lineup(Generic[S]):
    """The queue of one stage. `gated` is a first stage, whose decode steps leave by tickets, one ring at a time each.

    Promises: admitted in turns between jobs and first come, first served within one, nobody overtaking whoever does not
    fit; no decode step waits for a prompt longer than `budget_tokens`; a step leaves once.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        gated: bool,
        max_rows: int = 256,
        budget_tokens: int = 128,
        quiet_budget_tokens: int = 512,
    ) -> None:
        """A batch has at most `max_rows` decode steps, and `quiet_budget_tokens` of prompts while nobody decodes."""
        self.gated, self.max_rows = gated, max_rows
        self._admission = admission
        self._budgets = budget_tokens, quiet_budget_tokens
        self._guests: dict[Hashable, _Guest] = {}
        self._lobby: dict[Hashable, deque[Hashable]] = {}
        self._inside: dict[Hashable, int] = {}  # admitted requests by job
        self._rings: dict[Hashable, Tickets[S]] = {}
        self._prompts: BatchFormer[S] = BatchFormer(budget_tokens=quiet_budget_tokens)
        self._decoding: set[Hashable] = set()

    def __contains__(self, request: Hashable) -> bool:
        return request in self._guests

    @property
    def open_requests(self) -> int:
        return len(self._guests)

    @property
    def in_lobby(self) -> int:
        """Requests that wait for memory."""
        return sum(len(waiting) for waiting in self._lobby.values())

    @property
    def waiting_rows(self) -> int:
        """Rows that could run if the stage were free."""
        decodes = sum(len(ring) for ring in self._rings.values())
        return decodes + self._prompts.waiting_prefill_tokens

    def rings(self) -> Iterable[tuple[Hashable, Tickets[S]]]:
        """The tickets of every ring that has requests."""
        return self._rings.items()

    def is_in_lobby(self, request: Hashable) -> bool:
        guest = self._guests.get(request)
        return guest is not None and not guest.is_in

    def open(
        self, request: Hashable, job: Hashable, ring: Hashable = None, *, is_gated: bool = True
    ) -> None:
        """A request begins; it stands in the lobby. Raises StepError for one that is here.

        At a gated stage all requests of a ring begin here, or none of them does and `is_gated` is False.
        """
        if request in self._guests:
            raise StepError(f"request {request} is here already")
        self._guests[request] = _Guest(job, ring, is_gated)
        self._lobby.setdefault(job, deque()).append(request)

    def add(self, step: S) -> None:
        """Queue a step of an open request."""
        guest = self._guests.get(step.request)
        if guest is None:
            raise StepError(f"{step} of a request that is not here")
        if guest.is_in:
            self._queue(guest, step)
        else:
            guest.early.append(step)

    def drop(self, request: Hashable) -> None:
        """Forget a request and what waits of it; unknown ones are passed over."""
        guest = self._guests.pop(request, None)
        if guest is None:
            return
        self._decoding.discard(request)
        if guest.is_in:
            self._inside[guest.job] -= 1
            if not self._inside[guest.job]:
                del self._inside[guest.job]
            self._prompts.cancel(request)
            tickets = self._rings[guest.ring]
            tickets.drop(request)
            if not tickets.members:
                del self._rings[guest.ring]
        else:
            self._lobby[guest.job].remove(request)
            if not self._lobby[guest.job]:
                del self._lobby[guest.job]

    def recall(self, request: Hashable, job: Hashable, ring: Hashable) -> bool:
        """Take out what waits of a request, which goes on for another job and round another ring; its promise stays.

        False, and it is forgotten, where nothing was promised to it yet.
        """
        guest = self._guests.get(request)
        was_in = guest is not None and guest.is_in
        self.drop(request)
        if guest is not None and was_in:
            self._guests[request] = _Guest(job, ring, guest.is_gated)
            self._enter(request)
        return was_in

    def land(self, request: Hashable) -> None:
        """What left for this request came home and is its last."""
        guest = self._guests.get(request)
        if guest is not None and guest.is_in:
            self._rings[guest.ring].land(request)

    def form(self) -> Batch[S] | None:
        """Take the next batch; None when nothing may run now."""
        self._admit()
        decodes: list[S] = []
        for name in list(self._rings):
            left = self._rings[name].leave(self.max_rows - len(decodes))
            if left:
                decodes += left
                self._rings[name] = self._rings.pop(
                    name
                )  # last next time, should the rows not suffice
        prefills, tokens = self._take_prompts()
        if not decodes and not prefills:
            return None
        return Batch(decodes, prefills, tokens)

    def put_back(self, steps: list[S]) -> None:
        """Steps of a batch that could not run now."""
        for step in steps:
            guest = self._guests.get(step.request)
            if guest is not None:
                self._queue(guest, step)

    def _take_prompts(self) -> tuple[list[S], int]:
        if not len(self._prompts):
            return [], 0
        self._prompts.budget_tokens = self._budgets[0 if self._decoding else 1]
        batch = self._prompts.form()
        return ([], 0) if batch is None else (batch.prefills, batch.prefill_tokens)

    def _queue(self, guest: _Guest, step: S) -> None:
        if step.tokens == 1 and step.first > 0:
            self._decoding.add(step.request)
            self._rings[guest.ring].add(step)
        else:
            self._rings[guest.ring].land(step.request)
            self._prompts.add_prefill(step)

    def _admit(self) -> None:
        while self._lobby:
            job = min(self._lobby, key=lambda job: self._inside.get(job, 0))
            request = self._lobby[job][0]
            if not self._admission.try_admit(request):
                return
            self._lobby[job].popleft()
            if not self._lobby[job]:
                del self._lobby[job]
            self._enter(request)

    def _enter(self, request: Hashable) -> None:
        guest = self._guests[request]
        guest.is_in = True
        self._inside[guest.job] = self._inside.get(guest.job, 0) + 1
        ring = self._rings.get(guest.ring)
        if ring is None:
            is_gated = self.gated and guest.is_gated
            ring = self._rings[guest.ring] = Tickets(1 if is_gated else None)
        ring.join(request)
        for step in guest.early:
            self._queue(guest, step)  # type: ignore[arg-type]
        guest.early = []
