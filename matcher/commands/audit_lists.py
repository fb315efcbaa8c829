"""`matcher audits ls` and `auditors`: what became of the requests that were drawn, and how does
each auditor do?
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from core.chain.chain import Chain, Fate
from core.protocol import ids
from core.runtime.commands.results import Result
from core.runtime.settings import Settings
from matcher.audits.audit_book import AuditBook, Lot, Payment
from matcher.commands.pay_audits import open_books
from matcher.daemon.start import database_url
from matcher.records.store import Store

#: Where a drawn request may stand; of a late one nothing is owed any more.
STATES = ("drawn", "late", "owed", "being paid", "paid")


class Audit(Result, frozen=True):
    """`audits ls`: a request drawn for an auditor; `stage` is where the finding is worst."""

    job: str
    request: int
    auditor: str
    found: str
    stage: int | None
    fee: str
    state: str
    tx: str


class AuditorPaid(Result, frozen=True):
    """`audits auditors`: counts of requests by state.

    Of the newest jobs that the auditor cleared, `contradicted` have a stage that the chain holds
    guilty.
    """

    auditor: str
    drawn: int
    late: int
    owed: int
    being_paid: int
    paid: int
    owed_amount: str
    cleared_jobs: int
    contradicted: int


def list_audits(settings: Settings, limit: int) -> list[Audit]:
    """Requests that were drawn, newest first, and how far each of them is."""
    store = Store.open(database_url(settings))
    try:
        book = AuditBook(store.engine)
        payments, now = book.payments(), int(time.time())
        return [
            Audit(
                job=ids.short(ids.Kind.JOB, lot.job_id),
                request=lot.request,
                auditor=ids.address(lot.auditor),
                found=lot.found,
                stage=lot.stage if lot.found else None,
                fee=settings.show_token(lot.fee_units),
                state=state_of(lot, payments, now),
                tx=payments[lot.payment].prepared.tx_hash if lot.payment else "",
            )
            for lot in book.lots(limit=limit)
        ]
    finally:
        store.close()


async def list_auditors(settings: Settings, limit: int) -> list[AuditorPaid]:
    """How each auditor does, and how often the chain contradicts it.

    Contradicted is a job, of the newest ones that it cleared, in which the chain holds a stage
    guilty. Raises ChainUnreachable.
    """
    async with open_books(settings) as (chain, book):
        payments, now = book.payments(), int(time.time())
        rows = {
            who: {
                state: [lot for lot in lots if state_of(lot, payments, now) == state]
                for state in STATES
            }
            for who, lots in _by_auditor(book.lots()).items()
        }
        cleared = book.cleared(limit)
        contradicted = Counter(
            [
                auditor
                for auditor, job_id in cleared
                if await has_guilty(chain, job_id, book.plan_hash(job_id))
            ]
        )
    looked_at = Counter(auditor for auditor, _ in cleared)
    return [
        AuditorPaid(
            auditor=ids.address(who),
            drawn=sum(map(len, of_state.values())),
            late=len(of_state["late"]),
            owed=len(of_state["owed"]),
            being_paid=len(of_state["being paid"]),
            paid=len(of_state["paid"]),
            owed_amount=settings.show_token(sum(lot.fee_units for lot in of_state["owed"])),
            cleared_jobs=looked_at[who],
            contradicted=contradicted[who],
        )
        for who, of_state in sorted(rows.items())
    ]


async def has_guilty(chain: Chain, job_id: str, plan_hash: str | None) -> bool:
    """Whether a stage of this job was found at fault on chain. Raises ChainUnreachable.

    Without its plan's hash, of a job that the matcher no longer knows, the chain tells of none.
    """
    if plan_hash is None:
        return False
    job = await chain.read("TaskRegistry", "jobOf", job_id, plan_hash)
    return int(job["faultMask"]) != 0


def _by_auditor(lots: list[Lot]) -> dict[str, list[Lot]]:
    found: dict[str, list[Lot]] = {}
    for lot in lots:
        found.setdefault(lot.auditor, []).append(lot)
    return found


def state_of(lot: Lot, payments: Mapping[int, Payment], now: int) -> str:
    """One of `STATES`."""
    if lot.payment is not None:
        return "paid" if payments[lot.payment].fate is Fate.DONE else "being paid"
    if lot.found:
        return "owed"
    return "late" if now > lot.due_at else "drawn"
