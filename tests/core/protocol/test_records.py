"""Which records of the swarm are believed."""

from __future__ import annotations

import math
from collections import Counter
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.keys.signer import Signer
from core.protocol import records
from core.protocol import types as t
from core.protocol.records import MinerRecord, SignedRecord, SwarmCheck
from core.protocol.signing import Domain
from tests.core.protocol.test_types import HASH

NOW_MS = 1_900_000_000_000


def miner_record(operator: str, **changes: object) -> MinerRecord:
    fields = {
        "operator": operator,
        "endpoint": "127.0.0.1:4000",
        "state": "SERVING",
        "model_id": HASH,
        "layers": t.LayerRange(0, 12),
        "memory_bytes": 8 * 2**30,
        "tflops": 0.5,
        "bandwidth_gb_s": 20.0,
        "region": "eu",
        "tau_ms_per_layer": 1.5,
        "rho_ms": {t.ZERO_ADDRESS: 0.2},
        "max_requests": 8,
        "active_requests": 1,
        "kv_free_tokens": 4096,
        "context": 8192,
        "price_in": 10,
        "price_out": 20,
        "allocation": 1,
        "sent_at_ms": NOW_MS,
    }
    return MinerRecord(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def author(signers: list[Signer]) -> Signer:
    return signers[3]


@pytest.fixture
def sealed(author: Signer, domain: Domain) -> bytes:
    return records.seal(miner_record(author.address), 5, author, domain)


def test_a_sealed_record_is_believed(author: Signer, domain: Domain, sealed: bytes) -> None:
    assert records.unseal(sealed, domain) == (miner_record(author.address), 5)
    data = records.seal(miner_record(author.address), 2**63 - 1, author, domain)
    assert records.unseal(data, domain) == (miner_record(author.address), 2**63 - 1)


def test_a_record_in_another_s_name_is_not(
    signers: list[Signer], author: Signer, domain: Domain
) -> None:
    data = records.seal(miner_record(signers[4].address), 5, author, domain)
    assert records.unseal(data, domain) is None


def test_a_record_is_believed_on_its_own_network_only(sealed: bytes, domain: Domain) -> None:
    for other in (
        Domain(domain.chain_id + 1, domain.verifying_contract),
        Domain(domain.chain_id, "0x" + "11" * 20),
    ):
        assert records.unseal(sealed, other) is None


def test_one_key_cannot_appear_as_many_machines(author: Signer, domain: Domain) -> None:
    for spelling in (author.address.lower(), "0x" + author.address[2:].upper()):
        data = records.seal(miner_record(spelling), 5, author, domain)
        assert records.unseal(data, domain) is None


def test_content_sequence_and_signature_belong_together(
    author: Signer, domain: Domain, sealed: bytes
) -> None:
    signed = msgspec.msgpack.decode(sealed, type=SignedRecord)
    content = msgspec.msgpack.encode(miner_record(author.address, price_in=1))
    for changed in (
        msgspec.structs.replace(signed, sequence=6),
        msgspec.structs.replace(signed, content=content),
        msgspec.structs.replace(signed, content=signed.content + b"\x00"),
        msgspec.structs.replace(signed, signature="0x" + "11" * 65),
    ):
        assert records.unseal(msgspec.msgpack.encode(changed), domain) is None


@given(st.integers(0, 10**6))
def test_a_flipped_bit_is_not_believed(bit: int) -> None:
    domain, author = _DOMAIN, _AUTHOR
    data = bytearray(_SEALED)
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    assert records.unseal(bytes(data), domain) is None
    assert not SwarmCheck(domain)(author.address.lower(), bytes(data), NOW_MS / 1000)


@given(st.binary(max_size=200))
def test_random_bytes_are_not_believed(data: bytes) -> None:
    assert records.unseal(data, _DOMAIN) is None
    for wrapped in ([data, 1, "0x" + "11" * 65], [data, -1, ""], {"content": data}):
        raw = msgspec.msgpack.encode(wrapped)
        assert records.unseal(raw, _DOMAIN) is None


def test_deep_nesting_is_not_believed(domain: Domain) -> None:
    for raw in (b"\x91" * 50_000, msgspec.msgpack.encode([b"\x91" * 50_000, 1, "0x" + "11" * 65])):
        assert records.unseal(raw, domain) is None


def test_the_largest_record_is_believed_and_no_larger_one(author: Signer, domain: Domain) -> None:
    def told(peers: int, links: int = records.MAX_LINKS) -> bytes:
        values = {
            "endpoint": "x" * 255,
            "region": "y" * 40,
            "rho_ms": {f"0x{i:040x}": 1.0 for i in range(peers)},
            "tau_ms_by_rows": {2**31 + i: 1.0 for i in range(32)},
            "link_mb_s": {f"0x{i:040x}": 1.0 for i in range(links)},
        }
        return records.seal(miner_record(author.address, **values), 1, author, domain)

    largest = told(records.MAX_NEIGHBOURS)
    assert len(largest) <= records.MAX_RECORD_BYTES
    assert records.unseal(largest, domain) is not None
    assert records.unseal(told(records.MAX_NEIGHBOURS + 1), domain) is None
    assert records.unseal(told(0, records.MAX_LINKS + 1), domain) is None
    assert len(told(100)) > records.MAX_RECORD_BYTES
    assert records.unseal(told(100), domain) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"tau_ms_per_layer": math.nan},
        {"tau_ms_per_layer": -1.0},
        {"tflops": math.inf},
        {"rho_ms": {t.ZERO_ADDRESS: math.nan}},
        {"rho_ms": {"somebody": 1.0}},
        {"link_mb_s": {t.ZERO_ADDRESS: math.inf}},
        {"link_mb_s": {"somebody": 1.0}},
        {"state": "HAPPY"},
        {"endpoint": "x" * 256},
        {"price_in": -1},
        {"operator": "0x12"},
        {"layers": [4, 4]},
        {"ttl_ms": 0},
        {"ttl_ms": 600_001},
    ],
)
def test_a_signed_record_with_impossible_values_is_not_believed(
    author: Signer, domain: Domain, changes: dict[str, object]
) -> None:
    operator = str(changes.pop("operator", author.address))
    data = records.seal(miner_record(operator, **changes), 1, author, domain)
    assert records.unseal(data, domain) is None


