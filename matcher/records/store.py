"""How does the matcher survive being killed: what is written when, and how is it read back?

SQLite in WAL mode by default, any SQLAlchemy URL otherwise. Every method is one transaction and
blocks its thread; the daemon's loop calls them through `off_loop`. A job is stored with its
acceptances before it is opened on chain and an event's effect together with the follower's
position, so dying between two lines loses nothing that the chain cannot tell again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
from sqlalchemy import delete, func
from sqlmodel import Session, col, select

from core.chain.follower import ChainPosition
from core.money.audit_report import SignedReport
from core.protocol import signing
from core.protocol.errors import ConfigError
from core.protocol.types import (
    Acceptance,
    Ack,
    ModelSpec,
    SignedAcceptance,
    SignedOrder,
    SignedReceipt,
    Stage,
    to_json,
)
from core.runtime.database import open_database
from matcher.records.jobs import ENDED, FAILED, Job, SignedAck
from matcher.records.tables import (
    AcceptanceRow,
    AckRow,
    AuditReportRow,
    CursorRow,
    MatchedJobRow,
    MinerRow,
    ModelRow,
    OrderRow,
    StageReceiptRow,
    StageRow,
    SwarmPeerRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Engine

MIGRATIONS = Path(__file__).with_name("migrations")
SWARM_PEERS_KEPT = 32
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class MinerSeen:
    """One operator as it was last seen."""

    operator: str
    owner: str
    stake_units: int
    can_work: bool
    state: str
    endpoint: str


@dataclass(frozen=True)
class JobChange:
    """What is new of a job: columns of `MatchedJobRow` and their values.

    `plan_hash`: of the job with this plan only; empty: whatever its plan.
    """

    job_id: str
    values: Mapping[str, Any]
    plan_hash: str = ""


class Store:
    """The matcher's database."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="store")

    @classmethod
    def open(cls, url: str) -> Store:
        """Connect and bring the tables up to date. Raises ConfigError."""
        return cls(open_database(url, "matcher.db_url", MIGRATIONS))

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self.engine.dispose()

    async def off_loop(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking method of this store in its own threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: call(*args, **kwargs))

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    # --- the chain we follow ---

    def bind(self, chain_id: int, task_registry: str) -> None:
        """Claim the database for one deployment. Raises ConfigError when it belongs to another."""
        with self._session() as session:
            row = session.get(CursorRow, "chain")
            if row is None:
                deployment = {"chain_id": chain_id, "task_registry": task_registry}
                position = to_text(ChainPosition())
                session.add(CursorRow(name="chain", position=position, **deployment))
            elif (row.chain_id, row.task_registry) != (chain_id, task_registry):
                raise ConfigError(
                    "the matcher's database belongs to another network",
                    why=f"it follows {row.task_registry} on chain {row.chain_id}, the network is "
                    f"{task_registry} on chain {chain_id}",
                    next_step="choose another matcher.db_url, or remove that database",
                )

    def position(self) -> ChainPosition:
        """How far events were applied."""
        with self._session() as session:
            row = session.get(CursorRow, "chain")
            if row is None:
                return ChainPosition()
            return msgspec.json.decode(row.position, type=ChainPosition)

    def apply(
        self,
        position: ChainPosition,
        changes: Sequence[JobChange],
        models: Mapping[str, tuple[ModelSpec, int]],
        *,
        rolled_back_to: int | None = None,
        now: int,
    ) -> None:
        """Effects of events and the follower's new position, all or nothing.

        After a rollback, jobs whose state came from a lost block are stale until we ask the chain.
        """
        with self._session() as session:
            if rolled_back_to is not None:
                lost = select(MatchedJobRow).where(col(MatchedJobRow.state_block) > rolled_back_to)
                for job in session.exec(lost):
                    job.stale, job.state_block = True, rolled_back_to
                session.exec(delete(ModelRow).where(col(ModelRow.block_number) > rolled_back_to))
            for model_id, (spec, block) in models.items():
                session.merge(ModelRow(model_id=model_id, spec=to_text(spec), block_number=block))
            for change in changes:
                _change(session, change, now)
            row = session.get(CursorRow, "chain")
            assert row is not None, "bind() comes first"
            row.position = to_text(position)

    def models(self) -> dict[str, ModelSpec]:
        """Every registered model by id."""
        with self._session() as session:
            rows = session.exec(select(ModelRow)).all()
        return {row.model_id: msgspec.json.decode(row.spec, type=ModelSpec) for row in rows}

    # --- who was seen ---

    def note_miners(self, seen: Iterable[MinerSeen], now: int) -> None:
        """Remember operators as they are now."""
        with self._session() as session:
            for miner in seen:
                row = session.get(MinerRow, miner.operator)
                first = now if row is None else row.first_seen_at
                session.merge(MinerRow(**vars(miner), first_seen_at=first, last_seen_at=now))

    def remember_swarm(self, own: Iterable[str], peers: Iterable[str], now: int) -> None:
        """Keep our addresses and those of the newest peers, for a restart."""
        with self._session() as session:
            for is_self, addresses in ((True, own), (False, peers)):
                for address in addresses:
                    if len(address) <= 255:
                        session.merge(SwarmPeerRow(address=address, is_self=is_self, seen_at=now))
            session.flush()
            for is_self in (True, False):
                query = (
                    select(SwarmPeerRow)
                    .where(col(SwarmPeerRow.is_self) == is_self)
                    .order_by(col(SwarmPeerRow.seen_at).desc())
                )
                for row in session.exec(query.offset(SWARM_PEERS_KEPT)).all():
                    session.delete(row)

    def remembered_swarm(self) -> tuple[list[str], list[str]]:
        """(addresses that were ours, addresses of peers), newest first."""
        with self._session() as session:
            query = select(SwarmPeerRow).order_by(col(SwarmPeerRow.seen_at).desc())
            rows = session.exec(query).all()
        return [r.address for r in rows if r.is_self], [r.address for r in rows if not r.is_self]

    # --- what auditors say ---

    def save_report(self, signed: SignedReport, now: int) -> bool:
        """Keep an auditor's report in place of its last one; False for one that is not newer."""
        report = signed.report
        with self._session() as session:
            known = session.get(AuditReportRow, report.auditor.lower())
            if known is not None and known.sequence >= report.sequence:
                return False
            session.merge(
                AuditReportRow(
                    auditor=report.auditor.lower(),
                    sequence=report.sequence,
                    signed=to_text(signed),
                    received_at=now,
                )
            )
            return True

    def reports(self) -> dict[str, SignedReport]:
        """The newest report of each auditor, by its address in lower case."""
        with self._session() as session:
            rows = session.exec(select(AuditReportRow)).all()
        return {row.auditor: msgspec.json.decode(row.signed, type=SignedReport) for row in rows}

    # --- jobs ---

    def begin(self, job: Job, now: int) -> None:
        """Store a job that is about to be opened, in place of a failed one, not of another."""
        with self._session() as session:
            known = session.get(MatchedJobRow, job.job_id)
            if known is None or known.state == FAILED:
                _replace(session, job, now)

    def adopt(self, job: Job, now: int) -> None:
        """Store a job that the chain shows, in place of one with another plan.

        An order opens once, so what the chain shows is the only job that it can have.
        """
        with self._session() as session:
            known = session.get(MatchedJobRow, job.job_id)
            if known is None or known.plan_hash != job.plan_hash:
                _replace(session, job, now)

    def job(self, job_id: str) -> Job | None:
        """One job with everything about it."""
        with self._session() as session:
            return _read(session, [job_id]).get(job_id)

    def jobs(self, *, limit: int = 100, state: str | None = None) -> list[Job]:
        """Newest first."""
        with self._session() as session:
            query = select(MatchedJobRow.job_id).order_by(
                col(MatchedJobRow.created_at).desc(), col(MatchedJobRow.job_id)
            )
            if state is not None:
                query = query.where(col(MatchedJobRow.state) == state)
            ids = list(session.exec(query.limit(limit)).all())
            found = _read(session, ids)
        return [found[job_id] for job_id in ids]

    def unfinished(self) -> list[Job]:
        """Jobs that still need us, and those about which a rollback left doubt."""
        with self._session() as session:
            query = select(MatchedJobRow.job_id).where(
                col(MatchedJobRow.state).not_in(ENDED) | col(MatchedJobRow.stale)
            )
            return list(_read(session, list(session.exec(query).all())).values())

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        with self._session() as session:
            query = select(MatchedJobRow.state, func.count()).group_by(col(MatchedJobRow.state))
            return dict(session.exec(query).all())

    def change(self, change: JobChange, now: int) -> None:
        """Write down what was learnt about a job; unknown jobs are none of ours."""
        with self._session() as session:
            _change(session, change, now)

    def save_ack(self, job_id: str, signed: SignedAck, now: int) -> None:
        """Keep the newest acknowledgement."""
        with self._session() as session:
            session.merge(
                AckRow(
                    job_id=job_id,
                    ack=to_text(signed.ack),
                    signature=signed.signature,
                    received_at=now,
                )
            )

    def save_receipts(self, job_id: str, receipts: Sequence[SignedReceipt], now: int) -> None:
        """Keep one receipt of every stage, all or none."""
        with self._session() as session:
            for stage, signed in enumerate(receipts):
                text = to_text(signed)
                row = StageReceiptRow(job_id=job_id, stage=stage, signed=text, collected_at=now)
                session.merge(row)


