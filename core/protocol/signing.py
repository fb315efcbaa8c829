"""How a message becomes a digest and a signature: EIP-712 over one domain (`docs/protocol.md` §2).

Twin of `contracts/src/libraries/Eip712Types.sol`; `tests/twins/vectors.json` holds the vectors that
both must meet.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol

import eth_account  # noqa: F401 - it imports py_ecc, see below
import msgspec

from core.protocol import types as t
from core.protocol.hashing import keccak
from core.protocol.ids import address

# py_ecc raises the limit to 100 000: a peer's nested JSON would then overflow the stack and kill
# the process instead of raising RecursionError. A later import of it does not raise it again.
sys.setrecursionlimit(1000)

_HALF_N = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0

#: The EIP-712 types that are signed, in any layout; `Plan` refers to `Stage`.
_TYPES = """
Order(address requester, bytes32 modelId, bytes32 inputRoot, bytes32 samplingRoot, uint32 requests,
    uint32 maxTokensIn, uint32 maxTokensOut, uint64 priceIn, uint64 priceOut, address matcher,
    uint16 matcherFeeBps, uint64 openingFee, uint128 minStake, uint64 deadline, uint32 window,
    address auditor, address arbitrator, bytes32 numericsProfile, bytes32 termsHash, uint64 nonce)
Terms(uint16 inFlight, address[] trusted, address[] avoided, uint16 auditBps)
RequestOpening(bytes32 orderHash, uint32 requestIndex, bytes32 promptLeaf, bytes32 samplingLeaf)
Acceptance(bytes32 orderHash, bytes32 planHash, uint16 stage, uint64 expiry)
RequestWord(bytes32 orderHash, bytes32 planHash, uint16 stage, uint32 requestIndex, bytes32 inRoot,
    bytes32 outRoot, uint32 tokensIn, uint32 tokensOut, bytes32 answerRoot, bytes32 innerRoot)
StageReceipt(bytes32 orderHash, bytes32 planHash, uint16 stage, uint16 layerFrom, uint16 layerTo,
    bytes32 shardRoot, bytes32 inputRoot, bytes32 outputRoot, bytes32 requestsRoot, uint32 requests,
    uint32 tokensIn, uint32 tokensOut, uint64 startedAt, uint64 signedAt)
Ack(bytes32 orderHash, bytes32 planHash, bytes32 resultRoot, uint32 tokensIn, uint32 tokensOut)
AuditorDelegation(bytes32 orderHash, address auditor, uint64 expiry)
OperatorProof(address owner, address operator)
Hello(bytes32 transcript, uint8 role)
Record(bytes32 kind, bytes32 contentHash, uint64 sequence)
Plan(Stage[] stages)
Stage(address operator, uint16 layerFrom, uint16 layerTo)
"""
#: Type → the (kind, name) of its fields.
_FIELDS: dict[str, list[tuple[str, str]]] = {
    name: [(kind, field) for kind, field in map(str.split, fields.split(","))]
    for name, fields in re.findall(r"(\w+)\(([^)]*)\)", _TYPES)
}


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


def record_of(value: t.Value, sequence: int = 0) -> Record:
    """What is signed of a value without an EIP-712 type: its type's name, SHA-256 of its JSON."""
    content = sha256(t.to_json(value)).hexdigest()
    return Record(name_hash(type(value).__name__), "0x" + content, sequence)


class DigestSigner(Protocol):
    """Signs a 32-byte digest with its key: 65 bytes r ‖ s ‖ v, v ∈ {27, 28}, low s."""

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


def _type_string(name: str) -> str:
    return f"{name}({','.join(f'{kind} {field}' for kind, field in _FIELDS[name])})"


_TYPE_HASHES = {
    name: keccak((_type_string(name) + (_type_string("Stage") if name == "Plan" else "")).encode())
    for name in _FIELDS
}
_DOMAIN_HASH = keccak(
    b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)


