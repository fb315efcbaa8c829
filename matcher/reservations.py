"""How many slots of each machine have we promised away?

Counted the moment a stage is asked, not when its telemetry says so: with seconds-old counters every order would herd to the
machine that was idle last. A promise is a lease: by its end the machine's own record shows the slots it set aside, and a machine
that has dropped the job shows that too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matcher.jobs import BUSY, Job

#: As many requests of one job run at once at most: what a client keeps in flight and a miner sets aside.
JOB_SLOTS = 8
#: Many announcements long, so that a late record is not mistaken for a free machine.
LEASE_MS = 30_000


@dataclass(frozen=True)
class Held:
    """What one job was promised."""

    operators: tuple[str, ...]
    slots: int
    until_ms: int


class Reservations:
    """Slots by job: the same number at every stage, from the proposal until its lease or its work is over."""

    def __init__(self) -> None:
        self._by_job: dict[str, Held] = {}

    def hold(self, job_id: str, operators: Iterable[str], requests: int, now_ms: int) -> None:
        """Promise this job its slots at each operator; replaces what the job held."""
        slots = min(requests, JOB_SLOTS)
        self._by_job[job_id] = Held(tuple(operators), slots, now_ms + LEASE_MS)

    def release(self, job_id: str) -> None:
        """The job's work is over, or it never began. Safe to call twice."""
        self._by_job.pop(job_id, None)

    def restore(self, jobs: Iterable[Job], now_ms: int) -> None:
        """After a restart: whatever may still be computing holds its slots until the machines are heard."""
        for job in jobs:
            if job.state in BUSY and not job.finished_at_s:
                operators = [stage.operator for stage in job.plan]
                self.hold(job.job_id, operators, job.signed.order.requests, now_ms)

    def used(self, now_ms: int) -> Mapping[str, int]:
        """Promised slots by operator."""
        for job_id, held in list(self._by_job.items()):
            if held.until_ms < now_ms:
                del self._by_job[job_id]
        slots: Counter[str] = Counter()
        for held in self._by_job.values():
            for operator in held.operators:
                slots[operator] += held.slots
        return slots

    def __len__(self) -> int:
        return len(self._by_job)
