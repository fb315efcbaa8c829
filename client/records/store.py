"""Which jobs, prompts, answers and receipts does the requester keep? One SQLite file, of mode 600.

Prompts and salts are kept because a dispute needs them. What is written survives a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, bindparam, delete, event, update
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import Field, Session, SQLModel, col, create_engine, select, text

from client.records.statements import Statement, Transaction, writing
from core.protocol import commit, ids, signing
from core.protocol.types import SamplingParams, SignedOrder, SignedReceipt, Stage
from core.runtime.folders import make_private_file

if TYPE_CHECKING:
    from client.orders.orders import Prompt, PromptBatch
    from client.pipeline.pipeline import Match


class JobRow(SQLModel, table=True):
    """One job on chain; a submission has several where a pipeline had to be replaced."""

    __tablename__ = "client_job"
    job_id: str = Field(primary_key=True)
    submission: str = Field(index=True)
    created_at: int
    state: str  # open, acknowledged, unacknowledged, abandoned
    signed_order: str
    plan: str
    endpoints: str
    tx_hash: str


class SentOrderRow(SQLModel, table=True):
    """An order that was handed in, from before that until its job is known."""

    __tablename__ = "client_order"
    job_id: str = Field(primary_key=True)
    submission: str = Field(index=True)  # of a session its keeper
    is_session: bool
    created_at: int
    signed_order: str


class RequestRow(SQLModel, table=True):
    """One request of a job: what went in, what came out."""

    __tablename__ = "client_request"
    job_id: str = Field(primary_key=True)
    request_index: int = Field(primary_key=True)
    custom_id: str
    salt: str
    prompt_ids: str
    sampling: str
    tokens: str
    finish: str


class ReceiptRow(SQLModel, table=True):
    """A checked receipt: over one request, or over the whole job (`request_index` −1)."""

    __tablename__ = "client_receipt"
    receipt_id: str = Field(primary_key=True)
    job_id: str = Field(index=True)
    stage: int
    request_index: int
    signed_receipt: str


class SessionRow(SQLModel, table=True):
    """A job that is a session: which running program keeps it."""

    __tablename__ = "client_session"
    job_id: str = Field(primary_key=True)
    keeper: str = Field(index=True)


class PaidRow(SQLModel, table=True):
    """Tokens in and out that a job's newest Ack on the way counts: `docs/protocol.md` §9."""

    __tablename__ = "client_paid"
    job_id: str = Field(primary_key=True)
    tokens_in: int
    tokens_out: int


class ChargeRow(SQLModel, table=True):
    """What a session's request is charged, base units: all of them are what the session pays."""

    __tablename__ = "client_charge"
    job_id: str = Field(primary_key=True)
    request_index: int = Field(primary_key=True)
    cost_units: int = Field(sa_type=BigInteger)


class NonceRow(SQLModel, table=True):
    """The newest nonce that an account's orders took from these records."""

    __tablename__ = "client_nonce"
    account: str = Field(primary_key=True)
    last: int = Field(sa_type=BigInteger)


class SubmissionRow(SQLModel, table=True):
    """One `client submit`: what its owner calls it, and which running program sees to it."""

    __tablename__ = "client_submission"
    submission: str = Field(primary_key=True)
    name: str
    keeper: str


_JOB_AGE = text("client_job.rowid")
#: So many consecutive nonces share a storage word on chain, and the first of a word costs more.
NONCES_A_WORD = 256
_REQUESTS, _RECEIPTS, _PAID, _CHARGES = (
    SQLModel.metadata.tables[f"client_{name}"] for name in ("request", "receipt", "paid", "charge")
)
_NEW_REQUEST = Statement(insert(_REQUESTS))
_END_REQUEST = Statement(
    update(_REQUESTS)
    .where(_REQUESTS.c.job_id == bindparam("job"), _REQUESTS.c.request_index == bindparam("at"))
    .values(tokens=bindparam("said"), finish=bindparam("why"))
)
_NEW_RECEIPT = Statement(insert(_RECEIPTS).on_conflict_do_nothing())
_NEW_PAID = insert(_PAID)
_PUT_PAID = Statement(
    _NEW_PAID.on_conflict_do_update(
        index_elements=["job_id"],
        set_={name: _NEW_PAID.excluded[name] for name in ("tokens_in", "tokens_out")},
    )
)
_NEW_CHARGE = insert(_CHARGES)
_PUT_CHARGE = Statement(
    _NEW_CHARGE.on_conflict_do_update(
        index_elements=["job_id", "request_index"],
        set_={"cost_units": _NEW_CHARGE.excluded["cost_units"]},
    )
)


def receipt_hash(signed: SignedReceipt) -> str:
    """Struct hash of a receipt: its id."""
    return signing.struct_hash(signed.receipt)


