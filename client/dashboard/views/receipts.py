"""The receipt of a paid request, and what a stage signed for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client.dashboard.views.common import RequestLine, request_line
from client.dashboard.views.jobs import SignatureLine, receipt_lines
from client.gateway.copied import copied
from core.protocol.types import SignedReceipt


@dataclass(frozen=True)
class PaidAnswer:
    """One answer of a request: which order gave it and what that cost."""

    index: int
    job_id: str
    job_request: int
    operators: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    cost_units: int
    finish: str
    is_partial: bool


@dataclass(frozen=True)
class ReceiptPage:
    """The page of a paid request."""

    line: RequestLine
    answers: tuple[PaidAnswer, ...]
    receipts: tuple[SignatureLine, ...]
    at_ms: int


@dataclass(frozen=True)
class StageReceiptPage:
    """The page of a stage's signature."""

    receipt_id: str
    job_id: str
    stage: int
    operator: str
    layers: tuple[int, int]
    requests: int
    tokens_in: int
    tokens_out: int
    signed_at: int
    roots: dict[str, str]
    signature: str


def receipt_page(
    row: Any, answers: Sequence[Any], held: Sequence[tuple[Any, SignedReceipt]], now_ms: int
) -> ReceiptPage:
    return ReceiptPage(
        line=request_line(row, answers),
        answers=tuple(
            copied(PaidAnswer, a, index=a.answer_index, operators=tuple(json.loads(a.operators)))
            for a in answers
        ),
        receipts=receipt_lines(held),
        at_ms=now_ms,
    )


def stage_receipt_page(row: Any, signed: SignedReceipt, operator: str) -> StageReceiptPage:
    receipt = signed.receipt
    return copied(
        StageReceiptPage,
        receipt,
        receipt_id=row.receipt_id,
        job_id=row.job_id,
        operator=operator,
        layers=(receipt.layer_from, receipt.layer_to),
        roots={
            "inputs": receipt.input_root,
            "outputs": receipt.output_root,
            "requests": receipt.requests_root,
            "shard": receipt.shard_root,
            "plan": receipt.plan_hash,
            "order": receipt.order_hash,
        },
        signature=signed.signature,
    )
