"""Which waiting steps make the next batch of a stage?

Decode steps first, all of them up to a limit; then prompts, cut at fixed positions, up to a budget
of tokens: a long prompt never holds back the decode steps for longer than one budget, and decode
steps never keep a prompt out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar, cast

from core.batching.step import RequestStep, StepError

UNLIMITED = 2**62
S = TypeVar("S", bound=RequestStep)


class StepBatch(Generic[S]):
    """What one pass runs: decode steps of one token and its guesses each, and prompt chunks in the
    order they must run.

    All are of one `group` of requests, where requests are in groups; `following` is the group that
    likely comes next.
    """

    __slots__ = ("decodes", "following", "group", "prefill_tokens", "prefills")

    def __init__(
        self,
        decodes: list[S],
        prefills: list[S],
        prefill_tokens: int,
        group: int = 0,
        following: int | None = None,
    ) -> None:
        self.decodes = decodes
        self.prefills = prefills
        self.prefill_tokens = prefill_tokens
        self.group, self.following = group, following

    def __len__(self) -> int:
        return len(self.decodes) + len(self.prefills)


class BatchFormer(Generic[S]):
    """The queue of one stage.

    ``chunk_tokens`` cuts prompts at its multiples counted from position 0, so that the same prompt
    is always cut alike; None runs prompts whole. ``budget_tokens`` bounds the prompt tokens of a
    batch (None: no bound), ``max_decodes`` and ``max_prefills`` its steps of either kind.

    Promises: no batch passes a limit; every queued token is run exactly once, those of a request in
    order; within a job first come, first served; when a limit binds, jobs take turns (prompts by
    tokens served, decode steps one each), so nobody waits for ever. Cost: O(1) per step while the
    limits on decode steps do not bind.
    """

    __slots__ = (
        "_decodes",
        "_jobs",
        "_prompts_of",
        "_queued",
        "_seq",
        "_served",
        "_turn",
        "_turns",
        "budget_tokens",
        "chunk_tokens",
        "max_decodes",
        "max_prefills",
        "waiting_prefill_tokens",
    )

    def __init__(
        self,
        *,
        chunk_tokens: int | None = None,
        budget_tokens: int | None = None,
        max_decodes: int | None = None,
        max_prefills: int | None = None,
    ) -> None:
        for name, limit in (
            ("chunk_tokens", chunk_tokens),
            ("budget_tokens", budget_tokens),
            ("max_decodes", max_decodes),
            ("max_prefills", max_prefills),
        ):
            if limit is not None and limit < 1:
                raise StepError(f"{name} is {limit}, must be above 0")
        if chunk_tokens is not None and budget_tokens is not None and budget_tokens < chunk_tokens:
            raise StepError(
                f"a budget of {budget_tokens} tokens never fits a chunk of {chunk_tokens}"
            )
        self.chunk_tokens = chunk_tokens
        self.budget_tokens = UNLIMITED if budget_tokens is None else budget_tokens
        self.max_decodes = UNLIMITED if max_decodes is None else max_decodes
        self.max_prefills = UNLIMITED if max_prefills is None else max_prefills
        self.waiting_prefill_tokens = 0
        self._decodes: list[S] = []
        self._turns: dict[Hashable, int] = {}
        self._turn = 0
        # Start-time fair queueing: the heap is ordered by tokens served, a job that returns starts
        # at the present mark.
        self._jobs: list[tuple[int, int, Hashable]] = []
        self._prompts_of: dict[Hashable, deque[S]] = {}
        self._served = 0
        self._seq = 0
        self._queued = 0

    def __len__(self) -> int:
        """Steps waiting."""
        return len(self._decodes) + self._queued

    def add_decode(self, step: S) -> None:
        """Queue a step of one token, and maybe of guesses behind it."""
        if step.is_waiting:
            raise StepError(f"{step} already waits")
        step.is_waiting = True
        self._decodes.append(step)

    def add_decodes(self, steps: Iterable[S]) -> None:
        """Queue many, in order."""
        waiting = self._decodes
        for step in steps:
            if step.is_waiting:
                raise StepError(f"{step} already waits")
            step.is_waiting = True
            waiting.append(step)

    def add_prefill(self, step: S) -> None:
        """Queue a prompt, or a chunk of one that an earlier stage has cut."""
        if step.is_waiting:
            raise StepError(f"{step} already waits")
        tokens = step.end - step.first
        if self.chunk_tokens is None and tokens > self.budget_tokens:
            raise StepError(f"{step} is longer than a batch of {self.budget_tokens} tokens")
        step.is_waiting = True
        prompts = self._prompts_of.get(step.job)
        if prompts is None:
            prompts = self._prompts_of[step.job] = deque()
            self._seq += 1
            heappush(self._jobs, (self._served, self._seq, step.job))
        prompts.append(step)
        self._queued += 1
        self.waiting_prefill_tokens += tokens

    def form(self) -> StepBatch[S] | None:
        """Take the next batch out of the queue; None when nothing waits."""
        decodes = self._decodes
        if len(decodes) > self.max_decodes:
            decodes, self._decodes = self._fair_share(decodes)
        elif decodes:
            self._decodes = []
        elif not self._queued:
            return None
        else:
            decodes = []
        for step in decodes:
            step.is_waiting = False
        if self._queued:
            prefills: list[S] = []
            return StepBatch(decodes, prefills, self._take_prefills(prefills))
        return StepBatch(decodes, [], 0)

    def form_microbatches(
        self, before: int, room: int, joins: Callable[[int, int], bool]
    ) -> list[S]:
        """Take decode steps as they came, whole microbatches while they are at most `room` steps
        and `joins` of their rows.

        `before` rows are in the batch already; without any the first microbatch need not ask. No
        steps where the first one waits for others to leave, or is larger than `room`.
        """
        taken, rows = 0, before
        for size, more in self._microbatches():
            if taken + size > room or (rows and not joins(rows, more)):
                break
            taken, rows = taken + size, rows + more
        decodes, self._decodes = self._decodes[:taken], self._decodes[taken:]
        for step in decodes:
            step.is_waiting = False
        return decodes

    def _microbatches(self) -> Iterator[tuple[int, int]]:
        """Steps and rows of each that waits."""
        size = rows = 0
        for step in self._decodes:
            if step.leads and size:
                yield size, rows
                size = rows = 0
            size, rows = size + 1, rows + step.tokens
        if size:
            yield size, rows

    def cancel(self, request: Hashable) -> int:
        """Take every waiting step of a request out of the queue; returns how many there were."""
        before = len(self)
        kept = []
        for step in self._decodes:
            if step.request == request:
                step.is_waiting = False
            else:
                kept.append(step)
        self._decodes = kept
        for job, prompts in self._prompts_of.items():
            if any(step.request == request for step in prompts):
                remaining: deque[S] = deque()
                for step in prompts:
                    if step.request == request:
                        step.is_waiting = False
                        self._queued -= 1
                        self.waiting_prefill_tokens -= step.end - step.first
                    else:
                        remaining.append(step)
                self._prompts_of[job] = remaining
        return before - len(self)

    def _take_prefills(self, taken: list[S]) -> int:
        """Move prompt chunks into `taken`, the job served least first. Returns their tokens."""
        jobs, chunk, budget, room = (
            self._jobs,
            self.chunk_tokens,
            self.budget_tokens,
            self.max_prefills,
        )
        while jobs and room:
            served, seq, job = jobs[0]
            prompts = self._prompts_of[job]
            if not prompts:
                heappop(jobs)
                del self._prompts_of[job]
                continue
            step = prompts[0]
            end = step.end
            if chunk is not None:
                end = min(end, (step.first // chunk + 1) * chunk)
            tokens = end - step.first
            if tokens > budget:  # nobody overtakes who does not fit, or long prompts would starve
                break
            heappop(jobs)
            self._served = served
            if end < step.end:
                taken.append(cast(S, step.cut(end)))
            else:
                step.is_waiting = False
                taken.append(step)
                prompts.popleft()
                self._queued -= 1
            if prompts:
                heappush(jobs, (served + tokens, seq, job))
            else:
                del self._prompts_of[job]
            budget -= tokens
            room -= 1
        tokens = self.budget_tokens - budget
        self.waiting_prefill_tokens -= tokens
        return tokens

    def _fair_share(self, waiting: list[S]) -> tuple[list[S], list[S]]:
        """One step of each job in turn, the job not served for longest first.

        Order within a job is kept.

        A job that was away is served as if it had just had its turn, the oldest such first.
        """
        by_job: dict[Hashable, deque[S]] = {}
        for step in waiting:
            by_job.setdefault(step.job, deque()).append(step)
        turns, now = self._turns, self._turn
        turn = deque(sorted(by_job, key=lambda job: turns.get(job, now)))
        turns = {job: turns.get(job, now) for job in by_job}
        taken: list[S] = []
        while len(taken) < self.max_decodes:
            job = turn.popleft()
            queue = by_job[job]
            taken.append(queue.popleft())
            now += 1
            turns[job] = now
            if queue:
                turn.append(job)
        self._turns, self._turn = turns, now
        chosen = {id(step) for step in taken}
        return taken, [step for step in waiting if id(step) not in chosen]
