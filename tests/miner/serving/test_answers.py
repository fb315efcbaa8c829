"""Who is shown a job's content."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.protocol import signing, wire
from core.protocol import types as t
from miner.records.store import StoredJob
from miner.serving.answers import MAX_RECEIPTS_BYTES, _that_fit, may_see
from tests.frames import encode
from tests.miner.chain.test_admission import BEFORE, ME, ORDER, PLAN, REQUESTER
from tests.town.orders import DOMAIN, NOW_S, key

AUDITOR, FRIEND, JUROR, STRANGER = key(20), key(21), key(22), key(23)
JOB = StoredJob(
    signed=t.SignedOrder(
        order=msgspec.structs.replace(ORDER, auditor=AUDITOR.address), signature="0x" + "11" * 65
    ),
    plan=PLAN,
    endpoints=("a:1", "b:2"),
    stage=1,
    job_id=t.ZERO_HASH,
    order_hash=signing.order_hash(ORDER),
    plan_hash=signing.plan_hash(PLAN),
    shard_root=t.ZERO_HASH,
    acceptance=t.SignedAcceptance(
        acceptance=t.Acceptance(order_hash=t.ZERO_HASH, plan_hash=t.ZERO_HASH, stage=1, expiry=0),
        signature="0x" + "11" * 65,
    ),
    is_verified=True,
    started_at=0,
    chain_state="",
)
ASK = wire.FetchReceipts(order_hash=JOB.order_hash)


def sees(peer: str, ask: wire.FetchReceipts = ASK, **more: Any) -> bool:
    return may_see(peer, JOB, ask, domain=DOMAIN, now_s=NOW_S, **more)


def delegated(signer_number: int = 4, **changes: Any) -> wire.FetchReceipts:
    delegation = t.AuditorDelegation(
        order_hash=JOB.order_hash, auditor=FRIEND.address, expiry=NOW_S + 1
    )
    delegation = msgspec.structs.replace(delegation, **changes)
    return wire.FetchReceipts(
        order_hash=JOB.order_hash,
        delegation=delegation,
        delegation_signature=signing.sign(key(signer_number), DOMAIN, delegation),
    )


@pytest.mark.parametrize("peer", [REQUESTER, AUDITOR.address, ME, BEFORE, REQUESTER.lower()])
def test_the_parties_of_a_job_see_it(peer: str) -> None:
    assert sees(peer)


@pytest.mark.parametrize("peer", [STRANGER.address, FRIEND.address, JUROR.address, t.ZERO_ADDRESS])
def test_others_do_not(peer: str) -> None:
    assert not sees(peer)


def test_drawn_jurors_see_it() -> None:
    assert sees(JUROR.address, jurors=[JUROR.address.lower()])
    assert not sees(STRANGER.address, jurors=[JUROR.address])


def test_a_delegation_counts_for_its_auditor_order_and_time_only() -> None:
    assert sees(FRIEND.address, delegated())
    assert not sees(STRANGER.address, delegated())
    assert not sees(FRIEND.address, delegated(signer_number=1))
    assert not sees(FRIEND.address, delegated(expiry=NOW_S))
    assert not sees(FRIEND.address, delegated(order_hash="0x" + "55" * 32))


def test_receipts_over_most_requests_come_first_and_all_fit_into_a_header() -> None:
    leaf = t.RequestLeaf(
        request_index=1, in_root=t.ZERO_HASH, out_root=t.ZERO_HASH, tokens_in=1, tokens_out=1
    )

    def signed(requests: int) -> t.SignedReceipt:
        receipt = t.StageReceipt(
            order_hash=t.ZERO_HASH,
            plan_hash=t.ZERO_HASH,
            stage=0,
            layer_from=0,
            layer_to=1,
            shard_root=t.ZERO_HASH,
            input_root=t.ZERO_HASH,
            output_root=t.ZERO_HASH,
            requests_root=t.ZERO_HASH,
            requests=requests,
            tokens_in=1,
            tokens_out=1,
            started_at=0,
            signed_at=0,
        )
        return t.SignedReceipt(
            receipt=receipt, signature="0x" + "11" * 65, leaves=[leaf] * requests
        )

    few = [signed(1), signed(3), signed(1)]
    assert [one.receipt.requests for one in _that_fit(few)] == [3, 1, 1]
    many = _that_fit([signed(4096) for _ in range(20)])
    encode(wire.Receipts(signed=many))
    assert 1 <= len(many) <= MAX_RECEIPTS_BYTES // (4096 * 150)
