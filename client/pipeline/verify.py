"""Do receipts say what was bought and what arrived: signatures, layers, roots, counts, tokens?

Nothing here runs a model; `client/audit/rerun.py` does. These checks cost microseconds, so a
requester makes all of them before it acknowledges anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from core.protocol import commit, signing
from core.protocol.errors import CheckFailed
from core.protocol.receipts import is_inner_root, receipt_by_words, words_in
from core.protocol.types import ZERO_HASH, Ack, Order, RequestLeaf, SignedReceipt, Stage

ShardRootOf = Callable[[int, int], str]


@dataclass(frozen=True)
class RegisteredShards:
    """The commitment to each shard's weights, and after how many layers of a stage it signs a
    boundary inside it (0: nowhere).
    """

    root_of: ShardRootOf
    span_layers: int = 0


@dataclass(frozen=True)
class RequestAnswer:
    """What one request came back as: its prompt's and its produced token ids."""

    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    states_root: str = ZERO_HASH  # of the state rows that a last stage signed beside the tokens

    @property
    def fed_ids(self) -> tuple[int, ...]:
        """Ids that entered the first stage: the last token is never fed back."""
        return self.prompt_ids + self.tokens[:-1]

    @property
    def in_root(self) -> str:
        """What its first stage commits to."""
        return commit.to_hex(commit.tokens_root(self.fed_ids))

    @property
    def out_root(self) -> str:
        """What its last stage commits to."""
        tokens_root = commit.tokens_root(self.tokens)
        return commit.to_hex(commit.answer_root(tokens_root, commit.unhex(self.states_root)))

    def leaf(self, index: int) -> RequestLeaf:
        """What an Ack says of it: the result only."""
        counts = len(self.prompt_ids), len(self.tokens)
        return RequestLeaf(index, ZERO_HASH, self.out_root, *counts)


@dataclass(frozen=True)
class Bought:
    """What a job's receipts must be about: its order and plan, and the registered weights."""

    domain: signing.Domain
    order: Order
    plan: Sequence[Stage]
    shards: RegisteredShards


def check_receipt(
    signed: SignedReceipt, bought: Bought, stage: int, *, is_shown: bool = True
) -> None:
    """Raise CheckFailed, naming the field, unless this is the stage's receipt for the job.

    One that the stage has not `is_shown` itself may be worth its words, and lacks roots of states.
    """
    receipt, place = signed.receipt, bought.plan[stage]
    by_words = words_in(signed) if not is_shown else []
    expected = {
        "order_hash": signing.order_hash(bought.order),
        "plan_hash": signing.plan_hash(tuple(bought.plan)),
        "stage": stage,
        "layer_from": place.layer_from,
        "layer_to": place.layer_to,
        "shard_root": (
            ZERO_HASH if by_words else bought.shards.root_of(place.layer_from, place.layer_to)
        ),
        "requests": len(signed.leaves),
        "tokens_in": sum(leaf.tokens_in for leaf in signed.leaves),
        "tokens_out": sum(leaf.tokens_out for leaf in signed.leaves),
    }
    try:
        answers = signed.answers if stage == 0 else None
        roots = [commit.to_hex(root) for root in commit.receipt_roots(signed.leaves, answers)]
    except ValueError as error:
        raise _failed(stage, "leaves", str(error)) from None
    expected |= dict(zip(("input_root", "output_root", "requests_root"), roots, strict=True))
    for name, value in expected.items():
        if getattr(receipt, name) != value:
            raise _failed(stage, name, f"signed {getattr(receipt, name)}, expected {value}")
    if stage and signed.answers:
        raise _failed(stage, "answers", f"{len(signed.answers)}, which a first stage alone has")
    states = len(signed.leaves) if stage == len(bought.plan) - 1 else 0
    if len(signed.states) != states and (is_shown or signed.states):
        why = f"{len(signed.states)} roots of state rows, expected {states}"
        raise _failed(stage, "states", why)
    spans = place.layers.spans(bought.shards.span_layers)
    inner = signed.inner or [[] for _ in signed.leaves]
    if len(inner) != len(signed.leaves):
        raise _failed(stage, "inner", f"roots inside it of {len(inner)} requests")
    for leaf, roots in zip(signed.leaves, inner, strict=True):
        if not is_inner_root(roots, leaf.inner_root, spans):
            why = f"request {leaf.request_index}: {len(roots)} roots inside it, and not what it "
            raise _failed(stage, "inner", f"{why}signed, of {len(spans) - 1} boundaries")
    if by_words:
        job, requests = (bought.order, bought.plan), [leaf.request_index for leaf in signed.leaves]
        worth = receipt_by_words(*job, stage, by_words, requests, bought.domain)
        if worth is None or worth.receipt != receipt:
            raise _failed(stage, "signature", "the words are not worth it")
        return
    if not signing.is_signed_by(bought.domain, receipt, signed.signature, place.operator):
        raise _failed(stage, "signature", f"not by the stage's operator {place.operator}")


