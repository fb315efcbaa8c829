"""Where does every unit go? What is reserved before a request, what it cost after, and what a retry of it is told.

A reservation is a running request's row and a sum on its key; both are written in one transaction, so a request that is not covered
never starts and a process that dies leaves nothing reserved that the next start does not find.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, bindparam, func, insert, update
from sqlalchemy import select as columns
from sqlalchemy.exc import IntegrityError
from sqlmodel import col, select

from client.answering import Answered
from client.gateway.errors import BudgetExceeded, KeyRefused, TwinRunning
from client.gateway.keyring import day_of, spent_on
from client.gateway.tables import (
    CANCELLED,
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    AnswerRow,
    KeyRow,
    RequestRow,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from client.gateway.database import Database
    from core.runtime.clock import Clock

#: How long an answer is kept for a retry: of a client that says nothing, and of one that named its request.
KEEP_S, KEEP_NAMED_S = 60, 24 * 3600


@dataclass(frozen=True)
class Bill:
    """What work cost, and the tokens that were paid for."""

    cost_units: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True)
class Opening:
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
class Ending:
    """What became of it. `answer` is what a retry is answered with, None: a retry is a new request."""

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
    RequestRow.metadata.tables[name] for name in ("api_keys", "requests", "answers", "usage_days")
)
_HAS_KEY = _KEYS.c.key_id == bindparam("wanted")
_TAKE = (
    update(_KEYS)
    .where(_HAS_KEY)
    .values(
        reserved_units=_KEYS.c.reserved_units + bindparam("need"), last_used_at=bindparam("now")
    )
)
#: Where the key's row alone says that it is covered.
_TAKE_COVERED = _TAKE.where(
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
_KEY = columns(_KEYS).where(_HAS_KEY).with_for_update()
_ALL_RESERVED = columns(func.sum(_KEYS.c.reserved_units))
_SETTLE = (
    update(_KEYS)
    .where(_HAS_KEY)
    .values(
        reserved_units=_KEYS.c.reserved_units - bindparam("held"),
        spent_units=_KEYS.c.spent_units + bindparam("cost"),
    )
)
_HAS_ID = _REQUESTS.c.request_id == bindparam("wanted")
_NEW_REQUEST, _NEW_ANSWER, _USE_FIRST = insert(_REQUESTS), insert(_ANSWERS), insert(_USAGE)
_REQUEST = columns(
    *(
        _REQUESTS.c[name]
        for name in (
            "request_id", "key_id", "model", "state", "begun_at", "reserved_units", "idempotency_key",
        )
    )
).where(_HAS_ID).with_for_update()  # fmt: skip
_BEGUN = update(_REQUESTS).where(_HAS_ID).values(begun_at=bindparam("now"))
_ENDED = (
    "state", "error_code", "ended_at", "reserved_units", "first_token_ms", "took_ms", "cost_units", "tokens_in",
    "tokens_out", "answer", "answer_status", "keep_until", "idempotency_key",
)  # fmt: skip
_END = update(_REQUESTS).where(_HAS_ID).values({n: bindparam(f"new_{n}") for n in _ENDED})
_COUNTED = ("requests", "failed", "tokens_in", "tokens_out", "cost_units")
_USE_MORE = (
    update(_USAGE)
    .where(*(_USAGE.c[name] == bindparam(f"at_{name}") for name in ("key_id", "day", "model")))
    .values({name: _USAGE.c[name] + bindparam(f"more_{name}") for name in _COUNTED})
)


class Ledger:
    """The money and the records of one gateway."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        daily_budget_units: int | None = None,
        show: Callable[[int], str] = str,
    ) -> None:
        self._database, self._clock = database, clock
        self._daily_budget_units, self._show = daily_budget_units, show

    async def reserve(self, opening: Opening) -> None:
        """Start a request. Raises BudgetExceeded, KeyRefused, TwinRunning; then nothing is written."""
        await self._database.run(self._reserve, opening)

    async def begun(self, request_id: str) -> None:
        """Its first token is here: from now on it may have to be paid for."""
        await self._database.run(self._begun, request_id)

    async def end(self, request_id: str, ending: Ending) -> None:
        """Charge what it cost, release the rest, keep what a retry gets."""
        await self._database.run(self._end, request_id, ending)

    async def twin(
        self, key_id: str, idempotency_key: str | None, body_hash: str
    ) -> RequestRow | None:
        """An ended request that this one repeats: named alike, or without a name of the same body and not long ago."""
        return await self._database.run(self._twin, key_id, idempotency_key, body_hash)

    async def recover(
        self, cost_of: Callable[[RequestRow], Sequence[Answered] | None] = lambda _: None
    ) -> list[RequestRow]:
        """At start: end what a former life left running. `cost_of` knows what of a begun one was paid for, None: nobody does.

        What cost nothing may be asked for again under the same name; what did, or may have, may not.
        """
        return await self._database.run(self._recover, cost_of)

    async def forget_answers(self) -> int:
        """Drop answers that no retry may ask for any more; how many."""
        return await self._database.run(self._forget_answers)

    async def requests(
        self, key_id: str | None = None, limit: int = 100, state: str | None = None
    ) -> list[RequestRow]:
        """Newest first; of one key, or of all."""
        return await self._database.run(self._requests, key_id, limit, state)

    async def request(self, typed: str, key_id: str | None = None) -> RequestRow | None:
        """By its id or its receipt's, or by a prefix of the receipt's that only one has."""
        return await self._database.run(self._request, typed, key_id)

    async def answers(self, request_id: str) -> list[AnswerRow]:
        """A request's answers, in order."""
        return await self._database.run(self._answers, request_id)

    async def of_job(self, job_id: str) -> list[AnswerRow]:
        """Answers that a job gave."""
        return await self._database.run(self._of_job, job_id)

    async def totals(self) -> dict[str, int]:
        """`reserved_units` now, `spent_today_units`, `spent_units` of all keys."""
        return await self._database.run(self._totals)

    # --- in the database's thread ---

    def _reserve(self, opening: Opening) -> None:
        row = RequestRow(
            request_id=opening.request_id,
            receipt_id=opening.receipt_id,
            key_id=opening.key_id,
            created_at=int(self._clock.now()),
            endpoint=opening.endpoint,
            model=opening.model,
            state=RUNNING,
            body_hash=opening.body_hash,
            idempotency_key=opening.idempotency_key,
            reserved_units=opening.reserved_units,
        )
        try:
            with self._database.connection() as connection:
                self.take(connection, opening.key_id, opening.reserved_units)
                connection.execute(_NEW_REQUEST, row.model_dump())
        except IntegrityError:  # another gateway over the same database was first
            raise TwinRunning("the request is being answered already") from None

    def take(self, connection: Connection, key_id: str, need: int) -> None:
        """Reserve so much for a key, as part of a transaction. Raises BudgetExceeded, KeyRefused."""
        values = {"wanted": key_id, "need": need, "now": int(self._clock.now())}
        if self._daily_budget_units is None and connection.execute(_TAKE_COVERED, values).rowcount:
            return
        key = connection.execute(_KEY, {"wanted": key_id}).first()
        if key is None or key.revoked_at is not None:
            raise KeyRefused("the API key cannot be used", "it is revoked")
        self._check(connection, key, need)
        connection.execute(_TAKE, values)

    def _check(self, connection: Connection, key: Any, need: int) -> None:
        day = day_of(self._clock.now())
        if key.budget_units is not None:
            daily = key.budget_period == "day"
            spent = spent_on(connection, day, key.key_id) if daily else key.spent_units
            have = max(0, key.budget_units - spent - key.reserved_units)
            if have < need:
                raise BudgetExceeded(
                    f"the budget of key '{key.name}' does not cover this request",
                    have=have,
                    need=need,
                    address=key.key_id,
                    fix="lower max_tokens, wait until tomorrow (UTC), or make a key with a higher budget"
                    if daily
                    else "lower max_tokens, or make a key with a higher budget: `client keys new`",
                    show=self._show,
                )
        if self._daily_budget_units is not None:
            reserved = int(connection.execute(_ALL_RESERVED).scalar() or 0)
            have = max(0, self._daily_budget_units - spent_on(connection, day) - reserved)
            if have < need:
                raise BudgetExceeded(
                    "the gateway's budget for today does not cover this request",
                    have=have,
                    need=need,
                    address="all keys",
                    fix="wait until tomorrow (UTC), or raise gateway.daily_budget",
                    show=self._show,
                )

    def _begun(self, request_id: str) -> None:
        values = {"wanted": request_id, "now": int(self._clock.now())}
        with self._database.connection() as connection:
            connection.execute(_BEGUN, values)

    def _end(self, request_id: str, ending: Ending) -> None:
        with self._database.connection() as connection:
            row = connection.execute(_REQUEST, {"wanted": request_id}).first()
            if row is not None and row.state == RUNNING:
                self._close(connection, row, ending)

    def _close(self, connection: Connection, row: Any, ending: Ending) -> None:
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
        connection.execute(_END, {"wanted": row.request_id} | named)
        answers = [
            answer_row(row.request_id, index, answer).model_dump()
            for index, answer in enumerate(ending.answers)
        ]
        if answers:
            connection.execute(_NEW_ANSWER, answers)
        failed = int(ending.state != DONE)
        self.settle(
            connection, row.key_id, row.model, row.reserved_units, bill, requests=1, failed=failed
        )

    def settle(
        self,
        connection: Connection,
        key_id: str,
        model: str,
        held_units: int,
        bill: Bill,
        *,
        requests: int,
        failed: int,
    ) -> None:
        """Release what was held and charge what it cost, as part of a transaction."""
        connection.execute(_SETTLE, {"wanted": key_id, "held": held_units, "cost": bill.cost_units})
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
        if not connection.execute(_USE_MORE, named | more).rowcount:
            connection.execute(_USE_FIRST, place | counts)

    def _twin(self, key_id: str, idempotency_key: str | None, body_hash: str) -> RequestRow | None:
        with self._database.session() as session:
            wanted = select(RequestRow).where(RequestRow.key_id == key_id)
            if idempotency_key is not None:
                wanted = wanted.where(RequestRow.idempotency_key == idempotency_key)
                return session.exec(wanted).first()
            since = int(self._clock.now()) - KEEP_S
            wanted = wanted.where(
                RequestRow.body_hash == body_hash,
                RequestRow.state == DONE,
                col(RequestRow.ended_at) >= since,
                col(RequestRow.answer).is_not(None),
            )
            return session.exec(wanted.order_by(col(RequestRow.ended_at).desc())).first()

    def _recover(
        self, cost_of: Callable[[RequestRow], Sequence[Answered] | None]
    ) -> list[RequestRow]:
        with self._database.session() as session:
            left = list(session.exec(select(RequestRow).where(RequestRow.state == RUNNING)).all())
            for row in left:
                paid = cost_of(row) if row.begun_at is not None else ()
                state = FAILED if paid is not None and not paid else INTERRUPTED
                ending = Ending(state, tuple(paid or ()), error_code="gateway_stopped")
                self._close(session.connection(), row, ending)
            return left

    def _forget_answers(self) -> int:
        with self._database.session() as session:
            kept = col(RequestRow.answer).is_not(None) | col(RequestRow.idempotency_key).is_not(
                None
            )
            wanted = select(RequestRow).where(
                kept,
                RequestRow.state != RUNNING,
                col(RequestRow.keep_until) < int(self._clock.now()),
            )
            rows = session.exec(wanted.limit(1000)).all()
            for row in rows:
                row.answer = None
                row.idempotency_key = None
                session.add(row)
            return len(rows)

    def _requests(self, key_id: str | None, limit: int, state: str | None) -> list[RequestRow]:
        with self._database.session() as session:
            wanted = select(RequestRow)
            if key_id is not None:
                wanted = wanted.where(RequestRow.key_id == key_id)
            if state is not None:
                wanted = wanted.where(RequestRow.state == state)
            newest = (col(RequestRow.created_at).desc(), col(RequestRow.request_id).desc())
            return list(session.exec(wanted.order_by(*newest).limit(limit)).all())

    def _request(self, typed: str, key_id: str | None) -> RequestRow | None:
        with self._database.session() as session:
            row = session.get(RequestRow, typed)
            if row is None:
                wanted = select(RequestRow).where(
                    col(RequestRow.receipt_id).startswith(typed, autoescape=True)
                )
                found = session.exec(wanted.limit(2)).all()
                row = found[0] if len(found) == 1 else None
            return row if row is None or key_id in (None, row.key_id) else None

    def _answers(self, request_id: str) -> list[AnswerRow]:
        with self._database.session() as session:
            wanted = select(AnswerRow).where(AnswerRow.request_id == request_id)
            return list(session.exec(wanted.order_by(col(AnswerRow.answer_index))).all())

    def _of_job(self, job_id: str) -> list[AnswerRow]:
        with self._database.session() as session:
            wanted = select(AnswerRow).where(AnswerRow.job_id == job_id)
            return list(session.exec(wanted.order_by(col(AnswerRow.job_request))).all())

    def _totals(self) -> dict[str, int]:
        with self._database.session() as session:
            keys = session.exec(select(KeyRow)).all()
            return {
                "reserved_units": sum(key.reserved_units for key in keys),
                "spent_units": sum(key.spent_units for key in keys),
                "spent_today_units": spent_on(session.connection(), day_of(self._clock.now())),
            }


def answer_row(request_id: str, index: int, answer: Answered) -> AnswerRow:
    return AnswerRow(
        request_id=request_id,
        answer_index=index,
        job_id=answer.job_id,
        job_request=answer.request_index,
        operators=json.dumps(list(answer.operators)),
        tokens_in=answer.tokens_in,
        tokens_out=answer.tokens_out,
        cost_units=answer.cost_units,
        finish=answer.finish,
        is_partial=answer.is_partial,
    )


def answer_json(row: AnswerRow) -> dict[str, Any]:
    """An answer as a page or a receipt shows it."""
    return row.model_dump(exclude={"request_id", "operators"}) | {
        "operators": json.loads(row.operators)
    }


__all__ = [
    "CANCELLED",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "RUNNING",
    "Bill",
    "Ending",
    "Ledger",
    "Opening",
    "answer_json",
    "answer_row",
]
