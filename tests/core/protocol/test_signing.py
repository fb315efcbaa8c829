"""What is signed, checked against EIP-712 encoded by hand, and what is no such signature."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from eth_abi import encode
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from core.keys.signer import Signer
from core.protocol import signing
from core.protocol import types as t
from core.protocol.signing import Domain

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

# The type strings of docs/protocol.md §2, copied by hand: a second source.
STAGE = "Stage(address operator,uint16 layerFrom,uint16 layerTo)"
TYPES = {
    "Order": (
        "Order(address requester,bytes32 modelId,bytes32 inputRoot,bytes32 samplingRoot,"
        "uint32 requests,uint32 maxTokensIn,uint32 maxTokensOut,uint64 priceIn,"
        "uint64 priceOut,address matcher,uint16 matcherFeeBps,uint64 openingFee,uint128 minStake,"
        "uint64 deadline,uint32 window,address auditor,address arbitrator,"
        "bytes32 numericsProfile,bytes32 termsHash,uint64 nonce)"
    ),
    "Acceptance": "Acceptance(bytes32 orderHash,bytes32 planHash,uint16 stage,uint64 expiry)",
    "RequestWord": (
        "RequestWord(bytes32 orderHash,bytes32 planHash,uint16 stage,uint32 requestIndex,"
        "bytes32 inRoot,bytes32 outRoot,uint32 tokensIn,uint32 tokensOut,bytes32 answerRoot,"
        "bytes32 innerRoot)"
    ),
    "StageReceipt": (
        "StageReceipt(bytes32 orderHash,bytes32 planHash,uint16 stage,uint16 layerFrom,"
        "uint16 layerTo,bytes32 shardRoot,bytes32 inputRoot,bytes32 outputRoot,"
        "bytes32 requestsRoot,uint32 requests,uint32 tokensIn,uint32 tokensOut,"
        "uint64 startedAt,uint64 signedAt)"
    ),
    "Ack": (
        "Ack(bytes32 orderHash,bytes32 planHash,bytes32 resultRoot,uint32 tokensIn,"
        "uint32 tokensOut)"
    ),
    "Terms": "Terms(uint16 inFlight,address[] trusted,address[] avoided,uint16 auditBps)",
    "RequestOpening": (
        "RequestOpening(bytes32 orderHash,uint32 requestIndex,bytes32 promptLeaf,"
        "bytes32 samplingLeaf)"
    ),
    "AuditorDelegation": "AuditorDelegation(bytes32 orderHash,address auditor,uint64 expiry)",
    "OperatorProof": "OperatorProof(address owner,address operator)",
    "Hello": "Hello(bytes32 transcript,uint8 role)",
    "Record": "Record(bytes32 kind,bytes32 contentHash,uint64 sequence)",
}
CLASSES: dict[str, type[t.Value]] = {
    name: getattr(t, name, None) or getattr(signing, name) for name in TYPES
}
LIMITS = {f"uint{bits}": 2 ** min(bits, 63) - 1 for bits in (8, 16, 32, 64, 128)}


def fields_of(name: str) -> list[tuple[str, str]]:
    inner = TYPES[name].partition("(")[2].rstrip(")")
    return [tuple(part.split(" ")) for part in inner.split(",")]  # type: ignore[misc]


def value_of(kind: str) -> st.SearchStrategy[Any]:
    if kind == "bytes32":
        return st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex())
    if kind == "address[]":
        return st.sets(st.binary(min_size=20, max_size=20), max_size=4).map(
            lambda raws: tuple("0x" + raw.hex() for raw in sorted(raws))
        )
    if kind == "address":
        return st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())
    if kind == "bool":
        return st.booleans()
    return st.integers(0, LIMITS[kind])


def message_of(name: str) -> st.SearchStrategy[t.Value]:
    return st.tuples(*(value_of(kind) for kind, _ in fields_of(name))).map(
        lambda values: CLASSES[name](*values)
    )


def test_terms_are_hashed_or_zero_and_bind_the_order_they_travel_with() -> None:
    terms = t.Terms.of(4, ["0x" + "bb" * 20, "0x" + "AA" * 20], ["0x" + "01" * 20], 100)
    assert signing.terms_hash(None) == t.ZERO_HASH
    assert signing.terms_hash(terms) == "0x" + hand_struct_hash(terms).hex()
    order = t.Order(*[_zero(kind) for kind, _ in fields_of("Order")])
    bound = msgspec.structs.replace(order, terms_hash=signing.terms_hash(terms))
    for right in (t.SignedOrder(order, "0x"), t.SignedOrder(bound, "0x", terms)):
        assert signing.binds_its_terms(right)
    other = msgspec.structs.replace(terms, in_flight=5)
    for wrong in (
        t.SignedOrder(order, "0x", terms),
        t.SignedOrder(bound, "0x"),
        t.SignedOrder(bound, "0x", other),
    ):
        assert not signing.binds_its_terms(wrong)


any_message = st.sampled_from(sorted(TYPES)).flatmap(message_of)


def word(kind: str, value: Any) -> bytes:
    if kind == "address[]":
        return keccak(b"".join(encode(["address"], [item]) for item in value))
    return encode([kind], [bytes.fromhex(value[2:]) if kind == "bytes32" else value])


def hand_struct_hash(message: t.Value) -> bytes:
    name = type(message).__name__
    values = msgspec.to_builtins(message).values()
    words = [word(kind, v) for (kind, _), v in zip(fields_of(name), values, strict=True)]
    return keccak(keccak(text=TYPES[name]) + b"".join(words))


def hand_digest(domain: Domain, message: t.Value) -> bytes:
    separator = keccak(
        keccak(
            text="EIP712Domain(string name,string version,uint256 chainId,"
            "address verifyingContract)"
        )
        + keccak(text="Headrace")
        + keccak(text="1")
        + encode(["uint256", "address"], [domain.chain_id, domain.verifying_contract])
    )
    return keccak(b"\x19\x01" + separator + hand_struct_hash(message))


@given(any_message)
def test_struct_hashes_equal_the_encoding_by_hand(message: t.Value) -> None:
    assert signing.struct_hash(message) == "0x" + hand_struct_hash(message).hex()


@given(any_message, st.integers(1, 2**63), st.binary(min_size=20, max_size=20))
def test_digests_equal_the_encoding_by_hand(
    message: t.Value, chain_id: int, contract: bytes
) -> None:
    domain = Domain(chain_id, "0x" + contract.hex())
    assert signing.digest(domain, message) == hand_digest(domain, message)


@given(
    st.lists(
        st.tuples(value_of("address"), value_of("uint16"), value_of("uint16")),
        min_size=1,
        max_size=6,
    )
)
def test_plan_hashes_equal_the_encoding_by_hand(rows: list[tuple[str, int, int]]) -> None:
    stage_hashes = [
        keccak(keccak(text=STAGE) + encode(["address", "uint16", "uint16"], row)) for row in rows
    ]
    by_hand = keccak(
        keccak(text="Plan(Stage[] stages)" + STAGE) + keccak(b"".join(stage_hashes))
    ).hex()
    plan = [t.Stage(*row) for row in rows]
    assert signing.plan_hash(plan) == signing.plan_hash(tuple(plan)) == "0x" + by_hand


@given(message_of("Order"))
def test_the_cached_order_hash_is_the_struct_hash(order: t.Value) -> None:
    assert isinstance(order, t.Order)
    assert signing.order_hash(order) == signing.struct_hash(order)


@given(any_message)
def test_an_address_in_any_case_is_the_same_message(message: t.Value) -> None:
    fields = msgspec.to_builtins(message)
    upper = {
        k: _upper(v) if not isinstance(v, tuple | list) else tuple(map(_upper, v))
        for k, v in fields.items()
    }
    other = type(message)(*upper.values())
    assert signing.struct_hash(other) == signing.struct_hash(message)


def _upper(value: Any) -> Any:
    return "0x" + value[2:].upper() if isinstance(value, str) and len(value) == 42 else value


def test_a_job_id_belongs_to_one_chain_and_one_deployment(domain: Domain) -> None:
    order = t.Order(*[_zero(kind) for kind, _ in fields_of("Order")])
    ids = {
        signing.job_id(domain, order),
        signing.job_id(Domain(domain.chain_id + 1, domain.verifying_contract), order),
        signing.job_id(Domain(domain.chain_id, "0x" + "11" * 20), order),
        signing.order_hash(order),
    }
    assert len(ids) == 4
    assert signing.job_id(domain, order) == "0x" + hand_digest(domain, order).hex()


def _zero(kind: str) -> Any:
    return {"bytes32": t.ZERO_HASH, "address": t.ZERO_ADDRESS}.get(kind, 0)


def test_a_model_id_is_the_hash_of_the_abi_encoded_tuple() -> None:
    names = [f"0x{i:064x}" for i in range(1, 6)]
    spec = t.ModelSpec(names[0], 30, 576, 9, 3, 1536, 49152, 8192, 1, 8, *names[1:])
    kinds = "bytes32,uint16,uint32,uint16,uint16,uint32,uint32,uint32,uint8,uint8" + ",bytes32" * 4
    values = tuple(
        bytes.fromhex(v[2:]) if isinstance(v, str) else v
        for v in msgspec.to_builtins(spec).values()
    )
    assert signing.model_id(spec) == "0x" + keccak(encode([f"({kinds})"], [values])).hex()


@given(any_message)
def test_a_signature_names_its_signer(
    signers: list[Signer], domain: Domain, message: t.Value
) -> None:
    signature = signing.sign(signers[1], domain, message)
    assert msgspec.convert(signature, t.Signature) == signature
    assert int(signature[66:130], 16) <= CURVE_ORDER // 2
    assert signing.recover(domain, message, signature) == signers[1].address
    assert signing.is_signed_by(domain, message, signature, signers[1].address.lower())
    assert not signing.is_signed_by(domain, message, signature, signers[2].address)


@pytest.fixture(scope="module")
def signed(signers: list[Signer], domain: Domain) -> tuple[t.Ack, str]:
    ack = t.Ack("0x" + "01" * 32, "0x" + "02" * 32, "0x" + "03" * 32, 10, 20)
    return ack, signing.sign(signers[0], domain, ack)


def test_a_signature_holds_for_no_other_chain_contract_type_or_value(
    signers: list[Signer], domain: Domain, signed: tuple[t.Ack, str]
) -> None:
    ack, signature = signed
    address = signers[0].address
    elsewhere = [
        Domain(domain.chain_id + 1, domain.verifying_contract),
        Domain(domain.chain_id, "0x" + "11" * 20),
    ]
    for other in elsewhere:
        assert not signing.is_signed_by(other, ack, signature, address)
    for name in msgspec.structs.asdict(ack):
        old = getattr(ack, name)
        new = "0x" + "0f" * 32 if isinstance(old, str) else old + 1
        changed = msgspec.structs.replace(ack, **{name: new})
        assert not signing.is_signed_by(domain, changed, signature, address)


def test_messages_with_the_same_values_but_another_type_do_not_share_a_digest(
    domain: Domain,
) -> None:
    h = "0x" + "07" * 32
    alike = [t.Ack(h, h, h, 1, 2), t.Acceptance(h, h, 1, 2), t.RequestOpening(h, 1, h, h)]
    assert len({signing.digest(domain, m) for m in alike}) == len(alike)
    assert signing.digest(domain, signing.Hello(h, 0)) != signing.digest(
        domain, signing.Hello(h, 1)
    )


def test_the_other_half_of_the_curve_is_refused(
    signers: list[Signer], domain: Domain, signed: tuple[t.Ack, str]
) -> None:
    ack, signature = signed
    raw = bytes.fromhex(signature[2:])
    high_s = CURVE_ORDER - int.from_bytes(raw[32:64], "big")
    twin = raw[:32] + high_s.to_bytes(32, "big") + bytes([27 + 28 - raw[64]])
    assert signing.recover(domain, ack, "0x" + twin.hex()) is None


@pytest.mark.parametrize("v", [0, 1, 2, 26, 29, 31, 255])
def test_only_v_27_and_28_are_read(domain: Domain, signed: tuple[t.Ack, str], v: int) -> None:
    ack, signature = signed
    assert signing.recover(domain, ack, signature[:-2] + f"{v:02x}") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[:-2],
        lambda s: s + "00",
        lambda s: "0x",
        lambda s: "",
        lambda s: "0x" + "zz" * 65,
        lambda s: "0x" + "00" * 64 + "1b",
        lambda s: "0x" + "ff" * 64 + "1b",
        lambda s: "0x" + f"{CURVE_ORDER:064x}" + s[66:],
        lambda s: s[:66] + "00" * 32 + "1c",
        lambda s: s[:66] + " " + s[66:],
    ],
)
def test_malformed_signatures_name_nobody(  # type: ignore[no-untyped-def]
    domain: Domain, signed: tuple[t.Ack, str], change
) -> None:
    ack, signature = signed
    assert signing.recover(domain, ack, change(signature)) is None
    assert not signing.is_signed_by(domain, ack, change(signature), t.ZERO_ADDRESS)


@given(st.binary(max_size=70))
def test_random_bytes_never_raise_and_never_name_the_signer(
    signers: list[Signer], domain: Domain, raw: bytes
) -> None:
    hello = signing.Hello(t.ZERO_HASH, 0)
    assert not signing.is_signed_by(domain, hello, "0x" + raw.hex(), signers[0].address)


@given(st.integers(0, 65 * 8 - 1))
def test_a_flipped_bit_of_the_signature_is_refused(
    signers: list[Signer], domain: Domain, signed: tuple[t.Ack, str], bit: int
) -> None:
    ack, signature = signed
    raw = bytearray(bytes.fromhex(signature[2:]))
    raw[bit // 8] ^= 1 << bit % 8
    assert not signing.is_signed_by(domain, ack, "0x" + raw.hex(), signers[0].address)