def check_pipeline(
    receipts: Sequence[SignedReceipt], bought: Bought, *, are_shown: bool = True
) -> None:
    """Raise CheckFailed unless each stage has a receipt over the same requests, in one chain.

    `are_shown`: by the stages themselves (`check_receipt`).
    """
    if len(receipts) != len(bought.plan):
        why = f"{len(receipts)} receipts for {len(bought.plan)} stages"
        raise _failed(len(receipts), "count", why)
    for stage, signed in enumerate(receipts):
        check_receipt(signed, bought, stage, is_shown=are_shown)
    for stage in range(1, len(receipts)):
        before, after = receipts[stage - 1].leaves, receipts[stage].leaves
        if [_counts(leaf) for leaf in before] != [_counts(leaf) for leaf in after]:
            raise _failed(stage, "counts", f"differ from those of stage {stage - 1}")
        for sent, taken in zip(before, after, strict=True):
            _expect_fed(stage, sent, taken)
    for position, leaf in enumerate(receipts[-1].leaves):
        _expect_answered(receipts[0], position, leaf)


def complete_sets(receipts: Iterable[SignedReceipt], stages: int) -> list[list[SignedReceipt]]:
    """Of each set of requests that all stages signed for the receipts by stage; widest first."""
    by_set: dict[tuple[int, ...], dict[int, SignedReceipt]] = {}
    for signed in receipts:
        indices = tuple(leaf.request_index for leaf in signed.leaves)
        by_set.setdefault(indices, {})[signed.receipt.stage] = signed
    complete = [
        [found[stage] for stage in range(stages)]
        for found in by_set.values()
        if found.keys() >= set(range(stages))
    ]
    return sorted(complete, key=lambda pipeline: -len(pipeline[0].leaves))


def covered(pipeline: Sequence[SignedReceipt]) -> list[int]:
    """The requests that a pipeline's receipts are over."""
    return [leaf.request_index for leaf in pipeline[0].leaves]


def disjoint(pipelines: Iterable[list[SignedReceipt]]) -> list[list[SignedReceipt]]:
    """Each request once: those pipelines that are over none that was in an earlier one."""
    chosen: list[list[SignedReceipt]] = []
    known: set[int] = set()
    for pipeline in pipelines:
        indices = covered(pipeline)
        if known.isdisjoint(indices):
            known.update(indices)
            chosen.append(pipeline)
    return chosen


def states_of(receipts: Iterable[SignedReceipt]) -> dict[int, str]:
    """By request the root of its state rows, of a last stage's receipts among these."""
    return {
        leaf.request_index: root
        for signed in receipts
        for leaf, root in zip(signed.leaves, signed.states, strict=False)
    }


def check_answers(receipts: Sequence[SignedReceipt], answers: Mapping[int, RequestAnswer]) -> None:
    """Raise CheckFailed unless checked receipts of a pipeline are over just these answers."""
    last = len(receipts) - 1
    if covered(receipts) != sorted(answers):
        raise _failed(0, "requests", f"signed for {covered(receipts)}, we have {sorted(answers)}")
    states = states_of(receipts)
    for first_leaf, last_leaf in zip(receipts[0].leaves, receipts[last].leaves, strict=True):
        index = first_leaf.request_index
        answer = replace(answers[index], states_root=states[index])
        _expect_counts(0, first_leaf, answer)
        _expect(0, first_leaf, "in_root", answer.in_root)
        _expect(last, last_leaf, "out_root", answer.out_root)


