"""Which audits does a matcher pay: what was drawn, found and is owed, and which transfer pays it?

In the matcher's database. Every method is one transaction and blocks its thread. Money is base
units, time seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import func, text, update
from sqlmodel import Session, col, select

from core.chain.chain import Fate, PreparedTransaction, TransactionFate
from core.money.paid_audits import SignedFinding
from core.protocol.errors import UsageError
from matcher.records.tables import (
    AuditedJobRow,
    AuditLotRow,
    AuditPaymentRow,
    KeptRow,
    MatchedJobRow,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

SECRET = "audit secret"
DAY_S = 86_400


@dataclass(frozen=True)
class Fell:
    """Every request of a job that is drawn by now, and what became of the new ones."""

    drawn: tuple[int, ...]
    newly_drawn: int
    spared: int
    over_cap: int


@dataclass(frozen=True)
class Lot:
    """A request drawn for an auditor; `found` is "" and `payment` None as long as there is none."""

    job_id: str
    request: int
    auditor: str
    fee_units: int
    drawn_at: int
    due_at: int
    found: str = ""
    stage: int = 0
    payment: int | None = None


@dataclass(frozen=True)
class OwedToAuditor:
    """What one auditor has earned and no payment covers."""

    auditor: str
    lots: tuple[tuple[str, int], ...]
    amount_units: int


@dataclass(frozen=True)
class Payment:
    """One transfer to an auditor, and what the chain said of it last."""

    number: int
    auditor: str
    amount_units: int
    prepared: PreparedTransaction
    fate: Fate
    is_final: bool
    created_at: int


class AuditBook:
    """The tables of paid audits in a matcher's database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
            yield session

    def secret(self) -> bytes:
        """32 random bytes, made once, by the first matcher of this database."""
        with self._session() as session:
            return bytes.fromhex(_locked_secret(session).value)

    # --- lots ---

    def draw(
        self,
        job_id: str,
        auditor: str,
        signed: Iterable[int],
        is_drawn: Callable[[int], bool],
        *,
        fee_units: int,
        cap_units: int,
        now: int,
        due_at: int,
    ) -> Fell:
        """Let the lots of requests fall that are new; those of others stay as they fell.

        What would be promised beyond `cap_units` within a day is not drawn, now or later.
        """
        with self._session() as session:
            _locked_secret(session)  # draws take turns, so that no cap is passed by two at once
            job = session.get(AuditedJobRow, job_id)
            if job is None:
                job = AuditedJobRow(job_id=job_id, fallen="[]")
                session.add(job)
                session.flush()
            known = frozenset(msgspec.json.decode(job.fallen, type=list[int]))
            fresh = sorted(frozenset(signed) - known)
            fell = [request for request in fresh if is_drawn(request)]
            since = select(func.sum(AuditLotRow.fee_units)).where(
                col(AuditLotRow.drawn_at) > now - DAY_S
            )
            room = max(0, cap_units - int(session.exec(since).one() or 0)) // fee_units
            for request in fell[:room]:
                session.add(
                    AuditLotRow(
                        job_id=job_id,
                        request=request,
                        auditor=auditor.lower(),
                        fee_units=fee_units,
                        drawn_at=now,
                        due_at=due_at,
                    )
                )
            if fresh:
                job.fallen = msgspec.json.encode(sorted(known.union(fresh))).decode()
            session.flush()
            drawn = select(AuditLotRow.request).where(
                col(AuditLotRow.job_id) == job_id, col(AuditLotRow.auditor) == auditor.lower()
            )
            found = tuple(sorted(session.exec(drawn).all()))
            newly, over = len(fell[:room]), len(fell[room:])
            return Fell(found, newly, len(fresh) - len(fell), over)

    def drawn(self, job_id: str, auditor: str) -> tuple[int, ...]:
        """Requests of a job that were drawn for this auditor."""
        return tuple(lot.request for lot in self.lots(job_id=job_id, auditor=auditor))

    def lot(self, job_id: str, request: int) -> Lot | None:
        """One request's, if it was drawn."""
        with self._session() as session:
            row = session.get(AuditLotRow, (job_id, request))
            return None if row is None else _lot_of(row)

    def lots(
        self, *, job_id: str | None = None, auditor: str | None = None, limit: int | None = None
    ) -> list[Lot]:
        """The newest first, then by job and request."""
        query = select(AuditLotRow).order_by(
            col(AuditLotRow.drawn_at).desc(), col(AuditLotRow.job_id), col(AuditLotRow.request)
        )
        if job_id is not None:
            query = query.where(col(AuditLotRow.job_id) == job_id)
        if auditor is not None:
            query = query.where(col(AuditLotRow.auditor) == auditor.lower())
        with self._session() as session:
            return [_lot_of(row) for row in session.exec(query.limit(limit)).all()]

    def keep(self, signed: SignedFinding, now: int) -> bool:
        """Write down what was found: the fee is owed. False if it was known, or never drawn."""
        finding = signed.finding
        values = {"found": str(finding.found), "stage": finding.stage, "found_at": now}
        with self._session() as session:
            done = session.connection().execute(
                update(AuditLotRow)
                .where(
                    col(AuditLotRow.job_id) == finding.job_id,
                    col(AuditLotRow.request) == finding.request,
                    col(AuditLotRow.auditor) == finding.auditor.lower(),
                    col(AuditLotRow.found) == "",
                )
                .values(signature=signed.signature, **values)
            )
            return done.rowcount == 1

    def cleared(self, limit: int) -> list[tuple[str, str]]:
        """(auditor, job) of the newest jobs in which it found nothing at all."""
        query = (
            select(AuditLotRow.auditor, AuditLotRow.job_id, func.max(AuditLotRow.found_at))
            .where(col(AuditLotRow.found) != "")
            .group_by(col(AuditLotRow.auditor), col(AuditLotRow.job_id))
            .having(func.min(AuditLotRow.found) == "clean", func.max(AuditLotRow.found) == "clean")
            .order_by(func.max(AuditLotRow.found_at).desc(), col(AuditLotRow.job_id))
            .limit(limit)
        )
        with self._session() as session:
            return [(auditor, job_id) for auditor, job_id, _ in session.exec(query).all()]

    def plan_hash(self, job_id: str) -> str | None:
        """Of a job that the matcher still knows: the chain finds a job by it."""
        with self._session() as session:
            job = session.get(MatchedJobRow, job_id)
            return None if job is None else job.plan_hash

    # --- money ---

    def owed(self) -> list[OwedToAuditor]:
        """A line for each auditor that has earned something which no payment covers."""
        query = (
            select(AuditLotRow)
            .where(col(AuditLotRow.found) != "", col(AuditLotRow.payment).is_(None))
            .order_by(col(AuditLotRow.auditor), col(AuditLotRow.job_id), col(AuditLotRow.request))
        )
        by_auditor: dict[str, list[AuditLotRow]] = {}
        with self._session() as session:
            for row in session.exec(query).all():
                by_auditor.setdefault(row.auditor, []).append(row)
        return [
            OwedToAuditor(
                who, tuple((r.job_id, r.request) for r in rows), sum(r.fee_units for r in rows)
            )
            for who, rows in by_auditor.items()
        ]

    def owed_units(self) -> int:
        """What is owed to all of them, payments under way not counted."""
        query = select(func.sum(AuditLotRow.fee_units)).where(
            col(AuditLotRow.found) != "", col(AuditLotRow.payment).is_(None)
        )
        with self._session() as session:
            return int(session.exec(query).one() or 0)

    def begin_payment(
        self, owed: OwedToAuditor, prepared: PreparedTransaction, now: int
    ) -> Payment:
        """Bind what is owed to a transfer before it is sent. Raises UsageError if it was bound."""
        with self._session() as session:
            row = AuditPaymentRow(
                auditor=owed.auditor,
                amount_units=owed.amount_units,
                prepared=msgspec.json.encode(prepared).decode(),
                tx_hash=prepared.tx_hash,
                state=str(Fate.PENDING),
                created_at=now,
            )
            session.add(row)
            session.flush()
            for job_id, request in owed.lots:
                bound = session.connection().execute(
                    update(AuditLotRow)
                    .where(
                        col(AuditLotRow.job_id) == job_id,
                        col(AuditLotRow.request) == request,
                        col(AuditLotRow.payment).is_(None),
                    )
                    .values(payment=row.number)
                )
                if bound.rowcount != 1:
                    raise UsageError(
                        f"what is owed to {owed.auditor} is being paid already",
                        why=f"request {request} of job {job_id} belongs to another payment",
                        next_step="wait for the other `matcher audits pay`: matcher audits ls",
                    )
            return _payment_of(row)

    def unsettled(self) -> list[Payment]:
        """Payments whose fate may still change, oldest first."""
        query = (
            select(AuditPaymentRow)
            .where(col(AuditPaymentRow.is_final).is_(False))
            .order_by(col(AuditPaymentRow.number))
        )
        with self._session() as session:
            return [_payment_of(row) for row in session.exec(query).all()]

    def note(self, number: int, outcome: TransactionFate) -> None:
        """What the chain says of a payment; what a void one was for is owed again."""
        with self._session() as session:
            row = session.get(AuditPaymentRow, number)
            assert row is not None, "payments are never removed"
            row.state, row.is_final = str(outcome.fate), outcome.is_final
            if outcome.is_final and outcome.fate is not Fate.DONE:
                session.connection().execute(
                    update(AuditLotRow)
                    .where(col(AuditLotRow.payment) == number)
                    .values(payment=None)
                )

    def payments(self) -> Mapping[int, Payment]:
        """Every payment by its number."""
        with self._session() as session:
            rows = session.exec(select(AuditPaymentRow)).all()
        return {payment.number: payment for payment in map(_payment_of, rows)}


def _locked_secret(session: Session) -> KeptRow:
    """The row of the secret, locked until this transaction ends."""
    made = text("INSERT INTO kept (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING")
    session.connection().execute(made, {"name": SECRET, "value": os.urandom(32).hex()})
    row = session.get(KeptRow, SECRET, with_for_update=True, populate_existing=True)
    assert row is not None, "it was just made, or before"
    return row


def _lot_of(row: AuditLotRow) -> Lot:
    return Lot(
        row.job_id,
        row.request,
        row.auditor,
        row.fee_units,
        row.drawn_at,
        row.due_at,
        row.found,
        row.stage,
        row.payment,
    )


def _payment_of(row: AuditPaymentRow) -> Payment:
    assert row.number is not None, "the database has numbered it"
    return Payment(
        row.number,
        row.auditor,
        row.amount_units,
        msgspec.json.decode(row.prepared, type=PreparedTransaction),
        Fate(row.state),
        row.is_final,
        row.created_at,
    )