def _word(kind: str, value: Any) -> bytes:
    """A field as the 32 bytes that are hashed. Raises OverflowError for a number too large."""
    if kind.endswith("[]"):
        return keccak(b"".join(_word(kind[:-2], item) for item in value))
    if kind.startswith("uint"):
        number: bytes = value.to_bytes(int(kind[4:]) // 8, "big")
        return number.rjust(32, b"\0")
    raw = bytes.fromhex(value[2:]) if isinstance(value, str) else value
    if len(raw) != (20 if kind == "address" else 32):
        raise ValueError(f"{len(raw)} bytes are no {kind}")
    return raw.rjust(32, b"\0")


def _hash_struct(message: t.Value) -> bytes:
    name = type(message).__name__
    values = msgspec.to_builtins(message)
    words = (_word(kind, values[field]) for kind, field in _FIELDS[name])
    return keccak(_TYPE_HASHES[name] + b"".join(words))


@lru_cache(maxsize=16)
def _separator(domain: Domain) -> bytes:
    return keccak(
        _DOMAIN_HASH
        + keccak(domain.as_dict()["name"].encode())
        + keccak(domain.as_dict()["version"].encode())
        + _word("uint256", domain.chain_id)
        + _word("address", domain.verifying_contract)
    )


def struct_hash(message: t.Value) -> str:
    """EIP-712 hashStruct of a signed message: what `orderHash`, `receiptHash` mean. 0x hex."""
    return "0x" + _hash_struct(message).hex()


@lru_cache(maxsize=4096)
def order_hash(order: t.Order) -> str:
    """Struct hash of an order, cached: every message of a job carries it."""
    return struct_hash(order)


def terms_hash(terms: t.Terms | None) -> str:
    """What `Order.terms_hash` is for these terms: their struct hash, zero for none. 0x hex."""
    return t.ZERO_HASH if terms is None else struct_hash(terms)


def binds_its_terms(signed: t.SignedOrder) -> bool:
    """Whether the terms that came with an order are those that it was signed with."""
    return terms_hash(signed.terms) == signed.order.terms_hash


def plan_hash(plan: list[t.Stage] | tuple[t.Stage, ...]) -> str:
    """Struct hash of Plan(Stage[] stages). 0x hex."""
    return "0x" + keccak(_TYPE_HASHES["Plan"] + keccak(b"".join(map(_hash_struct, plan)))).hex()


def digest(domain: Domain, message: t.Value) -> bytes:
    """The 32 bytes that are signed."""
    return keccak(b"\x19\x01" + _separator(domain) + _hash_struct(message))


def job_id(domain: Domain, order: t.Order) -> str:
    """The job's id on this chain: the order's full digest."""
    return "0x" + digest(domain, order).hex()


def sign(signer: DigestSigner, domain: Domain, message: t.Value) -> str:
    """Signature of a message as 0x hex of 65 bytes."""
    return "0x" + signer.sign_digest(digest(domain, message)).hex()


def recover_digest(signed_digest: bytes, signature: str) -> str | None:
    """Checksummed address that signed the digest; None if malformed, high-s or unrecoverable."""
    raw = _recover(signed_digest, signature)
    return None if raw is None else address(raw)


def recover(domain: Domain, message: t.Value, signature: str) -> str | None:
    """Checksummed address that signed this message in this domain, or None."""
    return recover_digest(digest(domain, message), signature)


def is_signed_by(domain: Domain, message: t.Value, signature: str, address: str) -> bool:
    """Whether `address` (a plain key) signed this message in this domain. Never raises."""
    signer = _recover(digest(domain, message), signature)
    return signer is not None and "0x" + signer.hex() == address.lower()


def _recover(signed_digest: bytes, signature: str) -> bytes | None:
    """The 20 bytes of the address, by the native library."""
    from coincurve import PublicKey

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
        key = PublicKey.from_signature_and_message(
            raw[:64] + bytes([raw[64] - 27]), signed_digest, hasher=None
        )
    except ValueError:
        return None
    return keccak(key.format(compressed=False)[1:])[12:]


def model_id(spec: t.ModelSpec) -> str:
    """keccak256(abi.encode(ModelSpec)): the model's id on every chain."""
    values = msgspec.to_builtins(spec).values()
    words = (bytes.fromhex(v[2:]) if isinstance(v, str) else v.to_bytes(32, "big") for v in values)
    return "0x" + keccak(b"".join(words)).hex()


def name_hash(name: str) -> str:
    """keccak256 of a registered name: architecture, dtype, numerics profile."""
    return "0x" + keccak(name.encode()).hex()