def check_part(
    receipts: Mapping[int, SignedReceipt], bought: Bought, index: int, answer: RequestAnswer
) -> None:
    """Raise CheckFailed unless these receipts, by stage, are over just this much of a request."""
    last = len(bought.plan) - 1
    for stage, signed in receipts.items():
        check_receipt(signed, bought, stage)
        if covered([signed]) != [index]:
            raise _failed(stage, "requests", f"signed for {covered([signed])}, not for {index}")
        leaf = signed.leaves[0]
        _expect_counts(stage, leaf, answer)
        if stage == 0:
            _expect(stage, leaf, "in_root", answer.in_root)
        if stage == last:
            signed_for = replace(answer, states_root=signed.states[0])
            _expect(stage, leaf, "out_root", signed_for.out_root)
        if (before := receipts.get(stage - 1)) is not None:
            _expect_fed(stage, before.leaves[0], leaf)
        if stage == last and 0 in receipts:
            _expect_answered(receipts[0], 0, leaf)


def ack_of_answers(
    answers: Mapping[int, RequestAnswer], order: Order, plan: Sequence[Stage]
) -> Ack:
    """The acknowledgement of these answers, as far as they came: what is here is what is paid."""
    leaves = [answer.leaf(index) for index, answer in sorted(answers.items())]
    return ack_of_leaves(leaves, order, plan)


def ack_of_leaves(leaves: Sequence[RequestLeaf], order: Order, plan: Sequence[Stage]) -> Ack:
    """The acknowledgement of these requests as the last stage committed them."""
    _, output_root, _ = commit.receipt_roots(leaves)
    return Ack(
        order_hash=signing.order_hash(order),
        plan_hash=signing.plan_hash(tuple(plan)),
        result_root=commit.to_hex(output_root),
        tokens_in=sum(leaf.tokens_in for leaf in leaves),
        tokens_out=sum(leaf.tokens_out for leaf in leaves),
    )


def at_least(ack: Ack, paid: tuple[int, int]) -> Ack:
    """An acknowledgement of no fewer tokens in and out than these, which were paid on the way.

    What was paid before its end stays paid, whatever became of it.
    """
    tokens_in, tokens_out = max(ack.tokens_in, paid[0]), max(ack.tokens_out, paid[1])
    return msgspec.structs.replace(ack, tokens_in=tokens_in, tokens_out=tokens_out)


def _counts(leaf: RequestLeaf) -> tuple[int, int, int]:
    return leaf.request_index, leaf.tokens_in, leaf.tokens_out


def _expect(stage: int, leaf: RequestLeaf, name: str, value: object) -> None:
    if getattr(leaf, name) != value:
        why = f"request {leaf.request_index}: signed {getattr(leaf, name)}, we have {value}"
        raise _failed(stage, name, why)


def _expect_counts(stage: int, leaf: RequestLeaf, answer: RequestAnswer) -> None:
    _expect(stage, leaf, "tokens_in", len(answer.prompt_ids))
    _expect(stage, leaf, "tokens_out", len(answer.tokens))


def _expect_fed(stage: int, sent: RequestLeaf, taken: RequestLeaf) -> None:
    if sent.out_root != taken.in_root:
        why = f"request {taken.request_index}: differs from what stage {stage - 1} sent"
        raise _failed(stage, "input_root", why)


def _expect_answered(first: SignedReceipt, position: int, drawn: RequestLeaf) -> None:
    """A first stage's input is the last one's output, if that was there to say it."""
    if first.answers[position] not in (drawn.out_root, ZERO_HASH):
        why = f"request {drawn.request_index}: differs from what the last stage answered"
        raise _failed(0, "input_root", why)


def _failed(stage: int, field: str, why: str) -> CheckFailed:
    return CheckFailed(
        f"the receipt of stage {stage} does not hold: {field}",
        why,
        state="nothing was acknowledged, so nothing is paid for it",
        stage=stage,
        field=field,
    )
