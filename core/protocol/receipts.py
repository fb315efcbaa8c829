"""Is a receipt what a stage signed over its requests, and do all stages' tell one story?

A stage gives its word of each request to the next one, which signs nothing without it. Where it
keeps its receipt back, its words are worth one (`contracts/src/libraries/Words.sol`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from core.protocol import commit, signing
from core.protocol.types import (
    ZERO_HASH,
    LayerRange,
    Order,
    RequestLeaf,
    RequestWord,
    SignedReceipt,
    SignedWord,
    Stage,
    StageReceipt,
)

#: Of a word in the place of a signature: leaf 108, answer 32, signature 65.
WORD_BYTES = 205


def check_receipt(
    order: Order,
    plan: Sequence[Stage],
    index: int,
    signed: SignedReceipt,
    requests: Sequence[int],
    domain: signing.Domain,
) -> str | None:
    """What is wrong with a stage's receipt over exactly these requests; None when nothing is."""
    receipt, stage = signed.receipt, plan[index]
    expected = (signing.order_hash(order), signing.plan_hash(tuple(plan)), index)
    if (receipt.order_hash, receipt.plan_hash, receipt.stage) != expected:
        return "it is about another order, plan or stage"
    if (receipt.layer_from, receipt.layer_to) != (stage.layer_from, stage.layer_to):
        return f"it is about layers {receipt.layer_from}-{receipt.layer_to - 1}"
    if [leaf.request_index for leaf in signed.leaves] != list(requests):
        return "its requests are not those asked for"
    try:
        answers = signed.answers if index == 0 else None
        roots = tuple(commit.to_hex(root) for root in commit.receipt_roots(signed.leaves, answers))
    except ValueError as error:
        return str(error)
    if roots != (receipt.input_root, receipt.output_root, receipt.requests_root):
        return "its roots do not follow from its requests"
    sums = (
        len(signed.leaves),
        sum(leaf.tokens_in for leaf in signed.leaves),
        sum(leaf.tokens_out for leaf in signed.leaves),
    )
    if sums != (receipt.requests, receipt.tokens_in, receipt.tokens_out):
        return "its counts do not follow from its requests"
    if not signing.is_signed_by(domain, receipt, signed.signature, stage.operator):
        return f"it is not signed by {stage.operator}"
    return None


def is_inner_root(inner: Sequence[str], inner_root: str, spans: Sequence[LayerRange]) -> bool:
    """Whether these are the roots inside a stage of these spans, by what it signed."""
    own = commit.to_hex(commit.inner_root([commit.unhex(root) for root in inner]))
    return len(inner) == len(spans) - 1 and own == inner_root


def word_of(
    order_hash: str,
    plan_hash: str,
    stage: int,
    leaf: RequestLeaf,
    answer_root: str = ZERO_HASH,
) -> RequestWord:
    """What a stage says to the next one of a request; a first one also of the answer."""
    return RequestWord(
        order_hash=order_hash,
        plan_hash=plan_hash,
        stage=stage,
        request_index=leaf.request_index,
        in_root=leaf.in_root,
        out_root=leaf.out_root,
        tokens_in=leaf.tokens_in,
        tokens_out=leaf.tokens_out,
        answer_root=answer_root,
        inner_root=leaf.inner_root,
    )


def receipt_over(
    order_hash: str,
    plan_hash: str,
    index: int,
    stage: Stage,
    leaves: Sequence[RequestLeaf],
    answers: Sequence[str],
    *,
    shard_root: str = ZERO_HASH,
    started_at: int = 0,
    signed_at: int = 0,
) -> StageReceipt:
    """What stage number `index` says of these requests; of a first one `answers` are its input.

    Raises ValueError as `commit.receipt_roots` does.
    """
    roots = commit.receipt_roots(leaves, None if index else answers)
    input_root, output_root, requests_root = map(commit.to_hex, roots)
    return StageReceipt(
        order_hash=order_hash,
        plan_hash=plan_hash,
        stage=index,
        layer_from=stage.layer_from,
        layer_to=stage.layer_to,
        shard_root=shard_root,
        input_root=input_root,
        output_root=output_root,
        requests_root=requests_root,
        requests=len(leaves),
        tokens_in=sum(leaf.tokens_in for leaf in leaves),
        tokens_out=sum(leaf.tokens_out for leaf in leaves),
        started_at=started_at,
        signed_at=signed_at,
    )


