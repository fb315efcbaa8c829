"""Does an answer hold? What a receipt says is recomputed, and with the weights here its layers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from client.audit.investigation import investigate
from client.commands.ask.job_list import verify_job
from client.context import open_context
from client.dashboard.sources.sources import PageSources
from client.gateway.metrics import CHECKED
from client.gateway.records.tables import PaidRequestRow
from core.protocol import ids
from core.protocol.errors import CheckFailed, HeadraceError, ModelMissing, ModelUnknown
from core.runtime.logs import get_logger

log = get_logger(__name__)
MAX_KEPT = 200


@dataclass(frozen=True)
class ReceiptCheck:
    """One check, running or over. `is_ok` is None where nothing can be said."""

    receipt_id: str
    job_id: str
    stage: str
    is_over: bool = False
    is_ok: bool | None = None
    facts: tuple[str, ...] = ()


class Checks:
    """The checks of this run of the program; one re-run at a time, as a shard fills memory."""

    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        self._known: OrderedDict[str, ReceiptCheck] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._bench = asyncio.Lock()

    def get(self, name: str) -> ReceiptCheck | None:
        return self._known.get(name)

    def start(self, name: str, jobs: Sequence[str], request_id: str | None = None) -> ReceiptCheck:
        """Begin to check these jobs under a name, or look at the check that runs."""
        if name in self._tasks:
            return self._known[name]
        first = ReceiptCheck(name, jobs[0], "receipts")
        self._keep(first)
        task = asyncio.create_task(self._run(first, tuple(jobs), request_id), name=f"check {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))
        return first

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, check: ReceiptCheck, jobs: Sequence[str], request_id: str | None) -> None:
        facts: list[str] = []
        verdict: bool | None = True
        for job_id in jobs:
            check = replace(check, job_id=job_id)
            try:
                facts += await self._receipts(job_id)
                facts += await self._layers(check)
            except CheckFailed as error:
                facts, verdict = [f"{error.what}: {error.why}"], False
                break
            except HeadraceError as error:
                facts, verdict = [*facts, f"{error.what}: {error.why}"], None
                break
            except Exception as error:
                log.exception("a check failed", job=job_id, exc_info=error)
                facts, verdict = [*facts, f"a bug of ours: {type(error).__name__}"], None
                break
        known = tuple(dict.fromkeys(facts))
        self._keep(replace(check, stage="over", is_over=True, is_ok=verdict, facts=known))
        self._sources.gateway.metrics.audits.labels(CHECKED[verdict]).inc()
        if request_id is not None and verdict is not None:
            await self._remember(request_id, verdict)

    async def _receipts(self, job_id: str) -> list[str]:
        """Signatures, commitments, prices and the chain. Raises CheckFailed."""
        found = await verify_job(self._sources.settings, ids.full(ids.Kind.JOB, job_id))
        return [found.signatures, found.price]

    async def _layers(self, check: ReceiptCheck) -> list[str]:
        """Every stage once more in float64. Raises CheckFailed naming the guilty one."""
        gateway = self._sources.gateway
        if gateway.signer is None:
            return ["not run again: no key here that stages answer to"]
        async with self._bench, open_context(gateway.settings) as context:

            def progress(stage: int, done: int, total: int) -> None:
                self._keep(replace(check, stage=f"layers of stage {stage}, {done} of {total}"))

            job = ids.full(ids.Kind.JOB, check.job_id)
            try:
                found = await investigate(context, gateway.signer, job, None, progress)
            except (ModelMissing, ModelUnknown):
                return ["not run again: the weights are not on this machine"]
        guilty = found.guilty
        if guilty is not None:
            worst = guilty.worst
            why = guilty.withheld or ("; ".join(worst.reasons) if worst else "")
            raise CheckFailed(f"stage {guilty.stage} did not do what it signed", why)
        return [f"{len(found.findings)} stages run again in float64, all within the tolerance"]

    async def _remember(self, request_id: str, is_ok: bool) -> None:
        database = self._sources.gateway.database

        def write() -> None:
            with database.session() as session:
                row = session.get(PaidRequestRow, request_id)
                if row is not None:
                    row.is_checked = is_ok
                    session.add(row)

        await database.run(write)

    def _keep(self, check: ReceiptCheck) -> None:
        self._known[check.receipt_id] = check
        self._known.move_to_end(check.receipt_id)
        while len(self._known) > MAX_KEPT:
            self._known.popitem(last=False)
