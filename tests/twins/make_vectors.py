"""Writes `vectors.json`: what Python signs, commits and splits, for the Solidity twin to meet.

Run `python -m tests.twins.make_vectors` after a change of `docs/protocol.md`; `test_vectors.py`
fails while the file is stale. Whole numbers of 2^53 and more are written as strings: most JSON
readers would round them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
from coincurve import PrivateKey
from eth_keys.datatypes import PublicKey

from core.dispute.trace.evidence import RowOpening
from core.dispute.trace.sources import answer_rows
from core.money import pricing
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.network_file import (
    FORMAT,
    KnownMatcher,
    NetworkFile,
    Parameters,
    TokenFacts,
)

VECTORS = Path(__file__).with_name("vectors.json")
CHAIN_ID = 31337
VERIFYING_CONTRACT = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
PRIVATE_KEY = "0x" + "42" * 32  # known to everyone: only ever signs these vectors


class VectorSigner:
    """A `DigestSigner` over the published vector key."""

    def __init__(self) -> None:
        self._key = PrivateKey(bytes.fromhex(PRIVATE_KEY[2:]))
        public = self._key.public_key.format(compressed=False)[1:]
        self.address = PublicKey(public).to_checksum_address()

    def sign_digest(self, digest: bytes) -> bytes:
        raw = self._key.sign_recoverable(digest, hasher=None)
        return raw[:64] + bytes([raw[64] + 27])


def _hash(rng: random.Random) -> str:
    return "0x" + rng.randbytes(32).hex()


def _address(rng: random.Random) -> str:
    return PublicKey(
        PrivateKey(rng.randbytes(32)).public_key.format(compressed=False)[1:]
    ).to_checksum_address()


def _order(rng: random.Random, requester: str) -> t.Order:
    return t.Order(
        requester=requester,
        model_id=_hash(rng),
        input_root=_hash(rng),
        sampling_root=_hash(rng),
        requests=rng.randrange(2**32),
        max_tokens_in=rng.randrange(2**32),
        max_tokens_out=rng.randrange(2**32),
        price_in=rng.randrange(2**63),
        price_out=rng.randrange(2**63),
        matcher=_address(rng),
        matcher_fee_bps=rng.randrange(501),
        opening_fee=rng.randrange(2**63),
        min_stake=rng.randrange(2**63),
        deadline=rng.randrange(2**40),
        window=rng.randrange(2**32),
        auditor=t.ZERO_ADDRESS,
        arbitrator=_address(rng),
        numerics_profile=_hash(rng),
        terms_hash=_hash(rng),
        nonce=rng.randrange(2**63),
    )


def _messages(rng: random.Random, signer: VectorSigner) -> list[t.Value]:
    h = lambda: _hash(rng)  # noqa: E731
    return [
        _order(rng, signer.address),
        t.Acceptance(h(), h(), 3, 1_800_000_000),
        t.RequestWord(h(), h(), 0, 7, h(), h(), 64, 2**32 - 1, h(), h()),
        t.StageReceipt(h(), h(), 2, 9, 14, h(), h(), h(), h(), 8, 310, 512, 1, 2**40),
        t.Ack(h(), h(), h(), 310, 512),
        t.Terms.of(4, [_address(rng), _address(rng)], [_address(rng)], 250),
        t.Terms.of(2**16 - 1),
        t.RequestOpening(h(), 2**32 - 1, h(), h()),
        t.AuditorDelegation(h(), _address(rng), 99),
        signing.OperatorProof(_address(rng), signer.address),
        signing.Hello(h(), 1),
        signing.Record(h(), h(), 12),
    ]


def _message_vector(
    domain: signing.Domain, signer: VectorSigner, message: t.Value
) -> dict[str, Any]:
    return {
        "type": type(message).__name__,
        "value": msgspec.to_builtins(message),
        "structHash": signing.struct_hash(message),
        "digest": "0x" + signing.digest(domain, message).hex(),
        "signature": signing.sign(signer, domain, message),
    }


def _plan_vector(rng: random.Random, count: int) -> dict[str, Any]:
    plan = [t.Stage(_address(rng), i * 3, i * 3 + 3) for i in range(count)]
    return {"stages": msgspec.to_builtins(plan), "planHash": signing.plan_hash(plan)}


def _tree_vector(rng: random.Random, count: int) -> dict[str, Any]:
    leaves = [rng.randbytes(rng.randrange(1, 80)) for _ in range(count)]
    hashes = [commit.leaf_hash(leaf) for leaf in leaves]
    return {
        "leaves": [commit.to_hex(leaf) for leaf in leaves],
        "root": commit.to_hex(commit.root_of_hashes(hashes)),
        "proofs": [
            [commit.to_hex(h) for h in commit.merkle_proof(hashes, i)] for i in range(count)
        ],
    }


def _shard_vector(rng: random.Random, layers: int) -> dict[str, Any]:
    roots = [rng.randbytes(32) for _ in range(layers + 2)]
    ranges = [(a, b) for a in range(layers) for b in range(a + 1, layers + 1)]
    return {
        "roots": [commit.to_hex(r) for r in roots],
        "weightsRoot": commit.to_hex(commit.merkle_root(roots)),
        "shards": [
            {"from": a, "to": b, "root": commit.to_hex(commit.shard_root(roots, a, b))}
            for a, b in ranges
        ],
    }


def _receipt_roots_vector(rng: random.Random, count: int) -> dict[str, Any]:
    leaves = [
        t.RequestLeaf(
            i * 2,
            _hash(rng),
            _hash(rng),
            rng.randrange(2**28),
            rng.randrange(2**28),
            _hash(rng),
        )
        for i in range(count)
    ]
    inputs, outputs, requests = commit.receipt_roots(leaves)
    return {
        "leaves": msgspec.to_builtins(leaves),
        "inputRoot": commit.to_hex(inputs),
        "outputRoot": commit.to_hex(outputs),
        "requestsRoot": commit.to_hex(requests),
    }


def _prompt_vector(rng: random.Random, index: int, count: int) -> dict[str, Any]:
    salt, ids = rng.randbytes(32), [rng.randrange(2**32) for _ in range(count)]
    return {
        "requestIndex": index,
        "salt": commit.to_hex(salt),
        "ids": commit.to_hex(commit.token_bytes(ids)),
        "leaf": commit.to_hex(commit.leaf_hash(commit.prompt_leaf(index, salt, ids))),
    }


def _answer_vector(rng: random.Random, count: int, row_bytes: int) -> dict[str, Any]:
    """What a last stage signs, with one opening of each half."""
    tokens = [rng.randbytes(4) for _ in range(count)]
    states = [rng.randbytes(row_bytes) for _ in range(count)]
    halves, number = answer_rows(tokens, states), count // 2
    root = commit.answer_root(halves[0].root, halves[1].root)
    part = (row_bytes - 1) // commit.PART_BYTES
    return {
        "root": commit.to_hex(root),
        "count": count,
        "rowBytes": row_bytes,
        "row": number,
        "part": part,
        "tokens": _row_opening(halves[0].open(number, 0)),
        "states": _row_opening(halves[1].open(number, part * commit.PART_BYTES)),
    }


def _row_opening(found: RowOpening) -> dict[str, Any]:
    return {
        "part": commit.to_hex(found.part),
        "partSiblings": [commit.to_hex(h) for h in found.part_siblings],
        "rowSiblings": [commit.to_hex(h) for h in found.row_siblings],
    }


def _money_vector(rng: random.Random, stages: int) -> dict[str, Any]:
    cuts = sorted(rng.sample(range(1, 80), stages - 1))
    bounds = [0, *cuts, 80]
    plan = [t.Stage(_address(rng), bounds[i], bounds[i + 1]) for i in range(stages)]
    spec = msgspec.structs.replace(model_spec(rng), layers=80, embed_units=1, head_units=8)
    tokens_in, tokens_out = rng.randrange(10**7), rng.randrange(10**7)
    order = msgspec.structs.replace(
        _order(rng, t.ZERO_ADDRESS),
        max_tokens_in=tokens_in + rng.randrange(1000),
        max_tokens_out=tokens_out + rng.randrange(1000),
        price_in=rng.randrange(10**9),
        price_out=rng.randrange(10**9),
    )
    fee = rng.randrange(101)
    at_fault = frozenset(i for i in range(stages) if rng.random() < 0.2)
    due = pricing.split(
        order, plan, spec, tokens_in, tokens_out, protocol_fee_bps=fee, at_fault=at_fault
    )
    return {
        "plan": msgspec.to_builtins(plan),
        "layers": spec.layers,
        "embedUnits": spec.embed_units,
        "headUnits": spec.head_units,
        "tokensIn": tokens_in,
        "tokensOut": tokens_out,
        "priceIn": order.price_in,
        "priceOut": order.price_out,
        "matcherFeeBps": order.matcher_fee_bps,
        "protocolFeeBps": fee,
        "faultMask": sum(1 << i for i in at_fault),
        "shares": [
            (int(stage.operator, 16) << 96) | nano
            for stage, nano in zip(plan, due.pays, strict=True)
        ],
        "matcherFee": due.matcher_fee,
        "protocolFee": due.protocol_fee,
        "withheld": due.withheld,
    }


def model_spec(rng: random.Random) -> t.ModelSpec:
    return t.ModelSpec(
        architecture=signing.name_hash("llama"),
        layers=30,
        hidden=576,
        heads=9,
        kv_heads=3,
        ffn=1536,
        vocab=49152,
        context=8192,
        embed_units=1,
        head_units=8,
        dtype=signing.name_hash("float32"),
        numerics_profile=signing.name_hash("fp32"),
        weights_root=_hash(rng),
        manifest_hash=_hash(rng),
    )


def network_file() -> NetworkFile:
    """A network with one entry in every list."""
    at = [f"0x{number:040x}" for number in range(1, 9)]
    return NetworkFile(
        format=FORMAT,
        name="vector",
        revision=7,
        chain_id=CHAIN_ID,
        contracts={"TaskRegistry": VERIFYING_CONTRACT, "Escrow": at[0], "TestUSD": at[1]},
        creations={"TaskRegistry": "0x" + "cd" * 32},
        deploy_block=12,
        token=TokenFacts(at[1], "USDV", 6),
        token_symbol="usd",
        owner=at[2],
        guardian=at[3],
        fee_recipient=at[4],
        arbitrators=(at[5], at[6]),
        parameters=Parameters(),
        bootstrap_peers=("/dns4/peer.example/tcp/4001",),
        matchers=(KnownMatcher(at[7], "https://matcher.example"),),
        models={"tiny": "0x" + "ab" * 32},
    )


def _network_vector(signer: VectorSigner) -> dict[str, Any]:
    signed = network_file().signed_with(signer)
    return {
        "file": msgspec.to_builtins(signed),
        "record": msgspec.to_builtins(signed.record),
        "digest": "0x" + signed.digest.hex(),
    }


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _exact(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(v) for v in value]
    return str(value) if isinstance(value, int) and value >= 2**53 else value


def build() -> dict[str, Any]:
    """The whole document, the same on every run."""
    rng = random.Random(20)
    signer = VectorSigner()
    domain = signing.Domain(CHAIN_ID, VERIFYING_CONTRACT)
    spec = model_spec(rng)
    document = {
        "chainId": CHAIN_ID,
        "verifyingContract": VERIFYING_CONTRACT,
        "domainSeparator": commit.to_hex(signing._separator(domain)),
        "privateKey": PRIVATE_KEY,
        "address": signer.address,
        "messages": [_message_vector(domain, signer, m) for m in _messages(rng, signer)],
        "plans": [_plan_vector(rng, n) for n in (1, 2, 5)],
        "models": [{"spec": msgspec.to_builtins(spec), "id": signing.model_id(spec)}],
        "shaTrees": [_tree_vector(rng, n) for n in (1, 2, 3, 5, 8, 13)],
        "shards": [_shard_vector(rng, 4)],
        "receiptRoots": [_receipt_roots_vector(rng, n) for n in (1, 3, 8)],
        "money": [_money_vector(rng, n) for n in (1, 2, 3, 5, 8)],
        "prompts": [_prompt_vector(rng, 7 * n, n) for n in (1, 2, 5)],
        "networks": [_network_vector(signer)],
        "answers": [_answer_vector(rng, n, size) for n, size in ((1, 4), (3, 1024), (5, 3000))],
    }
    return _exact(document)  # type: ignore[no-any-return]


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(build(), indent=1) + "\n")
