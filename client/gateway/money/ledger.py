"""What is reserved before a request, what did it cost after, and what is a retry of it told?

A reservation is a running request's row and a sum on its key, written in one transaction: a request
that is not covered never starts, and the next start finds what a process that died had reserved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, func, insert, literal_column, null, update
from sqlalchemy import select as columns
from sqlmodel import col, select

from client.gateway.errors import BudgetExceeded, DuplicateRunning, KeyRefused
from client.gateway.money.keyring import day_of, spent_on
from client.gateway.openai.terms import LONGEST_DEADLINE_S
from client.gateway.records.database import Clash, in_database
from client.gateway.records.tables import (
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    AnswerRow,
    KeyRow,
    PaidRequestRow,
)
from client.records.statements import Statement, Transaction
from client.sessions.answering import Answered

if TYPE_CHECKING:
    from client.gateway.records.database import Database
    from core.runtime.clock import Clock

#: How long an answer is kept for a retry: of a request without an Idempotency-Key, and with one.
KEEP_S, KEEP_NAMED_S = 60, 24 * 3600
FORGET_AT_ONCE = 100
#: A request older than this runs no more: time for its ending and clocks that differ.
GONE_AFTER_S = LONGEST_DEADLINE_S + 3600


@dataclass(frozen=True)
class Bill:
    """What work cost, and the tokens that were paid for."""

    cost_units: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class Reservation:
    """A request before its first token."""

    request_id: str
    receipt_id: str
    key_id: str
    endpoint: str
    model: str
    body_hash: str
    idempotency_key: str | None
    reserved_units: int


@dataclass(frozen=True)
class RequestEnding:
    """What became of a request. `answer` is a retry's answer; None: a retry is a new request."""

    state: str
    answers: tuple[Answered, ...] = ()
    error_code: str = ""
    first_token_ms: int | None = None
    took_ms: int | None = None
    answer: str | None = None
    answer_status: int = 200

    @property
    def cost_units(self) -> int:
        return sum(answer.cost_units for answer in self.answers)


_KEYS, _REQUESTS, _ANSWERS, _USAGE = (
    PaidRequestRow.metadata.tables[name]
    for name in ("api_keys", "requests", "answers", "usage_days")
)
_HAS_KEY = _KEYS.c.key_id == bindparam("wanted")
_TAKEN = (
    update(_KEYS)
    .where(_HAS_KEY)
    .values(
        reserved_units=_KEYS.c.reserved_units + bindparam("need"), last_used_at=bindparam("now")
    )
)
_TAKE = Statement(_TAKEN)
#: Where the key's row alone says that it is covered.
_TAKE_COVERED = Statement(
    _TAKEN.where(
        _KEYS.c.revoked_at.is_(None),
        _KEYS.c.budget_units.is_(None)
        | (
            (_KEYS.c.budget_period == "total")
            & (
                _KEYS.c.spent_units + _KEYS.c.reserved_units + bindparam("need", type_=BigInteger)
                <= _KEYS.c.budget_units
            )
        ),
    )
)
_KEY = Statement(columns(_KEYS).where(_HAS_KEY).with_for_update())
_ALL_RESERVED = Statement(
    columns(func.coalesce(func.sum(_KEYS.c.reserved_units), 0).label("units"))
)
_SETTLE = Statement(
    update(_KEYS)
    .where(_HAS_KEY)
    .values(
        reserved_units=_KEYS.c.reserved_units - bindparam("held"),
        spent_units=_KEYS.c.spent_units + bindparam("cost"),
    )
)
_HAS_ID = _REQUESTS.c.request_id == bindparam("wanted")
_NEW_REQUEST, _NEW_ANSWER, _USE_FIRST = (
    Statement(insert(t)) for t in (_REQUESTS, _ANSWERS, _USAGE)
)
#: What a request's row holds before anything else is known.
_UNSAID = {
    name: known.default
    for name, known in PaidRequestRow.model_fields.items()
    if not known.is_required()
}
_NEEDED = ("request_id", "key_id", "model", "state", "reserved_units", "idempotency_key")
_REQUEST = Statement(
    columns(*(_REQUESTS.c[name] for name in _NEEDED)).where(_HAS_ID).with_for_update()
)
_BEGUN = Statement(update(_REQUESTS).where(_HAS_ID).values(begun_at=bindparam("now")))
_ENDED = (
    "state",
    "error_code",
    "ended_at",
    "reserved_units",
    "first_token_ms",
    "took_ms",
    "cost_units",
    "tokens_in",
    "tokens_out",
    "answer",
    "answer_status",
    "keep_until",
    "idempotency_key",
)
_END = Statement(
    update(_REQUESTS).where(_HAS_ID).values({n: bindparam(f"new_{n}") for n in _ENDED})
)
_OLD = _REQUESTS.alias("old")
_FORGET = Statement(
    update(_REQUESTS)
    .where(
        _REQUESTS.c.request_id.in_(
            columns(_OLD.c.request_id)
            .where(_OLD.c.keep_until > literal_column("0"), _OLD.c.keep_until < bindparam("now"))
            .limit(FORGET_AT_ONCE)
        )
    )
    .values(answer=null(), idempotency_key=null(), keep_until=0)
)
_COUNTED = ("requests", "failed", "tokens_in", "tokens_out", "cost_units")
_USE_MORE = Statement(
    update(_USAGE)
    .where(*(_USAGE.c[name] == bindparam(f"at_{name}") for name in ("key_id", "day", "model")))
    .values({name: _USAGE.c[name] + bindparam(f"more_{name}") for name in _COUNTED})
)


