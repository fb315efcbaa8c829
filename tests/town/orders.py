"""Keys, a small model, and what requester and stages sign: orders, answers, receipts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from client.orders.orders import OrderTerms, Prompt, PromptBatch, make_order
from client.pipeline.verify import RequestAnswer
from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.receipts import receipt_over

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
ARBITRATOR = "0x" + "aa" * 20
NOW_S = 1_800_000_000
SPANS = ((0, 2), (2, 5), (5, 6))
#: Root of what scripted last stages sign beside their tokens.
STATES = "0x" + "5a" * 32


def key(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


MATCHER, REQUESTER = key(40), key(50)
SPEC = t.ModelSpec(
    architecture=signing.name_hash("llama"),
    layers=6,
    hidden=64,
    heads=4,
    kv_heads=2,
    ffn=128,
    vocab=272,
    context=512,
    embed_units=1,
    head_units=1,
    dtype=signing.name_hash("float32"),
    numerics_profile=signing.name_hash("fp32"),
    weights_root="0x" + "77" * 32,
    manifest_hash="0x" + "88" * 32,
)
MODEL_ID = signing.model_id(SPEC)


def digest(*parts: object) -> str:
    return "0x" + sha256(repr(parts).encode()).hexdigest()


def shard_root_of(start: int, end: int) -> str:
    return digest("shard", start, end)


def prompts(count: int, *, max_new_tokens: int = 4) -> list[Prompt]:
    sampling = t.SamplingParams(max_new_tokens=max_new_tokens)
    return [
        Prompt(f"p{i}", tuple(range(10 * i, 10 * i + 3 + i % 2)), sampling, bytes([i]) * 32)
        for i in range(count)
    ]


def terms(**changes: Any) -> OrderTerms:
    values: dict[str, Any] = {
        "price_in": 10**9,
        "price_out": 2 * 10**9,
        "matcher": MATCHER.address,
        "matcher_fee_bps": 0,
        "opening_fee": 0,
        "min_stake": 0,
        "deadline": NOW_S + 600,
        "window": 60,
        "auditor": t.ZERO_ADDRESS,
        "arbitrator": ARBITRATOR,
    }
    return OrderTerms(**(values | changes))


def signed_order(batch: PromptBatch, nonce: int = 1) -> t.SignedOrder:
    return sign_order(make_order(batch, MODEL_ID, SPEC, terms(), REQUESTER.address, nonce))


def sign_order(
    order: t.Order, signer: Signer = REQUESTER, domain: signing.Domain = DOMAIN
) -> t.SignedOrder:
    return t.SignedOrder(order, signing.sign(signer, domain, order))


def answer_of(prompt: Prompt) -> RequestAnswer:
    """What scripted stages answer: as many tokens as allowed, from the prompt's first step on."""
    first = prompt.sampling.first_step
    steps = range(first, first + prompt.sampling.max_new_tokens)
    return RequestAnswer(prompt.ids, tuple(200 + (prompt.ids[0] + i) % 50 for i in steps), STATES)


def leaves_of(answers: dict[int, RequestAnswer], stage: int, stages: int) -> list[t.RequestLeaf]:
    """What an honest stage commits to for these answers; inner boundaries are made up but agree."""
    leaves = []
    for index, answer in sorted(answers.items()):
        fed = commit.to_hex(commit.tokens_root(answer.fed_ids))
        leaves.append(
            t.RequestLeaf(
                request_index=index,
                in_root=fed if stage == 0 else digest("boundary", index, answer, stage - 1),
                out_root=answer.out_root
                if stage == stages - 1
                else digest("boundary", index, answer, stage),
                tokens_in=len(answer.prompt_ids),
                tokens_out=len(answer.tokens),
            )
        )
    return leaves


def sign_receipt(
    operator: Signer,
    order: t.Order,
    plan: Sequence[t.Stage],
    stage: int,
    leaves: list[t.RequestLeaf],
    /,
    states: Sequence[str] | None = None,
    answers: Sequence[str] | None = None,
    **changes: Any,
) -> t.SignedReceipt:
    """A stage's receipt over these leaves, a last one's with these roots of `states`.

    A first one's with these `answers` of the last one; by default that was lost. `changes` replace
    fields before it is signed.
    """
    if states is None:
        states = [STATES] * len(leaves) if stage == len(plan) - 1 else []
    if stage:
        answers = []
    elif answers is None:
        answers = [leaf.out_root if len(plan) == 1 else t.ZERO_HASH for leaf in leaves]
    place = plan[stage]
    receipt = receipt_over(
        signing.order_hash(order),
        signing.plan_hash(tuple(plan)),
        stage,
        place,
        leaves,
        answers,
        shard_root=shard_root_of(place.layer_from, place.layer_to),
        started_at=NOW_S,
        signed_at=NOW_S + 1,
    )
    receipt = msgspec.structs.replace(receipt, **changes)
    signature = signing.sign(operator, DOMAIN, receipt)
    return t.SignedReceipt(receipt, signature, leaves, list(states), list(answers))
