"""What did stages sign for the requests of jobs? Read from the requester's own records."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from client.records.store import receipt_hash
from core.protocol import ids

if TYPE_CHECKING:
    from client.records.store import ClientStore


async def stage_receipts(
    store: ClientStore | None, wanted: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """What stages signed for these requests of jobs, first stage first; {} without a store."""
    if store is None or not wanted:
        return {}
    return await asyncio.to_thread(_stage_receipts, store, set(wanted))


def _stage_receipts(
    store: ClientStore, wanted: set[tuple[str, int]]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for job_id in {job for job, _ in wanted if job}:
        requests = [index for job, index in wanted if job == job_id]
        for row, signed in store.receipts(job_id, requests):
            for leaf in signed.leaves:
                index = leaf.request_index
                if (job_id, index) in wanted:
                    shown = {
                        "receipt": ids.full(ids.Kind.RECEIPT, receipt_hash(signed)),
                        "stage": row.stage,
                        "layers": [signed.receipt.layer_from, signed.receipt.layer_to],
                        "tokens_in": signed.receipt.tokens_in,
                        "tokens_out": signed.receipt.tokens_out,
                        "signature": signed.signature,
                        "signed": msgspec.to_builtins(signed.receipt),
                    }
                    found.setdefault((job_id, index), []).append(shown)
    return found
