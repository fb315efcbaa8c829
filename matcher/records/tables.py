"""What does a matcher remember between two starts? One table per kind of fact.

Money is an integer of base units and time an integer of seconds; signed values are kept as the JSON
they travel in, so that a signature can always be checked again. `migrations/` builds exactly these
tables.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, String, Text
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel


class MatcherTable(SQLModel, registry=registry()):
    """The matcher's own metadata: another program's tables in the same process are none of ours."""


def _hash(
    *, primary_key: bool = False, unique: bool | None = None, index: bool | None = None
) -> Column[str]:
    return Column(String(66), nullable=False, primary_key=primary_key, unique=unique, index=index)


def _big(*, nullable: bool = False) -> Column[int]:
    return Column(BigInteger, nullable=nullable)


def _text(*, nullable: bool = False) -> Column[str]:
    return Column(Text, nullable=nullable)


def _job_part() -> Column[str]:
    return Column(
        String(66), ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True, nullable=False
    )


class ModelRow(MatcherTable, table=True):
    """A model of the ModelRegistry."""

    __tablename__ = "models"
    model_id: str = Field(sa_column=_hash(primary_key=True))
    spec: str = Field(sa_column=_text())
    block_number: int = Field(sa_column=_big())


class MinerRow(MatcherTable, table=True):
    """An operator that was seen in the swarm, as it was last seen."""

    __tablename__ = "miners"
    operator: str = Field(sa_column=Column(String(42), primary_key=True, nullable=False))
    owner: str = Field(sa_column=Column(String(42), nullable=False))
    stake_units: int = Field(sa_column=_big())
    can_work: bool
    state: str = Field(sa_column=Column(String(16), nullable=False))
    endpoint: str = Field(sa_column=Column(String(255), nullable=False))
    first_seen_at: int = Field(sa_column=_big())
    last_seen_at: int = Field(sa_column=_big())


class OrderRow(MatcherTable, table=True):
    """An order that found a pipeline."""

    __tablename__ = "orders"
    job_id: str = Field(sa_column=_hash(primary_key=True))
    order_hash: str = Field(sa_column=_hash(unique=True))
    requester: str = Field(sa_column=Column(String(42), nullable=False, index=True))
    model_id: str = Field(sa_column=_hash(index=True))
    signed: str = Field(sa_column=_text())
    received_at: int = Field(sa_column=_big())


class MatchedJobRow(MatcherTable, table=True):
    """Where a job stands, since block `state_block`: a lost block can be undone."""

    __tablename__ = "jobs"
    job_id: str = Field(
        sa_column=Column(
            String(66), ForeignKey("orders.job_id", ondelete="CASCADE"), primary_key=True
        )
    )
    plan_hash: str = Field(sa_column=_hash())
    state: str = Field(sa_column=Column(String(16), nullable=False, index=True))
    state_block: int = Field(default=0, sa_column=_big())
    stale: bool = False
    locked_units: int = Field(sa_column=_big())
    deadline_s: int = Field(sa_column=_big())
    final_at_s: int = Field(default=0, sa_column=_big())
    finished_at_s: int = Field(default=0, sa_column=_big())
    tokens_in: int = Field(default=0, sa_column=_big())
    tokens_out: int = Field(default=0, sa_column=_big())
    paid_units: int | None = Field(default=None, sa_column=_big(nullable=True))
    refunded_units: int | None = Field(default=None, sa_column=_big(nullable=True))
    withheld_units: int | None = Field(default=None, sa_column=_big(nullable=True))
    open_tx: str = Field(default="", sa_column=Column(String(66), nullable=False))
    deliver_tx: str = Field(default="", sa_column=Column(String(66), nullable=False))
    end_tx: str = Field(default="", sa_column=Column(String(66), nullable=False))
    failure: str = Field(default="", sa_column=_text())
    created_at: int = Field(sa_column=_big())
    updated_at: int = Field(sa_column=_big())
    #: Hash of the newest block that showed that its receipts are signed, for the lots of audits.
    beacon: str = Field(default="", sa_column=Column(String(66), nullable=False, server_default=""))


class StageRow(MatcherTable, table=True):
    """One stage of a job's plan, and where its operator answered when it accepted."""

    __tablename__ = "stages"
    job_id: str = Field(sa_column=_job_part())
    stage: int = Field(primary_key=True)
    operator: str = Field(sa_column=Column(String(42), nullable=False, index=True))
    layer_from: int
    layer_to: int
    endpoint: str = Field(sa_column=Column(String(255), nullable=False))


