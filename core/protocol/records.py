"""What the swarm says: signed records of miners and of a matcher's allocation, and their trust.

A record is msgpack bytes signed by its author's key over (kind, SHA-256 of the bytes, sequence). A
later sequence replaces an earlier one; nothing is believed past `sent_at_ms + ttl_ms`, so a
departed machine disappears by itself.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Literal, TypeVar

import msgspec

from core.protocol import signing
from core.protocol import types as t

MAX_RECORD_BYTES = 64 * 1024
Lifecycle = Literal["JOIN", "SERVING", "DRAINING", "DOWN", "LEFT"]
CLOCK_SLACK_MS = 2000  # between sealing and storing, and between two machines' clocks
_Positive = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_TtlMs = Annotated[int, msgspec.Meta(ge=1, le=600_000)]


class MinerRecord(msgspec.Struct, frozen=True, rename="camel"):
    """One machine as it describes itself. `layers` is what it serves now; None while it loads."""

    operator: t.Address
    endpoint: Annotated[str, msgspec.Meta(max_length=255)]  # routes to its data plane
    state: Lifecycle
    model_id: t.Hash32
    layers: t.LayerRange | None
    memory_bytes: t.U63  # for weights and cache, its own limit
    tflops: _Positive
    bandwidth_gb_s: _Positive
    region: Annotated[str, msgspec.Meta(max_length=40)]
    tau_ms_per_layer: _Positive  # τ: one decode step, measured; 0 before the first
    rho_ms: dict[t.Address, _Positive]  # ρ: one-way, to peers by operator
    max_requests: t.U32
    active_requests: t.U32
    kv_free_tokens: t.U63
    context: t.U32
    price_in: t.U63  # nano base units per token per layer unit
    price_out: t.U63
    allocation: t.U63  # sequence of the allocation it follows; 0: none
    sent_at_ms: t.U63
    ttl_ms: _TtlMs = 10_000
    #: τ for steps of so many rows, as measured while it works.
    tau_ms_by_rows: Annotated[dict[t.U32, _Positive], msgspec.Meta(max_length=32)] = {}


class AllocationRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A matcher's phase 1: which machine should hold which layers of a model."""

    matcher: t.Address
    model_id: t.Hash32
    assignments: dict[t.Address, t.LayerRange]
    standby: list[t.Address]
    sent_at_ms: t.U63
    ttl_ms: _TtlMs = 60_000


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    sequence: t.U63
    signature: t.Signature


Content = TypeVar("Content", MinerRecord, AllocationRecord)


def _author(content: MinerRecord | AllocationRecord) -> str:
    return content.operator if isinstance(content, MinerRecord) else content.matcher


def _record(kind: type, content: bytes, sequence: int) -> signing.Record:
    content_hash = "0x" + sha256(content).hexdigest()
    return signing.Record(signing.name_hash(kind.__name__), content_hash, sequence)


def seal(
    content: MinerRecord | AllocationRecord,
    sequence: int,
    signer: signing.DigestSigner,
    domain: signing.Domain,
) -> bytes:
    """Bytes of a signed record for the swarm."""
    body = msgspec.msgpack.encode(content)
    signature = signing.sign(signer, domain, _record(type(content), body, sequence))
    return msgspec.msgpack.encode(SignedRecord(body, sequence, signature))


def unseal(data: bytes, kind: type[Content], domain: signing.Domain) -> tuple[Content, int] | None:
    """(content, sequence) of well-formed bytes that their own author signed, else None."""
    if len(data) > MAX_RECORD_BYTES:
        return None
    try:
        signed = msgspec.msgpack.decode(data, type=SignedRecord)
        content = msgspec.msgpack.decode(signed.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    record = _record(kind, signed.content, signed.sequence)
    # The checksummed form only: else one key could appear as many machines, spelt differently.
    if signing.recover(domain, record, signed.signature) != _author(content):
        return None
    return content, signed.sequence


def miners_topic(domain: signing.Domain) -> str:
    """Where machines of one deployment announce themselves, keyed by operator in lower case."""
    return f"headrace/{domain.chain_id}/{domain.verifying_contract.lower()}/miners"


def allocations_topic(domain: signing.Domain, model_id: str) -> str:
    """Where matchers say which machine holds which layers, keyed by matcher in lower case."""
    return f"headrace/{domain.chain_id}/{domain.verifying_contract.lower()}/allocations/{model_id}"


def is_fresh(content: MinerRecord | AllocationRecord, now_ms: int) -> bool:
    """Whether to believe a record now: not sent in the future nor longer ago than its ttl."""
    age_ms = now_ms - content.sent_at_ms
    return -CLOCK_SLACK_MS <= age_ms <= content.ttl_ms + CLOCK_SLACK_MS


class SwarmCheck(msgspec.Struct, frozen=True):
    """What every honest peer of the swarm demands of a record that it stores or hands on."""

    domain: signing.Domain

    def __call__(self, key: str, data: bytes, expires_at_s: float) -> str | None:
        """The one topic where `data` may stand under `key` until then, or None. Never raises.

        Its author signed it and is whom `key` names, and the expiry is the one it signed: a
        replayed record, under its own topic or another, never outlives the newer one that it hides.
        """
        miner = unseal(data, MinerRecord, self.domain)
        allocation = None if miner else unseal(data, AllocationRecord, self.domain)
        found = miner or allocation
        if found is None:
            return None
        content = found[0]
        latest_ms = content.sent_at_ms + content.ttl_ms + CLOCK_SLACK_MS
        if key != _author(content).lower() or not expires_at_s * 1000 <= latest_ms:
            return None
        if isinstance(content, MinerRecord):
            return miners_topic(self.domain)
        return allocations_topic(self.domain, content.model_id)
