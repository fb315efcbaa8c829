"""What does the gateway remember between two starts? One table per kind of fact.

Money is an integer of base units (`_units`), time an integer of seconds since 1970 (`_at`) or of
milliseconds (`_ms`), days are UTC (`2026-11-21`). `migrations/` builds exactly these tables.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

#: States of a request. Only `running` holds a reservation.
RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"
INTERRUPTED = "interrupted"
#: Few requests have an answer that is kept; only these are in its index.
_KEPT = text("keep_until > 0")


class GatewayTable(SQLModel, registry=registry()):
    """The gateway's own metadata: another program's tables in the same process are none of ours."""


def _id(*, primary_key: bool = False, index: bool | None = None) -> Column[str]:
    return Column(String(80), nullable=False, primary_key=primary_key, index=index)


def _big(*, nullable: bool = False) -> Column[int]:
    return Column(BigInteger, nullable=nullable)


def _text(*, nullable: bool = False) -> Column[str]:
    return Column(Text, nullable=nullable)


def _short(length: int = 64, *, nullable: bool = False, index: bool | None = None) -> Column[str]:
    return Column(String(length), nullable=nullable, index=index)


def _gateway() -> Column[str]:
    """The gateway that works on a row; "" where it was written before gateways had names."""
    return Column(String(80), nullable=False, server_default="")


def _part_of(table: str, column: str) -> Column[str]:
    return Column(
        String(80),
        ForeignKey(f"{table}.{column}", ondelete="CASCADE"),
        primary_key=True,
        nullable=False,
    )


class KeyRow(GatewayTable, table=True):
    """An API key and its limits; None is no limit. `spent_units` is of its whole life."""

    __tablename__ = "api_keys"
    key_id: str = Field(sa_column=_id(primary_key=True))
    name: str = Field(sa_column=_short(120))
    secret_hash: str = Field(sa_column=Column(String(64), nullable=False, unique=True))
    hint: str = Field(sa_column=_short(32))
    created_at: int = Field(sa_column=_big())
    expires_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    revoked_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    last_used_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    budget_units: int | None = Field(default=None, sa_column=_big(nullable=True))
    budget_period: str = Field(default="total", sa_column=_short(8))  # total, day
    models: str = Field(default="[]", sa_column=_text())  # JSON list; empty: every model
    tags: str = Field(
        default="[]", sa_column=Column(Text, nullable=False, server_default="[]")
    )  # JSON list
    requests_per_minute: int | None = Field(default=None, sa_column=_big(nullable=True))
    tokens_per_minute: int | None = Field(default=None, sa_column=_big(nullable=True))
    spent_units: int = Field(default=0, sa_column=_big())
    reserved_units: int = Field(default=0, sa_column=_big())


class LoginRow(GatewayTable, table=True):
    """A link that opens the pages, until it is used; its secret is not kept."""

    __tablename__ = "logins"
    token_hash: str = Field(sa_column=Column(String(64), primary_key=True, nullable=False))
    expires_at: int = Field(sa_column=_big())


class UsageRow(GatewayTable, table=True):
    """What a key used of a model on one day."""

    __tablename__ = "usage_days"
    key_id: str = Field(sa_column=_part_of("api_keys", "key_id"))
    day: str = Field(sa_column=Column(String(10), primary_key=True, nullable=False))
    model: str = Field(sa_column=Column(String(120), primary_key=True, nullable=False))
    requests: int = Field(default=0, sa_column=_big())
    failed: int = Field(default=0, sa_column=_big())
    tokens_in: int = Field(default=0, sa_column=_big())
    tokens_out: int = Field(default=0, sa_column=_big())
    cost_units: int = Field(default=0, sa_column=_big())


class PaidRequestRow(GatewayTable, table=True):
    """One paid request, from its reservation to what it cost.

    `answer` is a retry's answer until `keep_until`, which is 0 where nothing is kept. `begun_at` is
    set with the first token: from there on the request may have cost something.
    """

    __tablename__ = "requests"
    __table_args__ = (
        UniqueConstraint("key_id", "idempotency_key"),
        Index("ix_requests_body", "key_id", "body_hash"),
        Index("ix_requests_kept", "keep_until", sqlite_where=_KEPT, postgresql_where=_KEPT),
    )
    request_id: str = Field(sa_column=_id(primary_key=True))
    receipt_id: str = Field(sa_column=Column(String(80), nullable=False, unique=True))
    key_id: str = Field(sa_column=_id(index=True))
    gateway_id: str = Field(sa_column=_gateway())
    created_at: int = Field(sa_column=Column(BigInteger, nullable=False, index=True))
    endpoint: str = Field(sa_column=_short(40))
    model: str = Field(sa_column=_short(120))
    state: str = Field(sa_column=_short(16, index=True))
    body_hash: str = Field(sa_column=_short(64))
    idempotency_key: str | None = Field(default=None, sa_column=_short(255, nullable=True))
    reserved_units: int = Field(default=0, sa_column=_big())
    begun_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    ended_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    cost_units: int = Field(default=0, sa_column=_big())
    tokens_in: int = Field(default=0, sa_column=_big())
    tokens_out: int = Field(default=0, sa_column=_big())
    first_token_ms: int | None = Field(default=None, sa_column=_big(nullable=True))
    took_ms: int | None = Field(default=None, sa_column=_big(nullable=True))
    error_code: str = Field(default="", sa_column=_short(64))
    is_checked: bool | None = None  # by an audit; None: nobody looked
    answer: str | None = Field(default=None, sa_column=_text(nullable=True))
    answer_status: int = 0
    keep_until: int = Field(default=0, sa_column=_big())


class AnswerRow(GatewayTable, table=True):
    """One answer of a request (each prompt has `n`): which job gave it and what that cost."""

    __tablename__ = "answers"
    request_id: str = Field(sa_column=_part_of("requests", "request_id"))
    answer_index: int = Field(primary_key=True)
    job_id: str = Field(sa_column=_short(66, index=True))
    job_request: int
    operators: str = Field(sa_column=_text())  # JSON list, first stage first
    tokens_in: int = Field(sa_column=_big())
    tokens_out: int = Field(sa_column=_big())
    cost_units: int = Field(sa_column=_big())
    finish: str = Field(sa_column=_short(16))
    is_partial: bool


class FileRow(GatewayTable, table=True):
    """A stored file; its bytes lie in the gateway's folder under its id."""

    __tablename__ = "files"
    file_id: str = Field(sa_column=_id(primary_key=True))
    key_id: str = Field(sa_column=_id(index=True))
    filename: str = Field(sa_column=_short(255))
    purpose: str = Field(sa_column=_short(24))
    size_bytes: int = Field(sa_column=_big())
    created_at: int = Field(sa_column=_big())
    expires_at: int | None = Field(default=None, sa_column=_big(nullable=True))