class AcceptanceRow(MatcherTable, table=True):
    """A stage's signed consent and until when it holds; none of a job adopted from the chain."""

    __tablename__ = "acceptances"
    job_id: str = Field(sa_column=_job_part())
    stage: int = Field(primary_key=True)
    expiry_s: int = Field(sa_column=_big())
    signature: str = Field(sa_column=Column(String(132), nullable=False))


class StageReceiptRow(MatcherTable, table=True):
    """The newest receipt of a stage over its finished requests."""

    __tablename__ = "receipts"
    job_id: str = Field(sa_column=_job_part())
    stage: int = Field(primary_key=True)
    signed: str = Field(sa_column=_text())
    collected_at: int = Field(sa_column=_big())


class AckRow(MatcherTable, table=True):
    """The requester's acknowledgement."""

    __tablename__ = "acks"
    job_id: str = Field(sa_column=_job_part())
    ack: str = Field(sa_column=_text())
    signature: str = Field(sa_column=Column(String(132), nullable=False))
    received_at: int = Field(sa_column=_big())


class AuditReportRow(MatcherTable, table=True):
    """The newest report of an auditor that was believed when it came."""

    __tablename__ = "audit_reports"
    auditor: str = Field(sa_column=Column(String(42), primary_key=True, nullable=False))
    sequence: int = Field(sa_column=_big())
    signed: str = Field(sa_column=_text())
    received_at: int = Field(sa_column=_big())


class KeptRow(MatcherTable, table=True):
    """Something that is made once, such as the secret that lots are drawn with."""

    __tablename__ = "kept"
    name: str = Field(sa_column=Column(String(32), primary_key=True, nullable=False))
    value: str = Field(sa_column=_text())


class AuditedJobRow(MatcherTable, table=True):
    """Requests of a job whose lots have fallen: a JSON list that outlives the job's row."""

    __tablename__ = "audited_jobs"
    job_id: str = Field(sa_column=_hash(primary_key=True))
    fallen: str = Field(sa_column=_text())


class AuditLotRow(MatcherTable, table=True):
    """A request drawn for an auditor, its fee, the finding ('': none yet) and its payment."""

    __tablename__ = "audit_lots"
    job_id: str = Field(sa_column=_hash(primary_key=True))
    request: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    auditor: str = Field(sa_column=Column(String(42), nullable=False, index=True))
    fee_units: int = Field(sa_column=_big())
    drawn_at: int = Field(sa_column=Column(BigInteger, nullable=False, index=True))
    due_at: int = Field(sa_column=_big())
    found: str = Field(default="", sa_column=Column(String(16), nullable=False))
    stage: int = 0
    signature: str = Field(default="", sa_column=Column(String(132), nullable=False))
    found_at: int = Field(default=0, sa_column=_big())
    payment: int | None = Field(
        default=None, sa_column=Column(BigInteger, nullable=True, index=True)
    )


class AuditPaymentRow(MatcherTable, table=True):
    """A transfer to an auditor, stored signed before it is sent. `state` is a `Fate`."""

    __tablename__ = "audit_payments"
    number: int | None = Field(default=None, primary_key=True)
    auditor: str = Field(sa_column=Column(String(42), nullable=False))
    amount_units: int = Field(sa_column=_big())
    prepared: str = Field(sa_column=_text())
    tx_hash: str = Field(sa_column=_hash(unique=True))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    is_final: bool = False
    created_at: int = Field(sa_column=_big())


class SwarmPeerRow(MatcherTable, table=True):
    """A multiaddress of the swarm: ours in an earlier life, or of a peer to join through."""

    __tablename__ = "swarm_peers"
    address: str = Field(sa_column=Column(String(255), primary_key=True, nullable=False))
    is_self: bool
    seen_at: int = Field(sa_column=_big())


class CursorRow(MatcherTable, table=True):
    """How far the event follower is, and on which network: a database belongs to one deployment."""

    __tablename__ = "cursor"
    name: str = Field(sa_column=Column(String(16), primary_key=True, nullable=False))
    chain_id: int = Field(sa_column=_big())
    task_registry: str = Field(sa_column=Column(String(42), nullable=False))
    position: str = Field(sa_column=_text())


METADATA = MatcherTable.metadata
