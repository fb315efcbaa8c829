"""Is a receipt what a stage signed over its requests, and do all stages' tell one story?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from core.protocol import commit, signing
from core.protocol.types import ZERO_HASH, Order, SignedReceipt, Stage


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


def check_chain(receipts: Sequence[SignedReceipt]) -> str | None:
    """What does not fit between the stages' receipts; None when each input is the output before.

    A first stage's is the last one's, or zero for a request that was cut before that had said it.
    """
    first, last = receipts[0], receipts[-1]
    for answer, leaf in zip(first.answers, last.leaves, strict=True):
        if answer not in (leaf.out_root, ZERO_HASH):
            return f"stage 0 received another answer to request {leaf.request_index} than was drawn"
    for index, (before, after) in enumerate(pairwise(receipts), start=1):
        if after.receipt.input_root != before.receipt.output_root:
            return f"stage {index} received something else than stage {index - 1} sent"
        counts = (after.receipt.tokens_in, after.receipt.tokens_out)
        if counts != (before.receipt.tokens_in, before.receipt.tokens_out):
            return f"stages {index - 1} and {index} count tokens differently"
    return None
