"""Which requests' next steps leave a first stage together, so that others are on their way
meanwhile?

A ticket is what left in one batch; it is home when each of its requests has its next step ready, or
is over. With N tickets out nothing leaves until one is home; then those that have waited longest
leave, at most B. So sizes even out by themselves whenever requests come, go, or come home
with others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from core.batching.batch_former import UNLIMITED, BatchFormer
from core.batching.step import RequestStep

S = TypeVar("S", bound=RequestStep)


class Tickets(Generic[S]):
    """Decode steps of the requests of one ring; with `tickets` None each leaves at once."""

    __slots__ = ("_former", "_left", "_number", "_out", "members", "rows", "tickets")

    def __init__(self, tickets: int | None = None, rows: int = UNLIMITED) -> None:
        self.tickets, self.rows = tickets, rows
        self.members: set[Hashable] = set()
        self._former: BatchFormer[S] = BatchFormer()
        self._out: dict[Hashable, int] = {}
        self._left: dict[int, int] = {}
        self._number = 0

    def __len__(self) -> int:
        """Steps ready to leave."""
        return len(self._former)

    @property
    def flying(self) -> int:
        """Tickets that are not home."""
        return len(self._left)

    @property
    def may_leave(self) -> bool:
        return bool(len(self._former)) and (self.tickets is None or self.flying < self.tickets)

    def join(self, request: Hashable) -> None:
        """A request goes round this ring from now on."""
        self.members.add(request)

    def add(self, step: S) -> None:
        """A request's next step is ready."""
        self.land(step.request)
        self._former.add_decode(step)

    def land(self, request: Hashable) -> None:
        """Nothing more is awaited of what left for this request."""
        ticket = self._out.pop(request, None)
        if ticket is None:
            return
        self._left[ticket] -= 1
        if not self._left[ticket]:
            del self._left[ticket]

    def withdraw(self, request: Hashable) -> int:
        """Take out what waits of a request, await nothing of it. Returns how many waited."""
        self.land(request)
        return self._former.cancel(request)

    def drop(self, request: Hashable) -> int:
        """A request is over; returns how many steps of it were waiting."""
        self.members.discard(request)
        return self.withdraw(request)

    def leave(
        self, room: int, before: int = 0, joins: Callable[[int, int], bool] | None = None
    ) -> list[S]:
        """The steps of the next ticket, at most `room` and `rows`; none while N tickets are out.

        Without tickets whole microbatches leave with the `before` rows that leave already, and with
        each other, as `joins` says. One that is larger than a batch is none: of its steps jobs take
        turns.
        """
        if room < 1 or not self.may_leave:
            return []
        if self.tickets is None and joins is not None:
            whole = self._former.form_microbatches(before, room, joins)
            if whole or before:
                return whole
        self._former.max_decodes = min(self.rows, room)
        batch = self._former.form()
        steps = batch.decodes if batch is not None else []
        if self.tickets is not None and steps:
            self._number += 1
            self._left[self._number] = len(steps)
            self._out.update((step.request, self._number) for step in steps)
        return steps
