"""What do a matcher and an auditor that it pays say to each other? (`docs/trust.md` §9)

The matcher's offer travels with its quotes. An auditor shows a stage's receipts and is told which
of their requests the matcher's lot fell on; of each of those it signs one finding. Both are JSON,
signed as a `Record` over its SHA-256.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from core.protocol import signing
from core.protocol import types as t

MOST_RECEIPTS = 512  # in one ask; a session has one for each request
MAX_ASK_BYTES = 2 * 2**20  # holds that many, and all leaves that a job can have
Bps = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class AuditEnd(StrEnum):
    """What an audit of one stage ended in.

    `SUSPICIOUS` is no fault, but avoided; `SHADOW` is measured and held against no stage.
    """

    CLEAN = "clean"
    SUSPICIOUS = "suspicious"
    FAULT = "fault"
    WITHHELD = "withheld"
    SHADOW = "shadow"


class AuditOffer(t.Value, frozen=True):
    """A matcher pays this auditor for auditing a share of an order's requests, if it is named.

    `secret_hash` is the commitment to what the lots are drawn with (`core/money/lottery.py`).
    """

    auditor: t.Address
    rate_bps: Bps
    fee_units: t.Units
    secret_hash: t.Hash32


class LotsAsked(t.Value, frozen=True):
    """An auditor shows what a job's last stage signed, and asks which requests are drawn."""

    auditor: t.Address
    job_id: t.Hash32
    receipts: Annotated[
        tuple[t.SignedReceipt, ...], msgspec.Meta(min_length=1, max_length=MOST_RECEIPTS)
    ]


class SignedAsk(t.Value, frozen=True):
    """As it travels."""

    asked: LotsAsked
    signature: t.Signature


class Lots(t.Value, frozen=True):
    """Every request of a job drawn for this auditor so far, with or without its finding."""

    requests: tuple[t.U32, ...]


class AuditFinding(t.Value, frozen=True):
    """What an auditor found in one request: the worst of its stages, the first of equally bad."""

    auditor: t.Address
    job_id: t.Hash32
    request: t.U32
    found: AuditEnd
    stage: t.U16


class SignedFinding(t.Value, frozen=True):
    """As it travels, and as the matcher keeps it."""

    finding: AuditFinding
    signature: t.Signature


def sign_ask(asked: LotsAsked, signer: signing.DigestSigner, domain: signing.Domain) -> SignedAsk:
    """With its author's signature."""
    return SignedAsk(asked, signing.sign(signer, domain, signing.record_of(asked)))


def sign_finding(
    finding: AuditFinding, signer: signing.DigestSigner, domain: signing.Domain
) -> SignedFinding:
    """With its author's signature."""
    return SignedFinding(finding, signing.sign(signer, domain, signing.record_of(finding)))


def is_its_auditors(signed: SignedAsk | SignedFinding, domain: signing.Domain) -> bool:
    """Whether the auditor that it names signed it, for this deployment. Never raises."""
    said = signed.asked if isinstance(signed, SignedAsk) else signed.finding
    return signing.is_signed_by(domain, signing.record_of(said), signed.signature, said.auditor)