def to_text(value: object) -> str:
    return to_json(value).decode()


def _change(session: Session, change: JobChange, now: int) -> None:
    row = session.get(MatchedJobRow, change.job_id)
    if row is None or change.plan_hash not in ("", row.plan_hash):
        return
    for name, value in change.values.items():
        setattr(row, name, value)
    row.updated_at = now


def _replace(session: Session, job: Job, now: int) -> None:
    """Write a job anew, in place of what is known of its order."""
    known = session.get(OrderRow, job.job_id)
    if known is not None:
        session.delete(known)
        session.flush()
        session.expunge_all()  # the database's cascade took the rest
    for row in _rows_of(job, now):
        session.add(row)
        session.flush()


def _rows_of(job: Job, now: int) -> Iterator[Any]:
    order = job.signed.order
    yield OrderRow(
        job_id=job.job_id,
        order_hash=signing.order_hash(order),
        requester=order.requester,
        model_id=order.model_id,
        signed=to_text(job.signed),
        received_at=now,
    )
    yield MatchedJobRow(
        job_id=job.job_id,
        plan_hash=job.plan_hash,
        state=job.state,
        locked_units=job.locked_units,
        deadline_s=order.deadline,
        created_at=now,
        updated_at=now,
    )
    for index, (stage, endpoint) in enumerate(zip(job.plan, job.endpoints, strict=True)):
        yield StageRow(
            job_id=job.job_id,
            stage=index,
            operator=stage.operator,
            layer_from=stage.layer_from,
            layer_to=stage.layer_to,
            endpoint=endpoint,
        )
    for signed in job.acceptances:
        yield AcceptanceRow(
            job_id=job.job_id,
            stage=signed.acceptance.stage,
            expiry_s=signed.acceptance.expiry,
            signature=signed.signature,
        )


