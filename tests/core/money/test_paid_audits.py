"""What a matcher and an auditor that it pays sign: their word, for one network, within bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.keys.signer import Signer
from core.money.paid_audits import (
    AuditEnd,
    AuditFinding,
    AuditOffer,
    LotsAsked,
    SignedAsk,
    SignedFinding,
    is_its_auditors,
    sign_ask,
    sign_finding,
)
from core.protocol import signing
from core.protocol import types as t

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
AUDITOR = Signer((7).to_bytes(32, "big"), chain_id=31337)
JOB = "0x" + "0b" * 32
HASH = "0x" + "22" * 32
LEAF = t.RequestLeaf(0, HASH, HASH, 3, 4)
RECEIPT = t.StageReceipt(HASH, HASH, 2, 20, 30, HASH, HASH, HASH, HASH, 1, 3, 4, 1, 2)
SIGNED_RECEIPT = t.SignedReceipt(RECEIPT, "0x" + "33" * 65, [LEAF])
FINDING = AuditFinding(AUDITOR.address, JOB, 5, AuditEnd.FAULT, 2)


def test_finding_is_its_authors_and_nothing_in_it_can_be_changed() -> None:
    signed = sign_finding(FINDING, AUDITOR, DOMAIN)
    assert is_its_auditors(signed, DOMAIN)
    again = msgspec.json.decode(msgspec.json.encode(signed), type=SignedFinding)
    assert again == signed and is_its_auditors(again, DOMAIN)
    changes: list[dict[str, Any]] = [
        {"auditor": "0x" + "22" * 20},
        {"job_id": HASH},
        {"request": 6},
        {"found": AuditEnd.CLEAN},
        {"stage": 1},
    ]
    for change in changes:
        forged = msgspec.structs.replace(FINDING, **change)
        assert not is_its_auditors(SignedFinding(forged, signed.signature), DOMAIN)
    assert not is_its_auditors(signed, signing.Domain(1, DOMAIN.verifying_contract))
    assert not is_its_auditors(SignedFinding(FINDING, "0x" + "00" * 65), DOMAIN)


def test_ask_is_its_authors_down_to_the_last_receipt() -> None:
    asked = LotsAsked(AUDITOR.address, JOB, (SIGNED_RECEIPT,))
    signed = sign_ask(asked, AUDITOR, DOMAIN)
    assert is_its_auditors(signed, DOMAIN)
    other = msgspec.structs.replace(
        SIGNED_RECEIPT, leaves=[msgspec.structs.replace(LEAF, tokens_out=5)]
    )
    for forged in (
        msgspec.structs.replace(asked, receipts=(other,)),
        msgspec.structs.replace(asked, receipts=(SIGNED_RECEIPT, SIGNED_RECEIPT)),
    ):
        assert not is_its_auditors(SignedAsk(forged, signed.signature), DOMAIN)


def test_digest_of_a_finding_is_what_other_implementations_make() -> None:
    """EIP-712 of `Record(Keccak("AuditFinding"), SHA-256 of the JSON, 0)`, of compact JSON."""
    text = (
        f'{{"auditor":"{AUDITOR.address}","jobId":"{JOB}","request":5,"found":"fault","stage":2}}'
    )
    assert t.to_json(FINDING) == text.encode()
    digest = signing.digest(DOMAIN, signing.record_of(FINDING)).hex()
    assert digest == DIGEST


DIGEST = "eb9921e6023842bf373d8b3a354a90fdc5a526fb2391e301ee1b9a91a8b8ee9e"


@pytest.mark.parametrize(
    "change",
    [
        {"found": "fine"},
        {"found": ""},
        {"request": -1},
        {"request": 2**32},
        {"request": True},
        {"stage": 2**16},
        {"auditor": "0x12"},
        {"jobId": JOB.upper()},
        {"fee": 1},
    ],
)
def test_findings_out_of_bounds_are_not_read(change: dict[str, Any]) -> None:
    plain = msgspec.to_builtins(FINDING)
    assert msgspec.convert(plain, AuditFinding) == FINDING
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(plain | change, AuditFinding)


def test_asks_without_receipts_and_offers_beyond_all_requests_are_not_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"auditor": AUDITOR.address, "jobId": JOB, "receipts": []}, LotsAsked)
    offer = {"auditor": AUDITOR.address, "rateBps": 10_000, "feeUnits": 1, "secretHash": HASH}
    assert msgspec.convert(offer, AuditOffer).rate_bps == 10_000
    for change in ({"rateBps": 10_001}, {"feeUnits": -1}, {"feeUnits": 0.5}, {"secretHash": "0x"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(offer | change, AuditOffer)


@given(st.binary(max_size=300))
def test_nonsense_is_refused_as_such(raw: bytes) -> None:
    for kind in (SignedFinding, SignedAsk):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            msgspec.json.decode(raw, type=kind)


@given(st.integers(0, 2**32 - 1), st.sampled_from(AuditEnd), st.integers(0, 2**16 - 1), st.data())
def test_one_changed_byte_is_never_the_same_word(
    request: int, found: AuditEnd, stage: int, data: st.DataObject
) -> None:
    """Whatever a carrier does to a finding, it is the auditor's word or it is not read as such."""
    signed = sign_finding(
        AuditFinding(AUDITOR.address, JOB, request, found, stage), AUDITOR, DOMAIN
    )
    raw = bytearray(msgspec.json.encode(signed))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        read = msgspec.json.decode(bytes(raw), type=SignedFinding)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert read == signed or not is_its_auditors(read, DOMAIN)