def receipt_by_words(
    order: Order,
    plan: Sequence[Stage],
    index: int,
    words: Sequence[SignedWord],
    requests: Sequence[int],
    domain: signing.Domain,
) -> SignedReceipt | None:
    """The receipt over exactly these requests, ascending, that a stage's words are worth.

    None unless there is a word of each that the stage signed, and a receipt holds their counts.
    What words do not say is zero: weights and times.
    """
    stage, hashes = plan[index], (signing.order_hash(order), signing.plan_hash(tuple(plan)))
    said = {word.word.request_index: word for word in words}
    chosen = [said[request] for request in requests if request in said]
    if not requests or len(chosen) != len(requests):
        return None
    for word in chosen:
        answer_root = ZERO_HASH if index else word.word.answer_root
        if word.word != word_of(*hashes, index, word.word.leaf, answer_root):
            return None
        if not signing.is_signed_by(domain, word.word, word.signature, stage.operator):
            return None
    leaves = [word.word.leaf for word in chosen]
    answers = [] if index else [word.word.answer_root for word in chosen]
    try:
        receipt = receipt_over(*hashes, index, stage, leaves, answers)
    except ValueError:  # any counts may be signed
        return None
    packed = b"".join(
        commit.request_leaf_bytes(word.word.leaf)
        + commit.unhex(word.word.answer_root)
        + commit.unhex(word.signature)
        for word in chosen
    )
    inner = [word.inner for word in chosen] if any(word.inner for word in chosen) else []
    return SignedReceipt(receipt, commit.to_hex(packed), leaves, answers=answers, inner=inner)


def words_in(signed: SignedReceipt) -> list[SignedWord]:
    """The words that stand in the place of a receipt's signature; none in one that was signed."""
    data, receipt = commit.unhex(signed.signature), signed.receipt
    words = list[SignedWord]()
    for at in range(0, len(data) - len(data) % WORD_BYTES, WORD_BYTES):
        index, tokens_in, tokens_out = (
            int.from_bytes(data[at + i : at + i + 4], "big") for i in (0, 68, 72)
        )
        roots = (commit.to_hex(data[at + i : at + i + 32]) for i in (4, 36, 76, 108))
        came, went, inner, answer = roots
        leaf = RequestLeaf(index, came, went, tokens_in, tokens_out, inner)
        word = word_of(receipt.order_hash, receipt.plan_hash, receipt.stage, leaf, answer)
        words.append(SignedWord(word, commit.to_hex(data[at + 140 : at + WORD_BYTES])))
    return words


def disagreements(receipts: Sequence[SignedReceipt]) -> dict[int, str]:
    """What does not fit between the stages' receipts over the same requests, by request.

    Each input is the output of the stage before, a first stage's that of the last one, and all
    count tokens alike.
    """
    found = dict[int, str]()
    of_requests = zip(*(one.leaves for one in receipts), strict=True)
    for leaves, answer in zip(of_requests, receipts[0].answers, strict=True):
        request = leaves[0].request_index
        if answer != leaves[-1].out_root:
            found[request] = f"stage 0 did not hear the answer to request {request} that was drawn"
        for stage, (before, after) in enumerate(pairwise(leaves), start=1):
            if after.in_root != before.out_root:
                why = f"stage {stage} received something else than stage {stage - 1} sent"
                found.setdefault(request, why)
            counts = before.tokens_in, before.tokens_out
            if (after.tokens_in, after.tokens_out) != counts:
                why = f"stages {stage - 1} and {stage} count tokens differently"
                found.setdefault(request, why)
    return found


def equivocation(
    receipts: Sequence[SignedReceipt],
) -> tuple[tuple[SignedReceipt, int], tuple[SignedReceipt, int]] | None:
    """Two of a stage's receipts that have different leaves of one request, and their places."""
    known = dict[int, tuple[SignedReceipt, int]]()
    for signed in receipts:
        for position, leaf in enumerate(signed.leaves):
            one = known.setdefault(leaf.request_index, (signed, position))
            if one[0].leaves[one[1]] != leaf:
                return one, (signed, position)
    return None


def told(signed: SignedReceipt, position: int) -> tuple[Any, ...]:
    """One request of a receipt, as the contract Evidence takes it."""
    leaf, proof = signed.leaves[position], commit.request_proof(signed.leaves, position)
    return signed.receipt, signed.signature, leaf, position, proof
