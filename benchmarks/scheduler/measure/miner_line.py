"""How does a simulated stage queue its steps as a miner does? By its line-up and tickets.

What is added is what happens around them in a miner: a request's next chunk joins the line when the
one before has run, and the first stage of a ring looks, now and then, at how many microbatches its
measured times call for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from core.batching import StepBatch
from core.batching.lineup import Lineup
from core.batching.ring import MicrobatchChoice
from scheduler.simulate.world import Visit

#: A ring's microbatches are chosen anew after this many batches, and when requests come or go.
LOOK_EVERY = 16
MAX_ROWS = 256


class Chooser(Protocol):
    """Says how many microbatches suit the requests that go round a ring."""

    def __call__(self, visits: Iterable[Visit]) -> MicrobatchChoice: ...


class _Everybody:
    """The coordinator has booked the pages already."""

    def try_admit(self, request: Hashable) -> bool:
        return True

    def release(self, request: Hashable) -> None:
        pass


class MinerLine:
    """Takes the place of a `BatchFormer`. Prompts are cut at multiples of `chunk_tokens`, one chunk
    of a request in line at a time.
    """

    __slots__ = (
        "_batches",
        "_choose",
        "_chunk",
        "_inside",
        "_later",
        "_lineup",
        "_looked",
        "_returning",
    )

    def __init__(
        self,
        *,
        gated: bool,
        chunk_tokens: int,
        budget_tokens: int,
        choose: Chooser,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """`gated` is a stage where rings begin. `budget_tokens` of prompts run beside decode steps,
        four times as many without.
        """
        self._lineup: Lineup[Visit] = Lineup(
            _Everybody(),
            gated=gated,
            max_rows=max_rows,
            budget_tokens=budget_tokens,
            quiet_budget_tokens=4 * budget_tokens,
        )
        self._chunk = chunk_tokens
        self._choose: Callable[[Iterable[Visit]], MicrobatchChoice] = choose
        self._inside: dict[int, Visit] = {}  # of every request here, one of its visits
        # Of every request with a chunk in line, running or on its way back to the line: those after
        # it.
        self._later: dict[int, deque[Visit]] = {}
        self._returning: dict[int, Visit] = {}
        self._looked: dict[Hashable, tuple[int, int]] = {}
        self._batches = 0

    def __len__(self) -> int:
        """Rows that wait."""
        return self._lineup.waiting_rows + sum(map(len, self._later.values()))

    def add_decodes(self, visits: Iterable[Visit]) -> None:
        """Steps of one token arrived."""
        for visit in visits:
            self._enter(visit)
            self._lineup.add(visit)

    def add_prefill(self, visit: Visit) -> None:
        """A prompt, or part of one, arrived; or a chunk that `after` gave comes back."""
        request = visit.running.id
        if self._returning.get(request) is visit:
            del self._returning[request]
        elif request in self._later:
            self._later[request].append(visit)
            return
        else:
            self._enter(visit)
            self._later[request] = deque()
        self._add_chunk(visit)

    def form(self) -> StepBatch[Visit] | None:
        """The next batch."""
        self._batches += 1
        if self._lineup.gated:
            for ring, tickets in self._lineup.rings():
                active, looked = self._looked.get(ring, (0, -LOOK_EVERY))
                if active == len(tickets.members) and self._batches - looked < LOOK_EVERY:
                    continue
                members = (
                    self._inside[request]  # type: ignore[index]
                    for request in tickets.members
                )
                chosen = self._choose(members)
                tickets.tickets, tickets.rows = chosen.tickets, chosen.rows
                self._looked[ring] = len(tickets.members), self._batches
        return self._lineup.form()

    def after(self, batch: StepBatch[Visit]) -> list[Visit]:
        """Chunks that may come next, now that this batch has run."""
        following = []
        for visit in batch.prefills:
            request = visit.running.id
            waiting = self._later.get(request)
            if waiting:
                self._returning[request] = waiting.popleft()
                following.append(self._returning[request])
            elif waiting is not None:
                del self._later[request]
        return following

    def cancel(self, request: int) -> None:
        """A request is over, or was taken off this machine."""
        self._lineup.drop(request)
        self._inside.pop(request, None)
        self._later.pop(request, None)
        self._returning.pop(request, None)

    def _enter(self, visit: Visit) -> None:
        running = visit.running
        if running.id not in self._inside:
            ring = tuple(stage.worker.id for stage in running.visits)
            self._lineup.open(running.id, running.id, ring)
            self._inside[running.id] = visit

    def _add_chunk(self, visit: Visit) -> None:
        end = (visit.first // self._chunk + 1) * self._chunk
        if end < visit.end:
            front = visit.cut(end)
            assert isinstance(front, Visit), "a visit's part is a visit"
            self._later[visit.running.id].appendleft(visit)
            visit = front
        self._lineup.add(visit)