@pytest.mark.parametrize(
    ("age_ms", "fresh"),
    [(0, True), (12_000, True), (12_001, False), (-2000, True), (-2001, False)],
)
def test_a_record_is_fresh_for_its_time_to_live(author: Signer, age_ms: int, fresh: bool) -> None:
    assert records.is_fresh(miner_record(author.address), NOW_MS + age_ms) == fresh


def test_the_swarm_keeps_a_record_under_its_author_s_key_for_its_time_to_live(
    signers: list[Signer], author: Signer, domain: Domain, sealed: bytes
) -> None:
    check = SwarmCheck(domain, lambda: NOW_MS)
    key, latest_s = author.address.lower(), (NOW_MS + 12_000) / 1000
    miners = records.miners_topic(domain, key)
    assert miners in records.miners_topics(domain)
    assert check(key, sealed, latest_s) == miners
    assert check(key, sealed, 0.0) == miners
    assert not check(key, sealed, latest_s + 0.01)
    assert not check(key, sealed, math.inf)
    assert not check(key, sealed, math.nan)
    assert not check(author.address, sealed, latest_s)
    assert not check(signers[4].address.lower(), sealed, latest_s)
    assert not check(key, b"garbage", latest_s)


def test_no_record_is_kept_that_is_dated_ahead_of_every_honest_clock(
    author: Signer, domain: Domain
) -> None:
    check, key = SwarmCheck(domain, lambda: NOW_MS), author.address.lower()
    for ahead_ms in (60_000, 60_001, 30 * 10**9):
        said = miner_record(author.address, sent_at_ms=NOW_MS + ahead_ms, ttl_ms=600_000)
        data = records.seal(said, 1, author, domain)
        kept = check(key, data, (NOW_MS + ahead_ms + 10_000) / 1000)
        assert (kept is not None) == (ahead_ms == 60_000)


def test_ten_thousand_machines_are_spread_over_the_topics(domain: Domain) -> None:
    keys = (sha256(i.to_bytes(4, "big")).hexdigest()[:40] for i in range(10_000))
    held = Counter(records.miners_topic(domain, f"0x{key}") for key in keys)
    assert set(held) == set(records.miners_topics(domain))
    assert max(held.values()) < 800


_DOMAIN = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")
_AUTHOR = Signer(b"\x42" * 32, chain_id=31337)
_SEALED = records.seal(miner_record(_AUTHOR.address), 5, _AUTHOR, _DOMAIN)
