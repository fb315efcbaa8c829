"""A pipeline's receipts hold as they were signed, or are refused by the field that differs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from client.orders.orders import PromptBatch
from client.pipeline.verify import (
    Bought,
    RegisteredShards,
    RequestAnswer,
    ack_of_leaves,
    check_answers,
    check_pipeline,
    check_receipt,
    complete_sets,
    disjoint,
)
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed
from tests.town.orders import (
    DOMAIN,
    answer_of,
    key,
    leaves_of,
    prompts,
    shard_root_of,
    sign_receipt,
)
from tests.town.stages import Stages

OTHER = "0x" + "ab" * 32


@pytest.fixture
def work() -> Stages:
    """Three operators with an order over four requests; nothing listens."""
    stages = Stages()
    stages.match(PromptBatch.of(prompts(4)))
    return stages


@pytest.fixture
def answers(work: Stages) -> dict[int, RequestAnswer]:
    return {i: work.answer(i) for i in range(4)}


def receipts_of(work: Stages, answers: dict[int, RequestAnswer]) -> list[t.SignedReceipt]:
    return [work.receipt(stage, answers) for stage in range(3)]


def check(work: Stages, receipts: list[t.SignedReceipt]) -> None:
    check_pipeline(
        receipts, Bought(DOMAIN, work.signed.order, work.plan, RegisteredShards(shard_root_of))
    )


def refused_field(work: Stages, receipts: list[t.SignedReceipt]) -> tuple[int, str]:
    with pytest.raises(CheckFailed) as caught:
        check(work, receipts)
    return caught.value.details["stage"], caught.value.details["field"]


def test_honest_receipts_hold(work: Stages, answers: dict[int, RequestAnswer]) -> None:
    receipts = receipts_of(work, answers)
    check(work, receipts)
    check_answers(receipts, answers)
    ack = ack_of_leaves(receipts[-1].leaves, work.signed.order, work.plan)
    assert ack.result_root == receipts[-1].receipt.output_root
    assert (ack.tokens_in, ack.tokens_out) == (
        sum(len(a.prompt_ids) for a in answers.values()),
        sum(len(a.tokens) for a in answers.values()),
    )
    assert ack.order_hash == work.order_hash


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("order_hash", OTHER),
        ("plan_hash", OTHER),
        ("stage", 9),
        ("layer_from", 3),
        ("layer_to", 4),
        ("shard_root", OTHER),
        ("input_root", OTHER),
        ("output_root", OTHER),
        ("requests_root", OTHER),
        ("requests", 3),
        ("tokens_in", 1),
        ("tokens_out", 1),
    ],
)
def test_signed_field_that_is_wrong_is_named(
    work: Stages, answers: dict[int, RequestAnswer], stage: int, field: str, value: Any
) -> None:
    receipts = receipts_of(work, answers)
    receipts[stage] = work.receipt(stage, answers, **{field: value})
    assert refused_field(work, receipts) == (stage, field)


@pytest.mark.parametrize("field", list(t.StageReceipt.__struct_fields__))
def test_field_changed_after_signing_is_refused(
    work: Stages, answers: dict[int, RequestAnswer], field: str
) -> None:
    signed = work.receipt(1, answers)
    value = getattr(signed.receipt, field)
    other = OTHER if isinstance(value, str) else value + 1
    changed = msgspec.structs.replace(signed.receipt, **{field: other})
    receipts = receipts_of(work, answers)
    receipts[1] = msgspec.structs.replace(signed, receipt=changed)
    stage, named = refused_field(work, receipts)
    assert stage == 1
    assert named == (field if field not in ("started_at", "signed_at") else "signature")


@pytest.mark.parametrize("field", list(t.RequestLeaf.__struct_fields__))
def test_leaf_changed_after_signing_is_refused(
    work: Stages, answers: dict[int, RequestAnswer], field: str
) -> None:
    signed = work.receipt(1, answers)
    value = getattr(signed.leaves[-1], field)
    other = OTHER if isinstance(value, str) else value + 1
    leaf = msgspec.structs.replace(signed.leaves[-1], **{field: other})
    receipts = receipts_of(work, answers)
    receipts[1] = msgspec.structs.replace(signed, leaves=[*signed.leaves[:-1], leaf])
    assert refused_field(work, receipts)[0] == 1


@pytest.mark.parametrize(("stage", "states"), [(2, 0), (2, 3), (2, 5), (0, 1), (1, 4)])
def test_a_last_stage_names_the_root_of_every_request_s_state_rows_and_no_other_does(
    work: Stages, answers: dict[int, RequestAnswer], stage: int, states: int
) -> None:
    receipts = receipts_of(work, answers)
    receipts[stage] = msgspec.structs.replace(receipts[stage], states=[OTHER] * states)
    assert refused_field(work, receipts) == (stage, "states")


def test_tokens_with_other_states_than_were_signed_are_refused(
    work: Stages, answers: dict[int, RequestAnswer]
) -> None:
    receipts = receipts_of(work, answers)
    roots = [*receipts[2].states[:-1], OTHER]
    receipts[2] = msgspec.structs.replace(receipts[2], states=roots)
    check(work, receipts)
    with pytest.raises(CheckFailed) as caught:
        check_answers(receipts, answers)
    assert (caught.value.details["stage"], caught.value.details["field"]) == (2, "out_root")


def test_signature_of_somebody_else_is_refused(
    work: Stages, answers: dict[int, RequestAnswer]
) -> None:
    receipts = receipts_of(work, answers)
    leaves = leaves_of(answers, 1, 3)
    receipts[1] = sign_receipt(key(999), work.signed.order, work.plan, 1, leaves)
    assert refused_field(work, receipts) == (1, "signature")
    stolen = msgspec.structs.replace(receipts[1], signature="0x" + "00" * 65)
    assert refused_field(work, [receipts[0], stolen, receipts[2]]) == (1, "signature")


def test_signature_for_another_chain_is_refused(
    work: Stages, answers: dict[int, RequestAnswer]
) -> None:
    elsewhere = signing.Domain(1, DOMAIN.verifying_contract)
    bought = Bought(elsewhere, work.signed.order, work.plan, RegisteredShards(shard_root_of))
    with pytest.raises(CheckFailed) as caught:
        check_receipt(work.receipt(0, answers), bought, 0)
    assert caught.value.details["field"] == "signature"


def test_leaves_out_of_order_are_refused(work: Stages, answers: dict[int, RequestAnswer]) -> None:
    receipts = receipts_of(work, answers)
    swapped = list(reversed(receipts[0].leaves))
    receipts[0] = msgspec.structs.replace(receipts[0], leaves=swapped)
    assert refused_field(work, receipts) == (0, "leaves")


def test_missing_stage_is_refused(work: Stages, answers: dict[int, RequestAnswer]) -> None:
    assert refused_field(work, receipts_of(work, answers)[:2])[1] == "count"


def resigned(
    work: Stages, stage: int, answers: dict[int, RequestAnswer], **leaf_changes: Any
) -> t.SignedReceipt:
    """A receipt whose first leaf says something else, rightly signed."""
    leaves = leaves_of(answers, stage, 3)
    leaves[0] = msgspec.structs.replace(leaves[0], **leaf_changes)
    return sign_receipt(work.operators[stage], work.signed.order, work.plan, stage, leaves)


@pytest.mark.parametrize("stage", [1, 2])
def test_input_that_is_not_the_predecessors_output_is_refused(
    work: Stages, answers: dict[int, RequestAnswer], stage: int
) -> None:
    receipts = receipts_of(work, answers)
    receipts[stage] = resigned(work, stage, answers, in_root=OTHER)
    assert refused_field(work, receipts) == (stage, "input_root")


@pytest.mark.parametrize("field", ["tokens_in", "tokens_out"])
def test_counts_that_differ_between_stages_are_refused(
    work: Stages, answers: dict[int, RequestAnswer], field: str
) -> None:
    receipts = receipts_of(work, answers)
    receipts[2] = resigned(work, 2, answers, **{field: 77})
    assert refused_field(work, receipts) == (2, "counts")


def test_stages_that_signed_for_different_requests_are_refused(
    work: Stages, answers: dict[int, RequestAnswer]
) -> None:
    receipts = receipts_of(work, answers)
    receipts[1] = work.receipt(1, {i: answers[i] for i in (0, 1, 2)})
    assert refused_field(work, receipts) == (1, "counts")


def changed_everywhere(
    work: Stages, answers: dict[int, RequestAnswer], **changes: Any
) -> list[t.SignedReceipt]:
    return [resigned(work, stage, answers, **changes) for stage in range(3)]


@pytest.mark.parametrize(
    ("make", "stage", "field"),
    [
        (lambda w, a: [resigned(w, 0, a, in_root=OTHER)], 0, "in_root"),
        (lambda w, a: changed_everywhere(w, a, tokens_in=8), 0, "tokens_in"),
        (lambda w, a: changed_everywhere(w, a, tokens_out=8), 0, "tokens_out"),
        (lambda w, a: [None, None, resigned(w, 2, a, out_root=OTHER)], 2, "out_root"),
    ],
)
def test_ends_that_are_not_what_we_sent_and_got_are_refused(
    work: Stages, answers: dict[int, RequestAnswer], make: Any, stage: int, field: str
) -> None:
    receipts = receipts_of(work, answers)
    for at, signed in enumerate(make(work, answers)):
        receipts[at] = signed or receipts[at]
    with pytest.raises(CheckFailed) as caught:
        check_answers(receipts, answers)
    assert (caught.value.details["stage"], caught.value.details["field"]) == (stage, field)


@pytest.mark.parametrize("indices", [[0, 1, 2], [0, 1, 2, 3, 4], []])
def test_receipts_over_other_requests_than_ours_are_refused(
    work: Stages, answers: dict[int, RequestAnswer], indices: list[int]
) -> None:
    ours = {i: answers.get(i) or answer_of(prompts(5)[4]) for i in indices}
    with pytest.raises(CheckFailed) as caught:
        check_answers(receipts_of(work, answers), ours)
    assert caught.value.details["field"] == "requests"


def test_last_token_is_never_fed() -> None:
    answer = RequestAnswer((1, 2), (7, 8, 9))
    assert answer.fed_ids == (1, 2, 7, 8)
    assert RequestAnswer((1, 2), (7,)).fed_ids == (1, 2)


def test_complete_sets_are_those_all_stages_signed_widest_first(
    work: Stages, answers: dict[int, RequestAnswer]
) -> None:
    singles = [receipts_of(work, {i: answers[i]}) for i in (3, 0)]
    pair = receipts_of(work, {i: answers[i] for i in (0, 1)})
    lonely = work.receipt(0, {2: answers[2]})
    found = complete_sets([*singles[0], lonely, *singles[1], *reversed(pair)], 3)
    assert found == [pair, singles[0], singles[1]]
    assert disjoint(found) == [pair, singles[0]]


def test_ack_is_over_exactly_the_leaves_given(
    work: Stages, answers: dict[int, RequestAnswer]
) -> None:
    leaves = leaves_of({i: answers[i] for i in (1, 3)}, 2, 3)
    ack = ack_of_leaves(leaves, work.signed.order, work.plan)
    assert ack.result_root == commit.to_hex(commit.receipt_roots(leaves)[1])
    assert ack.tokens_out == 8
