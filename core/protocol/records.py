"""What machines say of themselves in the swarm, signed, and who believes it.

A record is msgpack bytes signed by its author's key over (kind, SHA-256 of the bytes, sequence). A
later sequence replaces an earlier one; nothing is believed past `sent_at_ms + ttl_ms`, so a
departed machine disappears by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Literal

import msgspec

from core.protocol import signing
from core.protocol import types as t

MAX_RECORD_BYTES = 4096
#: Peers to which a machine tells its distance: their entries are most of a record.
MAX_NEIGHBOURS = 32
#: Peers of which it tells how fast they take bytes.
MAX_LINKS = 16
#: Topics over which machines are spread: of ten thousand, each has some 600.
SHARDS = 16
MOST_TTL_MS = 600_000
#: How far in the future a record may be dated, so that it does not outlive what follows it.
FUTURE_SLACK_MS = 60_000
Lifecycle = Literal["JOIN", "SERVING", "DRAINING", "DOWN", "LEFT"]
CLOCK_SLACK_MS = 2000  # between sealing and storing, and between two machines' clocks
_Positive = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_TtlMs = Annotated[int, msgspec.Meta(ge=1, le=MOST_TTL_MS)]


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
    #: ρ: one-way, to peers by operator.
    rho_ms: Annotated[dict[t.Address, _Positive], msgspec.Meta(max_length=MAX_NEIGHBOURS)]
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
    #: Megabytes a second that peers, by operator, take from it.
    link_mb_s: Annotated[dict[t.Address, _Positive], msgspec.Meta(max_length=MAX_LINKS)] = {}


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    sequence: t.U63
    signature: t.Signature


def _record(content: bytes, sequence: int) -> signing.Record:
    content_hash = "0x" + sha256(content).hexdigest()
    return signing.Record(signing.name_hash(MinerRecord.__name__), content_hash, sequence)


def seal(
    content: MinerRecord, sequence: int, signer: signing.DigestSigner, domain: signing.Domain
) -> bytes:
    """Bytes of a signed record for the swarm."""
    body = msgspec.msgpack.encode(content)
    signature = signing.sign(signer, domain, _record(body, sequence))
    return msgspec.msgpack.encode(SignedRecord(body, sequence, signature))


def unseal(data: bytes, domain: signing.Domain) -> tuple[MinerRecord, int] | None:
    """(content, sequence) of well-formed bytes that their own author signed, else None."""
    if len(data) > MAX_RECORD_BYTES:
        return None
    try:
        signed = msgspec.msgpack.decode(data, type=SignedRecord)
        content = msgspec.msgpack.decode(signed.content, type=MinerRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    record = _record(signed.content, signed.sequence)
    # The checksummed form only: else one key could appear as many machines, spelt differently.
    if signing.recover(domain, record, signed.signature) != content.operator:
        return None
    return content, signed.sequence


def miners_topic(domain: signing.Domain, operator: str) -> str:
    """Where a machine of a deployment announces itself, keyed by its operator in lower case."""
    return _topic(domain, int(operator[2:4], 16) % SHARDS)


def miners_topics(domain: signing.Domain) -> list[str]:
    """Where all machines of a deployment announce themselves."""
    return [_topic(domain, shard) for shard in range(SHARDS)]


def _topic(domain: signing.Domain, shard: int) -> str:
    return f"headrace/{domain.chain_id}/{domain.verifying_contract.lower()}/miners/{shard}"


def now_ms() -> int:
    """The time that records carry."""
    return time.time_ns() // 1_000_000


def is_fresh(content: MinerRecord, now_ms: int) -> bool:
    """Whether to believe a record now: not sent in the future nor longer ago than its ttl."""
    age_ms = now_ms - content.sent_at_ms
    return -CLOCK_SLACK_MS <= age_ms <= content.ttl_ms + CLOCK_SLACK_MS


class SwarmCheck(msgspec.Struct, frozen=True):
    """What every honest peer of the swarm demands of a record that it stores or hands on."""

    domain: signing.Domain
    now_ms: Callable[[], int] = now_ms

    def __call__(self, key: str, data: bytes, expires_at_s: float) -> str | None:
        """The one topic where `data` may stand under `key` until then, or None. Never raises.

        Its author signed it and is whom `key` names, and the expiry is the one it signed: a
        replayed record, under its own topic or another, never outlives the newer one that it hides.
        Nor is it dated more than a minute ahead: clocks of honest peers differ by less.
        """
        opened = unseal(data, self.domain)
        if opened is None:
            return None
        content = opened[0]
        latest_ms = content.sent_at_ms + content.ttl_ms + CLOCK_SLACK_MS
        if key != content.operator.lower() or not expires_at_s * 1000 <= latest_ms:
            return None
        if content.sent_at_ms > self.now_ms() + FUTURE_SLACK_MS:
            return None
        return miners_topic(self.domain, key)
