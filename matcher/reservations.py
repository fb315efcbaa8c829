"""How many slots of each machine have we promised away?

Counted the moment a stage is asked, not when its telemetry says so: with seconds-old counters every order would herd to the
machine that was idle last. Telemetry only corrects upwards (work that others gave it); it never overwrites a promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from matcher.jobs import BUSY, Job

#: As many requests of one job run at once at most: what a client keeps in flight and a miner sets aside.
JOB_SLOTS = 8


class Reservations:
    """Slots by job: the same number at every stage, from the proposal until the job's work is over."""

    def __init__(self) -> None:
        self._by_job: dict[str, tuple[tuple[str, ...], int]] = {}

    def hold(self, job_id: str, operators: Iterable[str], requests: int) -> None:
        """Promise this job its slots at each operator; replaces what the job held."""
        self._by_job[job_id] = tuple(operators), min(requests, JOB_SLOTS)

    def release(self, job_id: str) -> None:
        """The job's work is over, or it never began. Safe to call twice."""
        self._by_job.pop(job_id, None)

    def restore(self, jobs: Iterable[Job]) -> None:
        """After a restart: whatever may still be computing holds its slots."""
        for job in jobs:
            if job.state in BUSY and not job.finished_at_s:
                operators = [stage.operator for stage in job.plan]
                self.hold(job.job_id, operators, job.signed.order.requests)

    def used(self) -> Mapping[str, int]:
        """Promised slots by operator."""
        slots: Counter[str] = Counter()
        for operators, count in self._by_job.values():
            for operator in operators:
                slots[operator] += count
        return slots

    def __len__(self) -> int:
        return len(self._by_job)
