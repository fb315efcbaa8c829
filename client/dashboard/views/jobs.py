"""Jobs and receipts: what was asked, how far it is, what it cost, who signed for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.dashboard.views.common import RequestLine
from client.dashboard.views.explorer import EventLine
from client.gateway.copied import copied
from core.protocol.types import JobState, SignedReceipt

ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True)
class BatchLine:
    """A file of requests on its way through the network."""

    batch_id: str
    model: str
    status: str
    done: int
    failed: int
    total: int
    tokens_in: int
    tokens_out: int
    reserved_units: int
    cost_units: int
    created_at: int
    in_progress_at: int | None
    ended_at: int | None
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    receipts_file_id: str | None
    errors: tuple[str, ...]
    left_s: float | None
    lines_per_s: float | None

    @property
    def is_over(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True)
class OrderLine:
    """One order on chain."""

    job_id: str
    name: str  # what its owner calls it; "" for one without a name
    kind: str  # file, batch or session: what its requests came as
    batch_id: str | None
    state: str
    is_running: bool  # whether a program on this machine sees to it now
    created_at: int
    requests: int
    finished: int
    tokens_out: int
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Jobs:
    """The page: batches, single requests, and the orders on chain below them."""

    batches: tuple[BatchLine, ...]
    jobs: tuple[OrderLine, ...]
    requests: tuple[RequestLine, ...]
    models: tuple[str, ...]
    at_ms: int


@dataclass(frozen=True)
class AnswerLine:
    """One line of a batch, or one request of a job. Texts are for the owner's session only."""

    index: int
    finish: str
    tokens_out: int
    job_id: str
    custom_id: str = ""
    tokens_in: int = 0
    text: str | None = None


@dataclass(frozen=True)
class FailedLine:
    """A line of a batch that was not answered, and why."""

    custom_id: str
    code: str
    why: str


@dataclass(frozen=True)
class BatchPage:
    """One batch; the first of its failed lines once it is over, for the owner's session only."""

    batch: BatchLine
    answers: tuple[AnswerLine, ...]
    failures: tuple[FailedLine, ...]
    job_ids: tuple[str, ...]
    may_see_texts: bool
    at_ms: int


@dataclass(frozen=True)
class StageLine:
    """One stage of a job's plan and what it signed for."""

    stage: int
    operator: str
    layers: tuple[int, int]
    receipts: int
    requests_covered: int


@dataclass(frozen=True)
class SignatureLine:
    """A stage's signature over its work."""

    receipt_id: str
    stage: int
    covers: str
    tokens_in: int
    tokens_out: int
    signed_at: int


@dataclass(frozen=True)
class JobPage:
    """One order on chain, from our records and from the chain's."""

    job: OrderLine
    on_chain: str
    locked_units: int
    model_id: str
    model: str
    disputes: tuple[str, ...]
    requester: str
    deadline: int
    window: int
    price_in: int
    price_out: int
    max_tokens_in: int
    max_tokens_out: int
    transaction: str
    stages: tuple[StageLine, ...]
    answers: tuple[AnswerLine, ...]
    receipts: tuple[SignatureLine, ...]
    events: tuple[EventLine, ...]
    batch_ids: tuple[str, ...]
    may_see_texts: bool
    at_ms: int


def batch_line(row: Any, now_s: float) -> BatchLine:
    """A stored batch, with the pace at which its lines end."""
    began = row.in_progress_at
    over = row.ended_at is not None
    ended_lines = row.lines_done + row.lines_failed
    pace = None
    if began is not None and ended_lines:
        pace = ended_lines / max(1.0, (row.ended_at if over else now_s) - began)
    return copied(
        BatchLine,
        row,
        done=row.lines_done,
        failed=row.lines_failed,
        total=row.lines_total,
        errors=tuple(_error_text(error) for error in json.loads(row.errors)),
        left_s=(row.lines_total - ended_lines) / pace if pace and not over else None,
        lines_per_s=pace,
    )


def answer_line(
    row: Any,
    read: Callable[[list[int]], str] | None,
    *,
    index: int,
    custom_id: str = "",
    tokens_in: int = 0,
) -> AnswerLine:
    """A kept answer, its text where it may be `read`."""
    tokens: list[int] = json.loads(row.tokens)
    return AnswerLine(
        index=index,
        finish=row.finish,
        tokens_out=len(tokens),
        job_id=row.job_id,
        custom_id=custom_id,
        tokens_in=tokens_in,
        text=read(tokens) if read else None,
    )


def failed_line(line: str) -> FailedLine:
    """A line of a batch's error file."""
    told = json.loads(line)
    error = told.get("error") or {}
    return FailedLine(
        str(told.get("custom_id") or ""), str(error.get("code")), str(error.get("message"))
    )


def _error_text(error: Any) -> str:
    if isinstance(error, Mapping):
        where = f"line {error['line']}: " if error.get("line") is not None else ""
        return where + str(error.get("message") or error.get("what") or error.get("code") or error)
    return str(error)


def job_line(
    row: Any, requests: Iterable[Any], submitted: Any = None, *, is_running: bool = False
) -> OrderLine:
    """A job of our own records; `submitted` is the `client submit` that it is part of, if any."""
    listed = list(requests)
    batch_id = row.submission if row.submission.startswith("batch_") else None
    return copied(
        OrderLine,
        row,
        name=submitted.name if submitted is not None else "",
        kind="batch" if batch_id else "session" if submitted is None else "file",
        batch_id=batch_id,
        is_running=is_running,
        requests=len(listed),
        finished=sum(bool(request.finish) for request in listed),
        tokens_out=sum(len(json.loads(request.tokens)) for request in listed),
        operators=tuple(stage["operator"] for stage in json.loads(row.plan)),
    )


def receipt_lines(held: Sequence[tuple[Any, SignedReceipt]]) -> tuple[SignatureLine, ...]:
    return tuple(
        SignatureLine(
            receipt_id=row.receipt_id,
            stage=row.stage,
            covers="whole job" if row.request_index < 0 else f"request {row.request_index}",
            tokens_in=signed.receipt.tokens_in,
            tokens_out=signed.receipt.tokens_out,
            signed_at=signed.receipt.signed_at,
        )
        for row, signed in held
    )


def stage_lines(
    plan: Sequence[Any], held: Sequence[tuple[Any, SignedReceipt]]
) -> tuple[StageLine, ...]:
    """Each stage with the requests its receipts cover."""
    lines = []
    for index, stage in enumerate(plan):
        of_stage = [signed for row, signed in held if row.stage == index]
        covered = {leaf.request_index for signed in of_stage for leaf in signed.leaves}
        lines.append(
            StageLine(
                index,
                stage.operator,
                (stage.layer_from, stage.layer_to),
                len(of_stage),
                len(covered),
            )
        )
    return tuple(lines)


def state_name(state: int) -> str:
    """A job's state on chain in one word."""
    return JobState(state).name.lower()