class BatchRow(GatewayTable, table=True):
    """A batch: one order over a file of requests, and how far it is."""

    __tablename__ = "batches"
    batch_id: str = Field(sa_column=_id(primary_key=True))
    receipt_id: str = Field(sa_column=Column(String(80), nullable=False, unique=True))
    key_id: str = Field(sa_column=_id(index=True))
    gateway_id: str = Field(sa_column=_gateway())
    input_file_id: str = Field(sa_column=_id())
    endpoint: str = Field(sa_column=_short(40))
    model: str = Field(default="", sa_column=_short(120))
    status: str = Field(sa_column=_short(16, index=True))
    completion_window: str = Field(sa_column=_short(8))
    extras: str = Field(default="{}", sa_column=_text())  # the caller's metadata, JSON
    terms: str = Field(default="{}", sa_column=_text())  # AskTerms, JSON
    errors: str = Field(default="[]", sa_column=_text())  # why validation failed, JSON
    created_at: int = Field(sa_column=_big())
    expires_at: int = Field(sa_column=_big())
    in_progress_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    finalizing_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    cancelling_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    ended_at: int | None = Field(default=None, sa_column=_big(nullable=True))
    output_file_id: str | None = Field(default=None, sa_column=_short(80, nullable=True))
    error_file_id: str | None = Field(default=None, sa_column=_short(80, nullable=True))
    receipts_file_id: str | None = Field(default=None, sa_column=_short(80, nullable=True))
    lines_total: int = 0
    lines_done: int = 0
    lines_failed: int = 0
    reserved_units: int = Field(default=0, sa_column=_big())
    cost_units: int = Field(default=0, sa_column=_big())
    tokens_in: int = Field(default=0, sa_column=_big())
    tokens_out: int = Field(default=0, sa_column=_big())


class BatchAnswerRow(GatewayTable, table=True):
    """A finished answer of a batch, kept at once: a restart does not ask for it again."""

    __tablename__ = "batch_answers"
    batch_id: str = Field(sa_column=_part_of("batches", "batch_id"))
    line_number: int = Field(primary_key=True)
    answer_index: int = Field(primary_key=True)
    job_id: str = Field(sa_column=_short(66, index=True))
    job_request: int
    operators: str = Field(sa_column=_text())
    tokens: str = Field(sa_column=_text())  # JSON list of ids
    logprobs: str = Field(default="null", sa_column=_text())
    finish: str = Field(sa_column=_short(16))
    ended_at: int = Field(sa_column=_big())


class ResponseRow(GatewayTable, table=True):
    """A response that its key may read again, and go on from."""

    __tablename__ = "responses"
    response_id: str = Field(sa_column=_id(primary_key=True))
    key_id: str = Field(sa_column=_id(index=True))
    created_at: int = Field(sa_column=_big())
    previous_id: str | None = Field(default=None, sa_column=_short(80, nullable=True))
    items: str = Field(sa_column=_text())  # those of its request, JSON list
    body: str = Field(sa_column=_text())  # as it was told, JSON
    size_bytes: int = Field(sa_column=_big())


METADATA = GatewayTable.metadata