def _read(session: Session, ids: Sequence[str]) -> dict[str, Job]:
    def by_job(table: Any) -> dict[str, list[Any]]:
        query = select(table).where(table.job_id.in_(ids))
        if hasattr(table, "stage"):
            query = query.order_by(table.stage)
        grouped: dict[str, list[Any]] = {}
        for row in session.exec(query).all():
            grouped.setdefault(row.job_id, []).append(row)
        return grouped

    orders, jobs, stages = by_job(OrderRow), by_job(MatchedJobRow), by_job(StageRow)
    acceptances, receipts, acks = by_job(AcceptanceRow), by_job(StageReceiptRow), by_job(AckRow)
    return {
        job_id: _job_of(
            orders[job_id][0],
            rows[0],
            stages[job_id],
            acceptances.get(job_id, []),
            receipts.get(job_id, []),
            acks.get(job_id, []),
        )
        for job_id, rows in jobs.items()
    }


def _job_of(
    order: OrderRow,
    job: MatchedJobRow,
    stages: list[StageRow],
    acceptances: list[AcceptanceRow],
    receipts: list[StageReceiptRow],
    acks: list[AckRow],
) -> Job:
    bound = (order.order_hash, job.plan_hash)
    acked = [SignedAck(msgspec.json.decode(a.ack, type=Ack), a.signature) for a in acks]
    return Job(
        job_id=job.job_id,
        signed=msgspec.json.decode(order.signed, type=SignedOrder),
        plan=tuple(Stage(s.operator, s.layer_from, s.layer_to) for s in stages),
        endpoints=tuple(s.endpoint for s in stages),
        acceptances=tuple(
            SignedAcceptance(Acceptance(*bound, a.stage, a.expiry_s), a.signature)
            for a in acceptances
        ),
        ack=next(iter(acked), None),
        receipts=tuple(msgspec.json.decode(row.signed, type=SignedReceipt) for row in receipts),
        **{name: getattr(job, name) for name in _SAME},
    )


#: Fields that a job and its row share.
_SAME = sorted({f.name for f in fields(Job)} & set(MatchedJobRow.model_fields) - {"job_id"})