class Ledger:
    """The money and the records of one gateway, in a database that it may share with others."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        gateway_id: str,
        *,
        daily_budget_units: int | None = None,
        show: Callable[[int], str] = str,
    ) -> None:
        self.database, self._clock, self._gateway_id = database, clock, gateway_id
        self._daily_budget_units, self._show = daily_budget_units, show

    @in_database
    def reserve(self, opening: Reservation) -> None:
        """Start a request, or raise BudgetExceeded, KeyRefused, DuplicateRunning."""
        row = {**_UNSAID, **vars(opening), "gateway_id": self._gateway_id, "state": RUNNING}
        row["created_at"] = int(self._clock.now())
        try:
            with self.database.transaction() as writing:
                self.take(writing, opening.key_id, opening.reserved_units)
                writing.execute(_NEW_REQUEST, row)
        except Clash:  # another gateway over the same database was first
            raise DuplicateRunning("the request is being answered already") from None

    def take(self, writing: Transaction, key_id: str, need: int) -> None:
        """Reserve base units for a key in this transaction. Raises BudgetExceeded, KeyRefused."""
        values = {"wanted": key_id, "need": need, "now": int(self._clock.now())}
        if self._daily_budget_units is None and writing.execute(_TAKE_COVERED, values):
            return
        key = writing.first(_KEY, {"wanted": key_id})
        if key is None or key.revoked_at is not None:
            raise KeyRefused("the API key cannot be used", "it is revoked")
        self._check(writing, key, need)
        writing.execute(_TAKE, values)

    def _check(self, look: Transaction, key: Any, need: int) -> None:
        day = day_of(self._clock.now())
        if key.budget_units is not None:
            daily = key.budget_period == "day"
            spent = spent_on(look, day, key.key_id) if daily else key.spent_units
            have = max(0, key.budget_units - spent - key.reserved_units)
            if have < need:
                wait = ", wait until tomorrow (UTC)" if daily else ""
                raise BudgetExceeded(
                    f"the budget of key '{key.name}' does not cover this request",
                    have=have,
                    need=need,
                    address=key.key_id,
                    fix=f"lower max_tokens{wait}, or `client keys new` with a higher budget",
                    show=self._show,
                )
        if self._daily_budget_units is not None:
            reserved = int(look.first(_ALL_RESERVED, {}).units)
            have = max(0, self._daily_budget_units - spent_on(look, day) - reserved)
            if have < need:
                raise BudgetExceeded(
                    "the gateway's budget for today does not cover this request",
                    have=have,
                    need=need,
                    address="all keys",
                    fix="wait until tomorrow (UTC), or raise gateway.daily_budget",
                    show=self._show,
                )

    @in_database
    def begun(self, request_id: str) -> None:
        """Its first token is here: from now on it may have to be paid for."""
        values = {"wanted": request_id, "now": int(self._clock.now())}
        with self.database.transaction() as writing:
            writing.execute(_BEGUN, values)

    @in_database
    def end(self, request_id: str, ending: RequestEnding) -> None:
        """Charge what it cost, release the rest, keep what a retry gets."""
        with self.database.transaction() as writing:
            row = writing.first(_REQUEST, {"wanted": request_id})
            if row is not None and row.state == RUNNING:
                self._close(writing, row, ending)

    def _close(self, writing: Transaction, row: Any, ending: RequestEnding) -> None:
        now = int(self._clock.now())
        name: str | None = row.idempotency_key
        bill = Bill(
            ending.cost_units,
            sum(answer.tokens_in for answer in ending.answers),
            sum(answer.tokens_out for answer in ending.answers),
        )
        is_free = ending.answer is None and not ending.answers and ending.state != INTERRUPTED
        values = {
            "state": ending.state,
            "error_code": ending.error_code,
            "ended_at": now,
            "reserved_units": 0,
            "first_token_ms": ending.first_token_ms,
            "took_ms": ending.took_ms,
            "cost_units": bill.cost_units,
            "tokens_in": bill.tokens_in,
            "tokens_out": bill.tokens_out,
            "answer": ending.answer,
            "answer_status": ending.answer_status,
            "keep_until": now + (KEEP_S if name is None else KEEP_NAMED_S),
            "idempotency_key": None if is_free else name,  # free of charge: it may be made again
        }
        named = {f"new_{column}": value for column, value in values.items()}
        writing.execute(_END, {"wanted": row.request_id} | named)
        for index, answer in enumerate(ending.answers):
            writing.execute(_NEW_ANSWER, _answer_values(row.request_id, index, answer))
        failed = int(ending.state != DONE)
        self.settle(
            writing, row.key_id, row.model, row.reserved_units, bill, requests=1, failed=failed
        )

    def settle(
        self,
        writing: Transaction,
        key_id: str,
        model: str,
        held_units: int,
        bill: Bill,
        *,
        requests: int,
        failed: int,
    ) -> None:
        """Release what was held and charge what it cost, as part of a transaction."""
        writing.execute(_SETTLE, {"wanted": key_id, "held": held_units, "cost": bill.cost_units})
        place = {"key_id": key_id, "day": day_of(self._clock.now()), "model": model}
        counts = {
            "requests": requests,
            "failed": failed,
            "tokens_in": bill.tokens_in,
            "tokens_out": bill.tokens_out,
            "cost_units": bill.cost_units,
        }
        named = {f"at_{name}": value for name, value in place.items()}
        more = {f"more_{name}": value for name, value in counts.items()}
        if not writing.execute(_USE_MORE, named | more):
            writing.execute(_USE_FIRST, place | counts)

    @in_database
    def twin(
        self, key_id: str, idempotency_key: str | None, body_hash: str
    ) -> PaidRequestRow | None:
        """An ended request with this Idempotency-Key, or without one a recent one of this body."""
        with self.database.session() as session:
            wanted = select(PaidRequestRow).where(PaidRequestRow.key_id == key_id)
            if idempotency_key is not None:
                wanted = wanted.where(PaidRequestRow.idempotency_key == idempotency_key)
                return session.exec(wanted).first()
            since = int(self._clock.now()) - KEEP_S
            wanted = wanted.where(
                PaidRequestRow.body_hash == body_hash,
                PaidRequestRow.state == DONE,
                col(PaidRequestRow.ended_at) >= since,
                col(PaidRequestRow.answer).is_not(None),
            )
            return session.exec(wanted.order_by(col(PaidRequestRow.ended_at).desc())).first()

    @property
    def _ours(self) -> Any:
        return col(PaidRequestRow.gateway_id).in_((self._gateway_id, ""))

    @in_database
    def left(self) -> list[PaidRequestRow]:
        """At start: requests that this gateway, or one before gateways had names, left running."""
        with self.database.session() as session:
            wanted = select(PaidRequestRow).where(PaidRequestRow.state == RUNNING, self._ours)
            return list(session.exec(wanted).all())

    @in_database
    def recover(
        self,
        left: Collection[str],
        cost_of: Callable[[PaidRequestRow], Sequence[Answered] | None] = lambda _: None,
    ) -> list[PaidRequestRow]:
        """End what was `left`, by request id. `cost_of`: what was paid for one, None: unknown.

        One that cost nothing may be sent again under the same Idempotency-Key. Where the cost is
        unknown, it counts as paid from its first token on.
        """
        which = col(PaidRequestRow.request_id).in_(left)
        return self._break_off(which, cost_of, "gateway_stopped")

    @in_database
    def end_abandoned(self) -> list[PaidRequestRow]:
        """End what other gateways began longer ago than anything runs: they are gone."""
        began_before = int(self._clock.now()) - GONE_AFTER_S
        gone = (PaidRequestRow.gateway_id != self._gateway_id) & (
            PaidRequestRow.created_at < began_before
        )
        return self._break_off(gone, lambda _: None, "gateway_gone")

    def _break_off(
        self, which: Any, cost_of: Callable[[PaidRequestRow], Sequence[Answered] | None], why: str
    ) -> list[PaidRequestRow]:
        with self.database.session() as session:
            wanted = select(PaidRequestRow).where(PaidRequestRow.state == RUNNING, which)
            left = list(session.exec(wanted).all())
            for row in left:
                paid = cost_of(row)
                is_free = row.begun_at is None if paid is None else not paid
                state = FAILED if is_free else INTERRUPTED
                ending = RequestEnding(state, tuple(paid or ()), error_code=why)
                self._close(Transaction.of(session), row, ending)
            return left

    async def forget_answers(self) -> int:
        """Drop answers too old for a retry, a few at a time so that requests come in between."""
        total = count = await self._forget_some()
        while count == FORGET_AT_ONCE:
            count = await self._forget_some()
            total += count
        return total

    @in_database
    def _forget_some(self) -> int:
        with self.database.transaction() as writing:
            return writing.execute(_FORGET, {"now": int(self._clock.now())})

    @in_database
    def requests(self, key_id: str | None = None, limit: int = 100) -> list[PaidRequestRow]:
        """Newest first; of one key, or of all."""
        with self.database.session() as session:
            wanted = select(PaidRequestRow)
            if key_id is not None:
                wanted = wanted.where(PaidRequestRow.key_id == key_id)
            newest = (col(PaidRequestRow.created_at).desc(), col(PaidRequestRow.request_id).desc())
            return list(session.exec(wanted.order_by(*newest).limit(limit)).all())

    @in_database
    def request(self, typed: str, key_id: str | None = None) -> PaidRequestRow | None:
        """By its id or its receipt's, or by a prefix of the receipt's that only one has."""
        with self.database.session() as session:
            row = session.get(PaidRequestRow, typed)
            if row is None:
                wanted = select(PaidRequestRow).where(
                    col(PaidRequestRow.receipt_id).startswith(typed, autoescape=True)
                )
                found = session.exec(wanted.limit(2)).all()
                row = found[0] if len(found) == 1 else None
            return row if row is None or key_id in (None, row.key_id) else None

    @in_database
    def answers(self, request_id: str) -> list[AnswerRow]:
        """A request's answers, in order."""
        with self.database.session() as session:
            wanted = select(AnswerRow).where(AnswerRow.request_id == request_id)
            return list(session.exec(wanted.order_by(col(AnswerRow.answer_index))).all())

    @in_database
    def of_job(self, job_id: str) -> list[AnswerRow]:
        """Answers that a job gave."""
        with self.database.session() as session:
            wanted = select(AnswerRow).where(AnswerRow.job_id == job_id)
            return list(session.exec(wanted.order_by(col(AnswerRow.job_request))).all())

    @in_database
    def totals(self) -> dict[str, int]:
        """`reserved_units` now, `spent_today_units`, `spent_units` of all keys."""
        with self.database.session() as session:
            keys = session.exec(select(KeyRow)).all()
            return {
                "reserved_units": sum(key.reserved_units for key in keys),
                "spent_units": sum(key.spent_units for key in keys),
                "spent_today_units": spent_on(Transaction.of(session), day_of(self._clock.now())),
            }


def _answer_values(request_id: str, index: int, answer: Answered) -> dict[str, Any]:
    """The row of `answers` that an answer becomes."""
    return {
        "request_id": request_id,
        "answer_index": index,
        "job_id": answer.job_id,
        "job_request": answer.request_index,
        "operators": json.dumps(answer.operators),
        "tokens_in": answer.tokens_in,
        "tokens_out": answer.tokens_out,
        "cost_units": answer.cost_units,
        "finish": answer.finish,
        "is_partial": answer.is_partial,
    }


def answer_json(row: AnswerRow) -> dict[str, Any]:
    """An answer as a page or a receipt shows it."""
    return row.model_dump(exclude={"request_id", "operators"}) | {
        "operators": json.loads(row.operators)
    }
