"""How a message becomes a digest and a signature: EIP-712 over one domain (`docs/protocol.md` §2).

Twin of `contracts/src/libraries/Eip712Types.sol`; `tests/twins/vectors.json` holds the vectors both must meet.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Protocol

import msgspec
from eth_account.messages import SignableMessage, encode_typed_data
from eth_keys.datatypes import Signature as KeySignature
from eth_keys.exceptions import BadSignature
from eth_utils.crypto import keccak
from eth_utils.exceptions import ValidationError

from core.protocol import types as t

# eth_account imports py_ecc, which raises the limit to 100 000: a stranger's nested JSON would then overflow the stack and
# kill the process instead of raising RecursionError.
sys.setrecursionlimit(1000)

_HALF_N = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0

_STAGE = [("address", "operator"), ("uint16", "layerFrom"), ("uint16", "layerTo")]

_FIELDS: dict[str, list[tuple[str, str]]] = {
    "Order": [
        ("address", "requester"),
        ("bytes32", "modelId"),
        ("bytes32", "inputRoot"),
        ("bytes32", "samplingRoot"),
        ("uint32", "requests"),
        ("uint32", "maxTokensIn"),
        ("uint32", "maxTokensOut"),
        ("uint64", "priceIn"),
        ("uint64", "priceOut"),
        ("address", "matcher"),
        ("uint16", "matcherFeeBps"),
        ("uint128", "minStake"),
        ("uint64", "deadline"),
        ("uint32", "window"),
        ("address", "auditor"),
        ("address", "arbitrator"),
        ("bytes32", "numericsProfile"),
        ("uint64", "nonce"),
    ],
    "Acceptance": [
        ("bytes32", "orderHash"),
        ("bytes32", "planHash"),
        ("uint16", "stage"),
        ("uint64", "expiry"),
    ],
    "HopCheckpoint": [
        ("bytes32", "orderHash"),
        ("bytes32", "planHash"),
        ("uint16", "stage"),
        ("uint32", "requestIndex"),
        ("uint32", "rows"),
        ("bytes32", "runningRoot"),
    ],
    "StageReceipt": [
        ("bytes32", "orderHash"),
        ("bytes32", "planHash"),
        ("uint16", "stage"),
        ("uint16", "layerFrom"),
        ("uint16", "layerTo"),
        ("bytes32", "shardRoot"),
        ("bytes32", "inputRoot"),
        ("bytes32", "outputRoot"),
        ("bytes32", "requestsRoot"),
        ("uint32", "requests"),
        ("uint32", "tokensIn"),
        ("uint32", "tokensOut"),
        ("uint64", "startedAt"),
        ("uint64", "signedAt"),
    ],
    "Ack": [
        ("bytes32", "orderHash"),
        ("bytes32", "planHash"),
        ("bytes32", "resultRoot"),
        ("uint32", "tokensIn"),
        ("uint32", "tokensOut"),
    ],
    "Voucher": [
        ("bytes32", "sessionId"),
        ("bytes32", "planHash"),
        ("uint128", "cumulative"),
        ("bytes32", "lastResultRoot"),
    ],
    "AuditorDelegation": [
        ("bytes32", "orderHash"),
        ("address", "auditor"),
        ("uint64", "expiry"),
    ],
    "OperatorProof": [("address", "owner"), ("address", "operator")],
    "Hello": [("bytes32", "transcript"), ("uint8", "role")],
    "Record": [("bytes32", "kind"), ("bytes32", "contentHash"), ("uint64", "sequence")],
    "Plan": [("Stage[]", "stages")],
}

Signed = (
    t.Order | t.Acceptance | t.HopCheckpoint | t.StageReceipt | t.Ack | t.Voucher
    | t.AuditorDelegation
)  # fmt: skip


class OperatorProof(t.Value, frozen=True):
    """The operator key proves itself to the owner that registers it."""

    owner: t.Address
    operator: t.Address


class Hello(t.Value, frozen=True):
    """Signed by both sides of a stream over the transcript of its key agreement."""

    transcript: t.Hash32
    role: t.U8


class Record(t.Value, frozen=True):
    """A record in the swarm: later sequence numbers replace earlier ones."""

    kind: t.Hash32
    content_hash: t.Hash32
    sequence: t.U63


class DigestSigner(Protocol):
    """Anything that holds a key: signs a 32-byte digest to 65 bytes r ‖ s ‖ v, v ∈ {27, 28}, low s."""

    @property
    def address(self) -> str: ...

    def sign_digest(self, digest: bytes) -> bytes: ...


class Domain(msgspec.Struct, frozen=True):
    """The one EIP-712 domain: a chain and the TaskRegistry deployed on it."""

    chain_id: int
    verifying_contract: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": "Headrace",
            "version": "1",
            "chainId": self.chain_id,
            "verifyingContract": self.verifying_contract,
        }


def _abi_fields(name: str) -> dict[str, list[dict[str, str]]]:
    types = {name: [{"type": kind, "name": field} for kind, field in _FIELDS[name]]}
    if name == "Plan":
        types["Stage"] = [{"type": kind, "name": field} for kind, field in _STAGE]
    return types


_TYPES = {name: _abi_fields(name) for name in _FIELDS}
_NO_DOMAIN = Domain(0, t.ZERO_ADDRESS)


def _signable(domain: Domain, name: str, message: dict[str, Any]) -> SignableMessage:
    return encode_typed_data(
        domain_data=domain.as_dict(), message_types=_TYPES[name], message_data=message
    )


def _name_and_fields(message: t.Value) -> tuple[str, dict[str, Any]]:
    return type(message).__name__, msgspec.to_builtins(message)


def struct_hash(message: t.Value) -> str:
    """EIP-712 hashStruct of a signed message: what `orderHash`, `receiptHash` mean. 0x hex."""
    return "0x" + _signable(_NO_DOMAIN, *_name_and_fields(message)).body.hex()


@lru_cache(maxsize=4096)
def order_hash(order: t.Order) -> str:
    """Struct hash of an order, cached: every message of a job carries it."""
    return struct_hash(order)


def plan_hash(plan: list[t.Stage] | tuple[t.Stage, ...]) -> str:
    """Struct hash of Plan(Stage[] stages). 0x hex."""
    stages = [msgspec.to_builtins(stage) for stage in plan]
    return "0x" + _signable(_NO_DOMAIN, "Plan", {"stages": stages}).body.hex()


def digest(domain: Domain, message: t.Value) -> bytes:
    """The 32 bytes that are signed."""
    signable = _signable(domain, *_name_and_fields(message))
    return keccak(b"\x19" + signable.version + signable.header + signable.body)


def domain_separator(domain: Domain) -> str:
    return "0x" + _signable(domain, "Hello", {"transcript": bytes(32), "role": 0}).header.hex()


def job_id(domain: Domain, order: t.Order) -> str:
    """The job's id on this chain: the order's full digest."""
    return "0x" + digest(domain, order).hex()


def sign(signer: DigestSigner, domain: Domain, message: t.Value) -> str:
    """Signature of a message as 0x hex of 65 bytes."""
    return "0x" + signer.sign_digest(digest(domain, message)).hex()


def recover_digest(signed_digest: bytes, signature: str) -> str | None:
    """Checksummed address that signed the digest, or None for anything malformed, high-s or unrecoverable."""
    digits = signature.removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    if len(digits) != 130 or len(raw) != 65 or raw[64] not in (27, 28):
        return None
    if int.from_bytes(raw[32:64], "big") > _HALF_N:
        return None
    try:
        key = KeySignature(raw[:64] + bytes([raw[64] - 27]))
        return key.recover_public_key_from_msg_hash(signed_digest).to_checksum_address()
    except (BadSignature, ValidationError):
        return None


def recover(domain: Domain, message: t.Value, signature: str) -> str | None:
    """Checksummed address that signed this message in this domain, or None."""
    return recover_digest(digest(domain, message), signature)


def is_signed_by(domain: Domain, message: t.Value, signature: str, address: str) -> bool:
    """Whether `address` (a plain key) signed this message in this domain. Never raises."""
    signer = recover(domain, message, signature)
    return signer is not None and signer.lower() == address.lower()


def model_id(spec: t.ModelSpec) -> str:
    """keccak256(abi.encode(ModelSpec)): the model's id on every chain."""
    words = []
    for value in msgspec.to_builtins(spec).values():
        words.append(
            bytes.fromhex(value[2:]) if isinstance(value, str) else value.to_bytes(32, "big")
        )
    return "0x" + keccak(b"".join(words)).hex()


def name_hash(name: str) -> str:
    """keccak256 of a registered name: architecture, dtype, numerics profile."""
    return "0x" + keccak(text=name).hex()
