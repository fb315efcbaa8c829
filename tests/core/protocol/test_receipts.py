"""A receipt is what its stage signed over its requests, and all stages' tell one story."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.receipts import check_receipt, disagreements, receipt_by_words
from tests.town.fleet import machine_key, make_job, make_order, make_receipt, make_words
from tests.town.orders import DOMAIN, key, sign_order

JOB = make_job(sign_order(make_order()), [(1, 0, 10), (2, 10, 30)])
RECEIPTS = tuple(
    make_receipt(JOB.signed.order, JOB.plan, i, (0, 1), machine_key(i + 1)) for i in (0, 1)
)


def receipt_problem(
    signed: t.SignedReceipt, stage: int = 1, requests: tuple[int, ...] = (0, 1)
) -> str | None:
    return check_receipt(JOB.signed.order, JOB.plan, stage, signed, requests, DOMAIN)


def test_an_honest_receipt_passes_and_chains() -> None:
    assert receipt_problem(RECEIPTS[1]) is None
    assert disagreements(RECEIPTS) == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stage": 0}, "another order, plan or stage"),
        ({"order_hash": "0x" + "01" * 32}, "another order, plan or stage"),
        ({"layer_to": 29}, "about layers"),
        ({"output_root": "0x" + "01" * 32}, "roots"),
        ({"tokens_out": 61}, "counts"),
    ],
)
def test_a_receipt_that_says_something_else_is_refused(
    changes: dict[str, object], words: str
) -> None:
    lying = msgspec.structs.replace(RECEIPTS[1].receipt, **changes)
    signature = signing.sign(machine_key(2), DOMAIN, lying)
    found = receipt_problem(t.SignedReceipt(lying, signature, RECEIPTS[1].leaves))
    assert found is not None
    assert words in found


def test_a_receipt_signed_by_somebody_else_or_over_other_requests_is_refused() -> None:
    other = make_receipt(JOB.signed.order, JOB.plan, 1, (0, 1), key(9))
    assert "not signed" in (receipt_problem(other) or "")
    assert "not those asked for" in (receipt_problem(RECEIPTS[1], requests=(0,)) or "")


def test_receipts_with_different_counts_do_not_chain() -> None:
    more = make_receipt(JOB.signed.order, JOB.plan, 1, (0, 1), machine_key(2), tokens_out=31)
    wrong = disagreements((RECEIPTS[0], more))
    assert wrong.keys() == {0, 1}
    assert all("count tokens differently" in why for why in wrong.values())


# --- words ---

WORDS = make_words(RECEIPTS[1], machine_key(2))


def by_words(
    words: Sequence[t.SignedWord], requests: Sequence[int] = (0, 1), stage: int = 1
) -> t.SignedReceipt | None:
    return receipt_by_words(JOB.signed.order, JOB.plan, stage, words, requests, DOMAIN)


def test_words_are_worth_the_receipt_over_their_requests() -> None:
    signed, receipt = by_words(WORDS), RECEIPTS[1].receipt
    assert signed is not None
    assert signed.leaves == RECEIPTS[1].leaves
    unsaid = {"shard_root": t.ZERO_HASH, "started_at": 0, "signed_at": 0}
    assert signed.receipt == msgspec.structs.replace(receipt, **unsaid)
    assert len(commit.unhex(signed.signature)) == 2 * 205
    assert disagreements((RECEIPTS[0], signed)) == {}
    (one,) = (by_words(WORDS, (1,)) or RECEIPTS[0]).leaves
    assert one == RECEIPTS[1].leaves[1]


def test_a_first_stages_words_name_the_answers_that_it_received() -> None:
    first = by_words(make_words(RECEIPTS[0], machine_key(1)), stage=0)
    assert first is not None
    assert first.answers == RECEIPTS[0].answers
    assert first.receipt.input_root == RECEIPTS[1].receipt.output_root
    assert disagreements((first, RECEIPTS[1])) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"order_hash": "0x" + "01" * 32},
        {"plan_hash": "0x" + "01" * 32},
        {"stage": 0},
        {"request_index": 5},
        {"answer_root": "0x" + "01" * 32},
    ],
)
def test_words_of_another_place_are_worth_nothing(changes: dict[str, Any]) -> None:
    word = msgspec.structs.replace(WORDS[1].word, **changes)
    other = t.SignedWord(word, signing.sign(machine_key(2), DOMAIN, word))
    assert by_words([WORDS[0], other]) is None


def test_words_that_are_missing_or_of_another_signer_are_worth_nothing() -> None:
    assert by_words([]) is None
    assert by_words(WORDS[:1]) is None
    assert by_words(WORDS, ()) is None
    assert by_words(make_words(RECEIPTS[1], key(9))) is None


def test_words_of_more_tokens_than_a_receipt_holds_are_worth_nothing() -> None:
    """Two neighbours could sign them to stop whoever collects receipts."""
    most = make_receipt(
        JOB.signed.order, JOB.plan, 1, (0,), machine_key(2), tokens_in=2**32 - 1, tokens_out=1
    )
    again = make_receipt(JOB.signed.order, JOB.plan, 1, (1,), machine_key(2), tokens_in=1)
    words = [*make_words(most, machine_key(2)), *make_words(again, machine_key(2))]
    assert by_words(words, (0,)) is not None
    assert by_words(words) is None
