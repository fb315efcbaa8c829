"""Which peers may see what this miner signed for, and what are they given?

Prompts and activations go to the requester, its auditor, an auditor it delegated, the stages of the
same plan, and the drawn jurors of an open dispute; to nobody else, because they are a requester's
words. Receipts go to the order's matcher too.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from core.money.spending import payers
from core.protocol import commit, signing, wire
from core.protocol import types as t
from miner.records.store import MinerStore, StoredJob

UNAUTHORISED = "E-PEER-AUTH"
NOT_KEPT = "E-JOB-NOT-KEPT"
#: A frame of rows stays well below the wire's limit.
MAX_ROWS_BYTES = 4 * 2**20
MAX_RECEIPTS_BYTES = 6 * 2**20
#: Of a neighbour's words, the first ones: some 700 bytes each.
MAX_WORDS = 2000

Fetch = wire.FetchOpening | wire.FetchRows | wire.FetchReceipts
Answer = wire.AnyMessage | tuple[wire.AnyMessage, bytes]


def may_see(
    peer: str,
    job: StoredJob,
    ask: Fetch,
    *,
    domain: signing.Domain,
    now_s: int,
    jurors: Iterable[str] = (),
) -> bool:
    """Whether `peer`, or as one of its open disputes' `jurors`, may be shown this job."""
    who, order = peer.lower(), job.order
    insiders = {*payers(job.signed, domain), order.auditor, *jurors}
    insiders |= {stage.operator for stage in job.plan}
    if isinstance(ask, wire.FetchReceipts):  # hashes and counts, which it delivers
        insiders.add(order.matcher)
    if who in {insider.lower() for insider in insiders} - {t.ZERO_ADDRESS}:
        return True
    return is_delegated(who, job, ask, domain=domain, now_s=now_s)


def is_delegated(
    peer: str, job: StoredJob, ask: Fetch, *, domain: signing.Domain, now_s: int
) -> bool:
    """Whether this carries a requester's valid delegation to this peer for this order."""
    delegation = ask.delegation
    if delegation is None:
        return False
    by = signing.recover(domain, delegation, ask.delegation_signature or "")
    return (
        by is not None
        and by.lower() in payers(job.signed, domain)
        and delegation.order_hash == job.order_hash
        and delegation.auditor.lower() == peer.lower()
        and delegation.expiry > now_s
    )


def answer(store: MinerStore, job: StoredJob, ask: Fetch) -> Answer:
    """What an authorised peer is given. Failed when the content is not kept here."""
    if isinstance(ask, wire.FetchReceipts):
        place = job.order_hash, job.plan_hash
        words = store.words(*place, MAX_WORDS)
        return wire.Receipts(_that_fit(store.receipts(*place)), words)
    if isinstance(ask, wire.FetchOpening):
        opening = store.opening(job.order_hash, ask.request)
        return opening if opening is not None else _not_kept(ask.request)
    found = store.rows(
        job.order_hash, job.plan_hash, ask.request, ask.side, ask.start, _most_rows(ask, store, job)
    )
    if found is None:
        return _not_kept(ask.request)
    data, row_bytes, total = found
    rows = wire.Rows(
        start=ask.start,
        rows=len(data) // row_bytes,
        row_bytes=row_bytes,
        total=total,
        beside=_beside(ask, store, job),
    )
    return rows, data


def _beside(ask: wire.FetchRows, store: MinerStore, job: StoredJob) -> str | None:
    """What a last stage signed beside these rows: the root of its state rows, or of its tokens."""
    place = job.order_hash, job.plan_hash
    if ask.side not in ("out", "states") or not job.is_last:
        return None
    if ask.side == "out":
        return store.leaves(*place, ask.request)[ask.request].states_root
    tokens = store.rows(*place, ask.request, "out", 0, 2**20)
    return commit.to_hex(commit.rows_root(*tokens[:2])) if tokens else None


def _most_rows(ask: wire.FetchRows, store: MinerStore, job: StoredJob) -> int:
    probe = store.rows(job.order_hash, job.plan_hash, ask.request, ask.side, 0, 0)
    row_bytes = probe[1] if probe else 1
    return min(ask.count, max(1, MAX_ROWS_BYTES // row_bytes))


def _that_fit(signed: list[t.SignedReceipt]) -> list[t.SignedReceipt]:
    """As many receipts as a header holds: over most requests first, of equals the oldest."""
    chosen, room = [], MAX_RECEIPTS_BYTES
    for receipt in sorted(signed, key=lambda one: -one.receipt.requests):
        room -= len(msgspec.msgpack.encode(receipt))
        if room < 0:
            break
        chosen.append(receipt)
    return chosen


def _not_kept(request: int) -> wire.Failed:
    return wire.Failed(code=NOT_KEPT, reason=f"request {request} is not kept by this stage")