class ClientStore:
    """The requester's records."""

    def __init__(self, path: Path) -> None:
        make_private_file(path)
        self._engine = create_engine(f"sqlite:///{path}")
        event.listen(self._engine, "connect", _prepare)
        names = ("job", "order", "request", "receipt", "session", "submission", "nonce", "paid")
        tables = [SQLModel.metadata.tables[f"client_{name}"] for name in (*names, "charge")]
        SQLModel.metadata.create_all(self._engine, tables=tables)

    def close(self) -> None:
        self._engine.dispose()

    def add_order(
        self,
        submission: str,
        job_id: str,
        signed: SignedOrder,
        created_at: int,
        batch: PromptBatch | None = None,
    ) -> None:
        """Record an order before it is handed in, with the prompts of a fixed one.

        `submission` is an open order's keeper. `add_job` or `add_session` follows, or
        `forget_order`; else the next start of the program looks for its job.
        """
        order = SentOrderRow(
            job_id=job_id,
            submission=submission,
            is_session=batch is None,
            created_at=created_at,
            signed_order=_json(signed),
        )
        with Session(self._engine) as session:
            session.add(order)
            session.add_all(_request_rows(job_id, batch))
            session.commit()

    def orders(self) -> list[SentOrderRow]:
        """Orders that were handed in and whose jobs are not known, oldest first."""
        with Session(self._engine) as session:
            return list(session.exec(select(SentOrderRow).order_by(col(SentOrderRow.created_at))))

    def leave_order(self, job_id: str) -> None:
        """Nobody waits for an order's job any more, if it is not known: it gives no answers.

        Who settles sessions looks for those of open orders.
        """
        with Session(self._engine) as session:
            if (order := session.get(SentOrderRow, job_id)) is not None:
                order.submission = ""
                session.commit()

    def forget_order(self, job_id: str) -> None:
        """Nothing was opened for an order, and nothing will be."""
        with Session(self._engine) as session:
            if (order := session.get(SentOrderRow, job_id)) is not None:
                session.delete(order)
                session.execute(delete(RequestRow).where(col(RequestRow.job_id) == job_id))
                session.commit()

    def add_job(
        self, submission: str, match: Match, batch: PromptBatch | None, created_at: int
    ) -> None:
        """Record a job before its first token, so that a crash loses no claim.

        `batch` may be None where `add_order` has recorded its prompts.
        """
        with Session(self._engine) as session:
            known = session.get(SentOrderRow, match.job_id)
            session.add(_job_row(submission, match, created_at))
            if known is not None:
                session.delete(known)
            else:
                session.add_all(_request_rows(match.job_id, batch))
            session.commit()

    def add_session(self, keeper: str, match: Match, created_at: int) -> None:
        """Record an open order, whose requests come one by one, and who keeps it."""
        with Session(self._engine) as session:
            session.add(_job_row(keeper, match, created_at))
            session.add(SessionRow(job_id=match.job_id, keeper=keeper))
            if (known := session.get(SentOrderRow, match.job_id)) is not None:
                session.delete(known)
            session.commit()

    def add_submission(self, submission: str, name: str, keeper: str) -> None:
        """Record a submission before its first job."""
        self._add(SubmissionRow(submission=submission, name=name, keeper=keeper))

    def submission(self, submission: str) -> SubmissionRow | None:
        """What is known of one; None for those without a name, such as a gateway's batches."""
        with Session(self._engine) as session:
            return session.get(SubmissionRow, submission)

    def adopt_submission(self, submission: str, was: str, keeper: str) -> bool:
        """Another program sees to it from now on; False where it is not the former's any more."""
        changed = (
            update(SubmissionRow)
            .where(col(SubmissionRow.submission) == submission, col(SubmissionRow.keeper) == was)
            .values(keeper=keeper)
        )
        with Session(self._engine) as session:
            found = session.exec(changed)
            session.commit()
            return bool(found.rowcount)

    def next_nonce(self, account: str, random_bytes: Callable[[int], bytes] = os.urandom) -> int:
        """A nonce for an account's next order, which nobody else gets from these records.

        The first is a random multiple of `NONCES_A_WORD` below 2⁶², so that other records of the
        account's do not meet it; each later one is the next number.
        """
        first, key = _first_nonce(random_bytes), account.lower()
        take = insert(NonceRow).values(account=key, last=first)
        following = {"last": col(NonceRow.last) + 1}
        take = take.on_conflict_do_update(index_elements=["account"], set_=following)
        with self._engine.begin() as connection:
            return int(connection.execute(take.returning(col(NonceRow.last))).scalar_one())

    def renew_nonces(self, account: str, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        """Let the account's next nonce be a first one again: one of those that follow was used."""
        before = {"last": _first_nonce(random_bytes) - 1}
        put = insert(NonceRow).values(account=account.lower(), **before)
        with self._engine.begin() as connection:
            connection.execute(put.on_conflict_do_update(index_elements=["account"], set_=before))

    def add_request(self, job_id: str, index: int, prompt: Prompt) -> None:
        """Record a request of an open order before its first token."""
        with writing(self._engine) as transaction:
            transaction.execute(_NEW_REQUEST, _request_values(job_id, index, prompt))

    def unsettled_sessions(self) -> list[tuple[JobRow, str]]:
        """Sessions that were opened and not settled, with their keepers."""
        with Session(self._engine) as session:
            statement = select(JobRow, SessionRow.keeper).where(JobRow.job_id == SessionRow.job_id)
            states = col(JobRow.state).in_(("open", "unacknowledged"))
            return [(row, keeper) for row, keeper in session.exec(statement.where(states))]

    def adopt_session(self, job_id: str, keeper: str) -> None:
        """Another program keeps it from now on."""
        self._change(SessionRow, job_id, keeper=keeper)

    def finish_request(
        self,
        job_id: str,
        index: int,
        tokens: Sequence[int],
        finish: str,
        receipts: Sequence[SignedReceipt] = (),
        cost_units: int | None = None,
    ) -> None:
        """What a request came to, with the checked receipts that it is paid for: all or nothing.

        `cost_units` is what a session's request is charged. Raises LookupError for a request that
        was not recorded.
        """
        ended = {"job": job_id, "at": index, "said": _json(list(tokens)), "why": finish}
        with writing(self._engine) as transaction:
            if not transaction.execute(_END_REQUEST, ended):
                raise LookupError(f"job {job_id} has no request {index}")
            _keep(transaction, job_id, receipts)
            if cost_units is not None:
                charge = {"job_id": job_id, "request_index": index, "cost_units": cost_units}
                transaction.execute(_PUT_CHARGE, charge)

    def put_charges(self, job_id: str, cost_units: Mapping[int, int]) -> None:
        """What requests of a session are charged, base units by index."""
        with writing(self._engine) as transaction:
            for index, units in cost_units.items():
                charge = {"job_id": job_id, "request_index": index, "cost_units": units}
                transaction.execute(_PUT_CHARGE, charge)

    def charges(self, job_id: str) -> dict[int, int]:
        """What a session's requests are charged so far, base units by index."""
        with Session(self._engine) as session:
            found = session.exec(select(ChargeRow).where(ChargeRow.job_id == job_id))
            return {row.request_index: row.cost_units for row in found}

    def put_paid(self, job_id: str, tokens_in: int, tokens_out: int) -> None:
        """What a job's next acknowledgement on the way counts: never less than before."""
        values = {"job_id": job_id, "tokens_in": tokens_in, "tokens_out": tokens_out}
        with writing(self._engine) as transaction:
            transaction.execute(_PUT_PAID, values)

    def paid(self, job_id: str) -> tuple[int, int]:
        """Tokens in and out that a job's acknowledgements on the way counted."""
        with Session(self._engine) as session:
            row = session.get(PaidRow, job_id)
            return (0, 0) if row is None else (row.tokens_in, row.tokens_out)

    def add_receipts(self, job_id: str, receipts: Sequence[SignedReceipt]) -> None:
        """Keep checked receipts; one kept before is left as it is."""
        with writing(self._engine) as transaction:
            _keep(transaction, job_id, receipts)

    def set_state(self, job_id: str, state: str) -> None:
        """Open, acknowledged, unacknowledged or abandoned. Raises NoResultFound for no such job."""
        self._change(JobRow, job_id, state=state)

    def _add(self, *rows: SQLModel) -> None:
        with Session(self._engine) as session:
            session.add_all(rows)
            session.commit()

    def _change(self, table: type[SQLModel], key: str, **values: str) -> None:
        with Session(self._engine) as session:
            session.get_one(table, key).sqlmodel_update(values)
            session.commit()

    def jobs(self, *, state: str | None = None) -> list[JobRow]:
        """Newest first; those of one state, `open` ones being neither paid nor given up, or all."""
        with Session(self._engine) as session:
            wanted = select(JobRow).order_by(col(JobRow.created_at).desc(), text("rowid DESC"))
            if state is not None:
                wanted = wanted.where(JobRow.state == state)
            return list(session.exec(wanted))

    def jobs_of(self, submission: str) -> list[JobRow]:
        """Jobs of a submission, oldest first."""
        with Session(self._engine) as session:
            wanted = select(JobRow).where(JobRow.submission == submission)
            return list(session.exec(wanted.order_by(_JOB_AGE)))

    def find_job(self, typed: str) -> JobRow:
        """The job that a full id or a unique prefix means. Raises IdInvalid."""
        return ids.find(ids.Kind.JOB, typed, self.jobs(), lambda row: row.job_id)

    def requests(self, job_id: str) -> list[RequestRow]:
        """Requests of a job by index; none for an unknown job."""
        with Session(self._engine) as session:
            statement = select(RequestRow).where(RequestRow.job_id == job_id)
            return list(session.exec(statement.order_by(col(RequestRow.request_index))))

    def newest_requests(self, submission: str, custom_ids: Collection[str]) -> list[RequestRow]:
        """By these custom ids the request of the newest job of a submission that has it."""
        with Session(self._engine) as session:
            wanted = select(RequestRow).where(
                RequestRow.job_id == JobRow.job_id,
                JobRow.submission == submission,
                col(RequestRow.custom_id).in_(custom_ids),
            )
            newest = {row.custom_id: row for row in session.exec(wanted.order_by(_JOB_AGE))}
            return list(newest.values())

    def receipts(
        self, job_id: str | None = None, requests: Collection[int] | None = None
    ) -> list[tuple[ReceiptRow, SignedReceipt]]:
        """Receipts of a job, or all, by stage and request; of these requests, or of all."""
        with Session(self._engine) as session:
            order = (col(ReceiptRow.request_index), col(ReceiptRow.stage))
            wanted = select(ReceiptRow).order_by(*order)
            if job_id is not None:
                wanted = wanted.where(ReceiptRow.job_id == job_id)
            if requests is not None:
                wanted = wanted.where(col(ReceiptRow.request_index).in_(requests))
            kind, rows = SignedReceipt, session.exec(wanted)
            return [(row, msgspec.json.decode(row.signed_receipt, type=kind)) for row in rows]

    def find_receipt(self, typed: str) -> tuple[ReceiptRow, SignedReceipt]:
        """The receipt that an id or a unique prefix means. Raises IdInvalid."""
        return ids.find(ids.Kind.RECEIPT, typed, self.receipts(), lambda pair: pair[0].receipt_id)


def _prepare(connection: Connection, record: object) -> None:
    """A commit is safe against our own crash and waits for no disk, which would hold tokens up."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _first_nonce(random_bytes: Callable[[int], bytes]) -> int:
    number = int.from_bytes(random_bytes(8), "big") >> 2
    return number - number % NONCES_A_WORD


def _keep(transaction: Transaction, job_id: str, receipts: Sequence[SignedReceipt]) -> None:
    for signed in receipts:
        whole = len(signed.leaves) != 1
        transaction.execute(
            _NEW_RECEIPT,
            {
                "receipt_id": receipt_hash(signed),
                "job_id": job_id,
                "stage": signed.receipt.stage,
                "request_index": -1 if whole else signed.leaves[0].request_index,
                "signed_receipt": _json(signed),
            },
        )


def _job_row(submission: str, match: Match, created_at: int) -> JobRow:
    return JobRow(
        job_id=match.job_id,
        submission=submission,
        created_at=created_at,
        state="open",
        signed_order=_json(match.signed),
        plan=_json(match.plan),
        endpoints=_json(match.endpoints),
        tx_hash=match.tx_hash,
    )


def _request_rows(job_id: str, batch: PromptBatch | None) -> list[RequestRow]:
    prompts = () if batch is None else batch.prompts
    return [RequestRow(**_request_values(job_id, i, prompt)) for i, prompt in enumerate(prompts)]


def _request_values(job_id: str, index: int, prompt: Prompt) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "request_index": index,
        "custom_id": prompt.custom_id,
        "salt": "0x" + prompt.salt.hex(),
        "prompt_ids": _json(prompt.ids),
        "sampling": _json(prompt.sampling),
        "tokens": "[]",
        "finish": "",
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def prompt_of(row: RequestRow) -> Prompt:
    """What a request asks for."""
    from client.orders.orders import Prompt

    ids = msgspec.json.decode(row.prompt_ids, type=tuple[int, ...])
    sampling = msgspec.json.decode(row.sampling, type=SamplingParams)
    return Prompt(row.custom_id, ids, sampling, commit.unhex(row.salt))


def tokens_of(row: RequestRow) -> tuple[int, ...]:
    """What came of it."""
    return msgspec.json.decode(row.tokens, type=tuple[int, ...])


def signed_of(row: SentOrderRow) -> SignedOrder:
    """The order that was handed in."""
    return msgspec.json.decode(row.signed_order, type=SignedOrder)


def match_of(row: JobRow) -> Match:
    """The stored job as its pipeline runs on it."""
    from client.pipeline.pipeline import Match

    return Match(
        job_id=row.job_id,
        signed=msgspec.json.decode(row.signed_order, type=SignedOrder),
        plan=tuple(msgspec.json.decode(row.plan, type=list[Stage])),
        endpoints=tuple(msgspec.json.decode(row.endpoints, type=list[str])),
        tx_hash=row.tx_hash,
    )
