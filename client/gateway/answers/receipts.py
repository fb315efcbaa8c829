"""What does a receipt show: what was charged for a request, and what every stage signed for it?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from client.gateway.errors import NotOffered, ReceiptUnknown
from client.gateway.money.ledger import answer_json
from client.gateway.money.signed import stage_receipts
from client.records.store import match_of
from core.protocol import ids
from core.protocol.errors import IdInvalid

if TYPE_CHECKING:
    from client.gateway.gateway import Gateway
    from client.gateway.records.tables import PaidRequestRow


async def receipt(gateway: Gateway, typed: str, key_id: str | None) -> dict[str, Any]:
    """A request's receipt, by its id, the request's, or a stage's own. Raises ReceiptUnknown."""
    row = await gateway.ledger.request(typed, key_id) if typed else None
    if row is None and gateway.store is not None and typed:
        row = await _by_stage_receipt(gateway, typed, key_id)
    if row is None:
        raise ReceiptUnknown(f"there is no receipt '{typed[:80]}'", "this key has no such receipt")
    return await receipt_json(gateway, row)


async def receipt_json(gateway: Gateway, row: PaidRequestRow) -> dict[str, Any]:
    """Everything that is known of a request, in the words of its bill."""
    answers = await gateway.ledger.answers(row.request_id)
    signed = await stage_receipts(gateway.store, {(a.job_id, a.job_request) for a in answers})
    return {
        "object": "receipt",
        "id": row.receipt_id,
        "request": row.request_id,
        "created": row.created_at,
        "endpoint": row.endpoint,
        "model": row.model,
        "state": row.state,
        "partial": any(answer.is_partial for answer in answers),
        "tokens_in": row.tokens_in,
        "tokens_out": row.tokens_out,
        "cost_units": row.cost_units,
        "cost": gateway.show(row.cost_units),
        "reserved_units": row.reserved_units,
        "first_token_ms": row.first_token_ms,
        "took_ms": row.took_ms,
        "error": row.error_code or None,
        "answers": [
            answer_json(answer) | {"receipts": signed.get((answer.job_id, answer.job_request), [])}
            for answer in answers
        ],
    }


async def job(gateway: Gateway, typed: str, key_id: str | None) -> dict[str, Any]:
    """A job on chain and the requests of this key that it answered. Raises NotOffered."""
    job_id = await _job_id(gateway, typed)
    answers = await gateway.ledger.of_job(job_id)
    mine = [a for a in answers if await gateway.ledger.request(a.request_id, key_id) is not None]
    if not mine and key_id is not None:
        raise NotOffered(f"there is no job '{typed[:80]}'", "this key has no such job")
    shown: dict[str, Any] = {
        "object": "job",
        "id": ids.full(ids.Kind.JOB, job_id),
        "job_id": job_id,
        "requests": [answer_json(a) | {"request": a.request_id} for a in mine],
        "cost_units": sum(a.cost_units for a in mine),
        "cost": gateway.show(sum(a.cost_units for a in mine)),
    }
    if gateway.store is not None:
        row = await asyncio.to_thread(gateway.store.find_job, job_id)
        match = match_of(row)
        shown |= {
            "state": row.state,
            "transaction": row.tx_hash,
            "plan": [
                {"operator": s.operator, "layers": [s.layer_from, s.layer_to]} for s in match.plan
            ],
            "order": msgspec.to_builtins(match.signed.order),
        }
    return shown


async def _job_id(gateway: Gateway, typed: str) -> str:
    if typed.startswith("0x") and len(typed) == 66:
        return typed
    try:
        if gateway.store is not None:
            return (await asyncio.to_thread(gateway.store.find_job, typed)).job_id
    except IdInvalid:
        pass
    raise NotOffered(f"there is no job '{typed[:80]}'", "an id is job_… or 0x and 64 digits")


async def _by_stage_receipt(
    gateway: Gateway, typed: str, key_id: str | None
) -> PaidRequestRow | None:
    assert gateway.store is not None
    try:
        row, _ = await asyncio.to_thread(gateway.store.find_receipt, typed)
    except IdInvalid:
        return None
    for answer in await gateway.ledger.of_job(row.job_id):
        if answer.job_request == row.request_index:
            return await gateway.ledger.request(answer.request_id, key_id)
    return None
