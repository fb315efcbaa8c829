"""Which requests does a matcher pay an auditor for, and what has it found? (`docs/trust.md` §9)

Off unless the matcher's owner has named auditors. Lots fall when an order's auditor shows receipts
that a stage signed, by a secret of this matcher's own and the hash of the block that showed that
they are signed: neither stages nor auditors can know or choose them. The fee is owed for every
finding, so that no verdict is bought.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.money.lottery import commitment, is_drawn
from core.money.paid_audits import (
    AuditEnd,
    AuditOffer,
    Lots,
    LotsAsked,
    SignedAsk,
    SignedFinding,
    is_its_auditors,
)
from core.protocol.errors import (
    CheckFailed,
    HeadraceError,
    IdInvalid,
    MatcherUnreachable,
    UsageError,
)
from core.protocol.ids import Kind, short
from core.protocol.receipts import check_receipt
from core.runtime.logs import get_logger
from matcher.audits.audit_book import AuditBook

if TYPE_CHECKING:
    from core.protocol.signing import Domain
    from core.runtime.clock import Clock
    from core.runtime.metrics import Metrics
    from matcher.records.jobs import Job
    from matcher.records.store import Store

log = get_logger(__name__)


@dataclass(frozen=True)
class Pays:
    """What a matcher promises: `fee_units` a request, at most `cap_units` in any 24 hours."""

    auditors: tuple[str, ...] = ()
    rate_bps: int = 0
    fee_units: int = 0
    cap_units: int = 0
    within_s: int = 0


class AuditDesk:
    """Draws lots and takes findings."""

    def __init__(
        self, domain: Domain, store: Store, clock: Clock, metrics: Metrics, pays: Pays
    ) -> None:
        self._domain, self._store, self._clock, self._pays = domain, store, clock, pays
        self._book = AuditBook(store.engine)
        self._secret = b""
        self._drawing = asyncio.Lock()
        self._paid = frozenset(auditor.lower() for auditor in pays.auditors)
        about = "Requests by how their lot fell"
        self._lots = metrics.counter("headrace_audit_lots_total", about, ["outcome"])
        about = "Findings that were paid for, by verdict"
        self._findings = metrics.counter("headrace_audit_findings_total", about, ["result"])
        about = "Owed to auditors and not being paid, base units"
        self._owed = metrics.gauge("headrace_audit_owed_units", about)
        for outcome in ("drawn", "spared", "over_cap"):
            self._lots.labels(outcome)
        for found in AuditEnd:
            self._findings.labels(found)

    async def prepare(self) -> None:
        """Read the secret, and log its commitment, which binds this matcher to its lots."""
        self._secret = await self._store.off_loop(self._book.secret)
        if self._pays.auditors:
            log.info(
                "audits are paid",
                auditors=self._pays.auditors,
                rate_bps=self._pays.rate_bps,
                secret_hash=commitment(self._secret),
            )

    def offer(self) -> AuditOffer | None:
        """What an order gets that names its auditor, any of them; None where none is paid."""
        pays = self._pays
        if not pays.auditors:
            return None
        auditor = secrets.choice(pays.auditors)
        return AuditOffer(auditor, pays.rate_bps, pays.fee_units, commitment(self._secret))

    async def take_stock(self) -> None:
        """What is owed, as a metric."""
        self._owed.set(await self._store.off_loop(self._book.owed_units))

    async def draw(self, signed: SignedAsk) -> Lots:
        """Let the lots fall of requests with receipts, and tell all that were drawn in that job.

        Raises CheckFailed for forgeries, IdInvalid for another matcher's job, UsageError for an
        auditor that the order does not name or that is not paid here, MatcherUnreachable as long as
        this matcher has not seen that the receipts are signed.
        """
        asked = signed.asked
        self._check_author(signed)
        job = await self._store.off_loop(self._store.job, asked.job_id)
        if job is None:
            raise IdInvalid(f"no job {asked.job_id}", why="this matcher did not open it")
        if job.signed.order.auditor.lower() != asked.auditor.lower():
            raise UsageError(
                "that job has another auditor, or none",
                why=f"its order names {job.signed.order.auditor}",
                next_step="ask for lots of jobs whose orders name you",
            )
        if asked.auditor.lower() not in self._paid:
            return await self._drawn_before(asked)
        problem = await asyncio.to_thread(_check_receipts, job, asked, self._domain)
        if problem is not None:
            raise problem
        if not job.beacon:
            raise MatcherUnreachable(
                "the lots of that job have not fallen yet",
                why="this matcher has not seen on chain that its receipts are signed",
                next_step="ask again in a moment",
            )
        requests = {leaf.request_index for one in asked.receipts for leaf in one.leaves}
        rate_bps, now = self._pays.rate_bps, int(self._clock.now())
        async with self._drawing:
            fell = await self._store.off_loop(
                self._book.draw,
                job.job_id,
                asked.auditor,
                requests,
                lambda r: is_drawn(self._secret, job.beacon, job.job_id, r, rate_bps),
                fee_units=self._pays.fee_units,
                cap_units=self._pays.cap_units,
                now=now,
                due_at=now + self._pays.within_s,
            )
        self._lots.labels("drawn").inc(fell.newly_drawn)
        self._lots.labels("spared").inc(fell.spared)
        self._lots.labels("over_cap").inc(fell.over_cap)
        if fell.over_cap:
            log.warning("audits are not drawn: the day's cap is reached", count=fell.over_cap)
        if fell.newly_drawn:
            log.info("audits drawn", job=job.name, auditor=asked.auditor, count=fell.newly_drawn)
        return Lots(fell.drawn)

    async def take(self, signed: SignedFinding) -> None:
        """Keep a finding and owe the fee for it; the same again changes nothing.

        Raises CheckFailed for forgeries and stages that are none, UsageError for requests that were
        not drawn for this auditor, for another finding than before, and for one that is too late.
        """
        finding = signed.finding
        self._check_author(signed)
        lot = await self._store.off_loop(self._book.lot, finding.job_id, finding.request)
        if lot is None or lot.auditor != finding.auditor.lower():
            raise UsageError(
                "that request was not drawn for this auditor",
                why=f"{finding.auditor} has no lot of request {finding.request} of that job",
                next_step="ask for the job's lots first, and hand in findings of those",
            )
        if lot.found:
            self._check_same(lot.found, lot.stage, finding.found, finding.stage)
            return
        now = int(self._clock.now())
        if now > lot.due_at:
            raise UsageError(
                "the finding comes too late",
                why=f"it was due {now - lot.due_at} s ago",
                next_step="nothing is owed for it; what it shows can still be disputed",
            )
        job = await self._store.off_loop(self._store.job, finding.job_id)
        if job is not None and finding.stage >= len(job.plan):
            why = f"stage {finding.stage}, the job has {len(job.plan)}"
            raise CheckFailed("the finding is of no stage", why=why)
        if not await self._store.off_loop(self._book.keep, signed, now):
            await self.take(signed)  # another finding of it came at the same moment
            return
        self._findings.labels(finding.found).inc()
        log.info(
            "audit found",
            job=short(Kind.JOB, finding.job_id),
            request=finding.request,
            verdict=str(finding.found),
            stage=finding.stage,
        )

    async def _drawn_before(self, asked: LotsAsked) -> Lots:
        """Of an auditor that is not paid any more: an earlier promise still holds."""
        drawn = await self._store.off_loop(self._book.drawn, asked.job_id, asked.auditor)
        if not drawn:
            raise UsageError(
                f"this matcher does not pay {asked.auditor}",
                why=f"its owner has named {len(self._paid)} auditors, and not this one",
                next_step="ask the matcher's owner to add it to matcher.paid_auditors",
            )
        return Lots(drawn)

    def _check_author(self, signed: SignedAsk | SignedFinding) -> None:
        if not is_its_auditors(signed, self._domain):
            why = "the signature is not that of the auditor it names, for this network"
            raise CheckFailed("that is not signed by its auditor", why=why)

    def _check_same(self, found: str, stage: int, again: AuditEnd, stage_again: int) -> None:
        if (found, stage) != (str(again), stage_again):
            raise UsageError(
                "that request was answered for already",
                why=f"it was found {found} at stage {stage}, now {again} at stage {stage_again}",
                next_step="nothing: the first finding stands",
            )


def _check_receipts(job: Job, asked: LotsAsked, domain: Domain) -> HeadraceError | None:
    """Whether these are the last stage's receipts, over requests of the order, each once."""
    stage, order = len(job.plan) - 1, job.signed.order
    seen: set[int] = set()
    for signed in asked.receipts:
        requests: Sequence[int] = [leaf.request_index for leaf in signed.leaves]
        wrong = check_receipt(order, job.plan, stage, signed, requests, domain)
        if wrong is None and not seen.isdisjoint(requests):
            wrong = "it is over a request that another one covers"
        if wrong is None and any(request >= order.requests for request in requests):
            wrong = f"it is over requests that the order of {order.requests} does not have"
        if wrong is not None:
            return CheckFailed("a receipt does not hold", why=wrong)
        seen.update(requests)
    return None
