"""Rows, leaves and openings are believed only under what was signed, whoever hands them over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from client.audit.evidence import (
    Delegation,
    EvidenceCollector,
    case_of_job,
    delivered_receipts,
    events_named,
    leaves_match,
    tokens_in,
)
from client.orders.orders import PromptBatch
from client.pipeline.verify import Bought, RegisteredShards, check_pipeline
from core.chain.chain import ChainCall
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import CheckFailed, HeadraceError, IdInvalid, RowsWithheld
from core.protocol.receipts import receipt_by_words, word_of, words_in
from tests.client.keepers import Keepers
from tests.town.chain import FakeChain
from tests.town.orders import DOMAIN, SPANS, answer_of, prompts, shard_root_of

WIDTH = 16


@pytest.fixture
async def keepers() -> AsyncIterator[Keepers]:
    keepers = await made_keepers()
    yield keepers
    await keepers.close()


async def made_keepers() -> Keepers:
    """Three stages with made-up rows of three requests, and one receipt each over all of them."""
    batch = PromptBatch.of(prompts(3))
    keepers = Keepers(batch, SPANS)
    for index, prompt in enumerate(batch.prompts):
        answer = answer_of(prompt)
        count = len(answer.fed_ids)
        ids = (commit.token_bytes(answer.fed_ids), 4)
        between = [(bytes([index, cut]) * (WIDTH // 2) * count, WIDTH) for cut in (1, 2)]
        boundaries = [ids, *between, (commit.token_bytes(answer.tokens), 4)]
        for stage in range(3):
            keepers.rows[stage, "in", index] = boundaries[stage]
            keepers.rows[stage, "out", index] = boundaries[stage + 1]
        keepers.rows[2, "states", index] = (bytes([index]) * WIDTH * len(answer.tokens), WIDTH)
    keepers.sign_all()
    await keepers.start()
    return keepers


def fetches(keepers: Keepers) -> list[int]:
    return [stage for stage, m in keepers.asked if isinstance(m, wire.FetchRows)]


# --- rows ---


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("side", ["in", "out"])
async def test_rows_come_from_the_stage_itself(keepers: Keepers, stage: int, side: Any) -> None:
    data, width = keepers.rows[stage, side, 1]
    assert await keepers.evidence().rows(stage, side, keepers.leaf(stage, 1), width) == data
    assert fetches(keepers) == [stage]


async def test_tokens_and_states_of_the_last_stage_are_believed_only_together(
    keepers: Keepers,
) -> None:
    data, width = keepers.rows[2, "states", 1]
    leaf = keepers.leaf(2, 1)
    assert await keepers.evidence().rows(2, "states", leaf, width) == data
    tokens = keepers.rows[2, "out", 1]
    keepers.rows[2, "states", 1] = (data[:-1] + b"\xff", width)
    for side, row_bytes in (("out", 4), ("states", width)):
        with pytest.raises(RowsWithheld, match="do not match the signed root"):
            await keepers.evidence().rows(2, side, leaf, row_bytes)  # type: ignore[arg-type]
    del keepers.rows[2, "states", 1]  # and nothing stands beside the tokens
    with pytest.raises(RowsWithheld, match="do not match the signed root"):
        await keepers.evidence().rows(2, "out", leaf, 4)
    # What stands alone under a root is no answer's half.
    keepers.rows[2, "states", 1] = (data, width)
    alone = msgspec.structs.replace(leaf, out_root=commit.to_hex(commit.rows_root(*tokens)))
    with pytest.raises(RowsWithheld, match="do not match the signed root"):
        await keepers.evidence().rows(2, "out", alone, 4)


@pytest.mark.parametrize(("side", "neighbour"), [("in", 0), ("out", 2)])
async def test_rows_come_from_the_neighbour_when_the_stage_refuses(
    keepers: Keepers, side: Any, neighbour: int
) -> None:
    keepers.refuse(1)
    data, width = keepers.rows[1, side, 1]
    assert await keepers.evidence().rows(1, side, keepers.leaf(1, 1), width) == data
    assert fetches(keepers) == [1, neighbour]


async def test_wrong_rows_are_not_believed_whoever_sends_them(keepers: Keepers) -> None:
    leaf = keepers.leaf(1, 1)
    good, width = keepers.rows[1, "in", 1]
    keepers.rows[1, "in", 1] = (good[:-1] + b"!", width)
    assert await keepers.evidence().rows(1, "in", leaf, width) == good
    keepers.rows[0, "out", 1] = keepers.rows[1, "in", 1]
    with pytest.raises(RowsWithheld) as caught:
        await keepers.evidence().rows(1, "in", leaf, width)
    assert caught.value.why.count("do not match the signed root") == 2
    assert caught.value.details["stage"] == 1


async def test_rows_that_nobody_hands_over_are_withheld_with_every_reason(
    keepers: Keepers,
) -> None:
    keepers.refuse(0, 1)
    with pytest.raises(RowsWithheld) as caught:
        await keepers.evidence().rows(1, "in", keepers.leaf(1, 1), WIDTH)
    assert "stage 1: " in caught.value.why
    assert "stage 0: " in caught.value.why
    assert "it is gone" in caught.value.why


async def test_ends_of_the_pipeline_have_no_neighbour(keepers: Keepers) -> None:
    keepers.refuse(0)
    with pytest.raises(RowsWithheld):
        await keepers.evidence().rows(0, "in", keepers.leaf(0, 1), 4)
    assert fetches(keepers) == [0]


async def test_operator_without_endpoint_is_withholding(keepers: Keepers) -> None:
    nowhere = EvidenceCollector(keepers.case, keepers.evidence()._domain, keepers.peers, {})
    with pytest.raises(RowsWithheld, match="are missing"):
        await nowhere.rows(1, "in", keepers.leaf(1, 1), WIDTH)


@pytest.mark.parametrize("most", [1, 2, 4, 5])
async def test_rows_are_fetched_in_as_many_pieces_as_it_takes(keepers: Keepers, most: int) -> None:
    keepers.most_rows = most
    data, width = keepers.rows[1, "in", 1]
    assert await keepers.evidence().rows(1, "in", keepers.leaf(1, 1), width) == data
    assert len(fetches(keepers)) == -(-len(data) // width // most)


def shape(**changes: Any) -> Any:
    """A reply to FetchRows whose header says something else than its payload."""

    def answer(message: wire.AnyMessage) -> Any:
        if not isinstance(message, wire.FetchRows):
            return None
        told = {"start": message.start, "rows": 7, "row_bytes": WIDTH, "total": 7} | changes
        return wire.Rows(**told), bytes(7 * WIDTH)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        shape(row_bytes=WIDTH * 2),
        shape(row_bytes=0),
        shape(rows=0),
        shape(rows=8),
        shape(rows=2**32 - 1),
        shape(start=1),
        shape(total=3),
        shape(total=2**32 - 1),
        lambda _: wire.Pong(),
        lambda _: wire.Receipts([]),
        lambda _: wire.Failed("E-BUG-01", "x" * 2000),
    ],
)
async def test_malformed_reply_is_that_stages_refusal(keepers: Keepers, answer: Any) -> None:
    keepers.answers[1] = answer
    data, width = keepers.rows[1, "in", 1]
    assert await keepers.evidence().rows(1, "in", keepers.leaf(1, 1), width) == data
    keepers.answers[0] = answer
    with pytest.raises(RowsWithheld):
        await keepers.evidence().rows(1, "in", keepers.leaf(1, 1), width)


async def test_stage_that_stalls_is_not_waited_for(keepers: Keepers) -> None:
    keepers.stalling = {1}
    evidence = keepers.evidence(patience_s=0.3)
    data, width = keepers.rows[1, "in", 1]
    assert await evidence.rows(1, "in", keepers.leaf(1, 1), width) == data
    keepers.stalling = {0, 1}
    with pytest.raises(RowsWithheld) as caught:
        await evidence.rows(1, "in", keepers.leaf(1, 1), width)
    assert caught.value.why.count("not all rows in 0.3 s") == 2


# --- receipts ---


async def test_receipts_that_are_not_genuine_are_passed_over(keepers: Keepers) -> None:
    (good,) = keepers.receipts[1]
    leaves = good.leaves
    other = "0x" + "ee" * 32
    keepers.receipts[1] = [
        keepers.sign(1, leaves, order_hash=other),
        keepers.sign(1, leaves, plan_hash=other),
        keepers.sign(1, leaves, stage=0),
        keepers.sign(1, leaves, input_root=other),
        msgspec.structs.replace(good, leaves=leaves[:-1]),
        msgspec.structs.replace(good, leaves=leaves[::-1]),
        msgspec.structs.replace(good, signature=keepers.receipts[0][0].signature),
        good,
    ]
    assert await keepers.evidence().receipts(1) == [good]


async def test_pipelines_are_the_widest_sets_that_all_signed(keepers: Keepers) -> None:
    whole = [keepers.receipts[stage][0] for stage in range(3)]
    for stage in range(3):
        single = keepers.sign(stage, [keepers.leaf(stage, 0)])
        keepers.receipts[stage].insert(0, single)
    assert await keepers.evidence().pipelines() == [whole]
    keepers.receipts[2].pop()  # the last stage signed for request 0 alone
    (only,) = await keepers.evidence().pipelines()
    assert [len(r.leaves) for r in only] == [1, 1, 1]
    keepers.receipts[2] = []
    with pytest.raises(CheckFailed, match="nothing that all stages signed for") as caught:
        await keepers.evidence().pipelines()
    assert "stage 2" in caught.value.why


async def test_stage_that_refuses_its_receipts_is_named(keepers: Keepers) -> None:
    keepers.refuse(1)
    with pytest.raises(HeadraceError, match="stage 1 refused"):
        await keepers.evidence().pipelines()


def words_of(keepers: Keepers, stage: int) -> list[t.SignedWord]:
    place = keepers.case.order_hash, keepers.case.plan_hash, stage
    answers = [t.ZERO_HASH if stage else keepers.leaf(2, i).out_root for i in range(3)]
    said = [word_of(*place, keepers.leaf(stage, i), answer) for i, answer in enumerate(answers)]
    return [
        t.SignedWord(word, signing.sign(keepers.operators[stage], DOMAIN, word)) for word in said
    ]


@pytest.mark.parametrize("stage", range(3))
async def test_a_stage_that_shows_no_receipt_is_audited_by_its_words(
    keepers: Keepers, stage: int
) -> None:
    keepers.words[(stage + 1) % 3] = words_of(keepers, stage)
    keepers.refuse(stage)
    (pipeline,) = await keepers.evidence().pipelines()
    assert pipeline[stage].leaves == keepers.receipts[stage][0].leaves
    bought = Bought(DOMAIN, keepers.order, keepers.plan, RegisteredShards(shard_root_of))
    check_pipeline(pipeline, bought, are_shown=False)
    with pytest.raises(CheckFailed):
        check_pipeline(pipeline, bought)
    spoilt = msgspec.structs.replace(pipeline[stage].receipt, output_root="0x" + "01" * 32)
    pipeline[stage] = msgspec.structs.replace(pipeline[stage], receipt=spoilt)
    with pytest.raises(CheckFailed):
        check_pipeline(pipeline, bought, are_shown=False)


@pytest.mark.parametrize("stage", [1, 2])
async def test_a_stage_that_shows_no_receipt_is_audited_by_what_was_delivered(
    keepers: Keepers, stage: int
) -> None:
    """The receipt stands in the transaction, its leaves follow from those of its neighbours."""

    async def delivered() -> list[t.SignedReceipt]:
        return [
            msgspec.structs.replace(of[0], leaves=[], states=[], answers=[])
            for of in keepers.receipts.values()
        ]

    keepers.refuse(stage)
    (pipeline,) = await keepers.evidence(delivered=delivered).pipelines()
    assert pipeline[stage].leaves == keepers.receipts[stage][0].leaves
    bought = Bought(DOMAIN, keepers.order, keepers.plan, RegisteredShards(shard_root_of))
    check_pipeline(pipeline, bought, are_shown=False)


async def test_words_that_were_delivered_are_read_too(keepers: Keepers) -> None:
    words = words_of(keepers, 1)
    worth = receipt_by_words(keepers.order, keepers.plan, 1, words, range(3), DOMAIN)
    assert worth is not None
    assert words_in(worth) == words

    async def delivered() -> list[t.SignedReceipt]:
        return [msgspec.structs.replace(worth, leaves=[])]

    keepers.refuse(1)
    assert await keepers.evidence(delivered=delivered).receipts(1) == [worth]


async def test_leaves_come_from_the_stage_or_from_between_its_neighbours(
    keepers: Keepers,
) -> None:
    (signed,) = keepers.receipts[1]
    assert await keepers.evidence().leaves_of(signed.receipt) == signed.leaves
    keepers.refuse(1)
    for stage in (0, 2):  # beside others that do not fit
        keepers.receipts[stage].insert(0, keepers.sign(stage, [keepers.leaf(stage, 0)]))
    assert await keepers.evidence().leaves_of(signed.receipt) == signed.leaves
    keepers.refuse(0)
    with pytest.raises(RowsWithheld, match="stage 1 does not open its receipt"):
        await keepers.evidence().leaves_of(signed.receipt)


async def test_leaves_of_an_end_come_from_nobody_else(keepers: Keepers) -> None:
    keepers.refuse(0)
    with pytest.raises(RowsWithheld):
        await keepers.evidence().leaves_of(keepers.receipts[0][0].receipt)


def test_leaves_match_only_their_own_receipt() -> None:
    leaf = t.RequestLeaf(0, "0x" + "01" * 32, "0x" + "02" * 32, 3, 4)
    for stage, answers in ((0, ["0x" + "03" * 32]), (1, [])):
        made = commit.receipt_roots([leaf], answers or None)
        roots = [commit.to_hex(root) for root in made]
        place = t.ZERO_HASH, t.ZERO_HASH, stage, 0, 1, t.ZERO_HASH
        receipt = t.StageReceipt(*place, *roots, 1, 3, 4, 0, 0)
        assert leaves_match(receipt, [leaf], answers)
        assert not leaves_match(receipt, [], [])
        assert not leaves_match(receipt, [leaf, leaf], answers * 2)
        for field in ("input_root", "output_root", "requests_root"):
            other = msgspec.structs.replace(receipt, **{field: t.ZERO_HASH})
            assert not leaves_match(other, [leaf], answers)
        for field in ("requests", "tokens_in", "tokens_out"):
            other = msgspec.structs.replace(receipt, **{field: 9})
            assert not leaves_match(other, [leaf], answers)
        if not stage:
            assert not leaves_match(receipt, [leaf], [t.ZERO_HASH])
            assert not leaves_match(receipt, [leaf], [])


# --- openings ---


@pytest.mark.parametrize("refusing", [(), (0,), (2,)])
async def test_opening_comes_from_either_end(keepers: Keepers, refusing: tuple[int, ...]) -> None:
    keepers.refuse(*refusing)
    opened = await keepers.evidence().opening(1)
    assert opened.prompt_ids == keepers.batch.prompts[1].ids
    assert opened.sampling == keepers.batch.prompts[1].sampling


def tampered(keepers: Keepers, **changes: Any) -> Any:
    def answer(message: wire.AnyMessage) -> Any:
        opening, payload = keepers.opening(message.request)  # type: ignore[union-attr]
        payload = changes.get("payload", payload)
        fields = {k: v for k, v in changes.items() if k != "payload"}
        return msgspec.structs.replace(opening, **fields), payload

    return answer


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": b""},
        {"payload": b"\x01\x02\x03"},
        {"payload": commit.token_bytes([1, 2, 3])},
        {"salt": "0x" + "00" * 32},
        {"prompt_proof": []},
        {"prompt_proof": ["0x" + "00" * 32] * 32},
        {"sampling": t.SamplingParams(max_new_tokens=99)},
        {"sampling_proof": []},
    ],
)
async def test_opening_that_the_order_did_not_commit_to_is_refused(
    keepers: Keepers, changes: dict[str, Any]
) -> None:
    keepers.answers[0] = tampered(keepers, **changes)
    keepers.refuse(2)
    with pytest.raises(RowsWithheld) as caught:
        await keepers.evidence().opening(1)
    assert "stage 0: the opening does not match the order" in caught.value.why


async def test_opening_of_another_request_is_refused(keepers: Keepers) -> None:
    for stage in (0, 2):
        keepers.answers[stage] = lambda _: keepers.opening(2)
    with pytest.raises(RowsWithheld):
        await keepers.evidence().opening(1)


async def test_delegation_travels_with_every_question(keepers: Keepers) -> None:
    permission = t.AuditorDelegation(keepers.case.order_hash, t.ZERO_ADDRESS, 5)
    evidence = keepers.evidence(delegation=Delegation(permission, "0x" + "01" * 65))
    await evidence.receipts(0)
    await evidence.opening(0)
    await evidence.rows(0, "in", keepers.leaf(0, 0), 4)
    assert len(keepers.asked) == 3
    assert all(m.delegation == permission for _, m in keepers.asked)  # type: ignore[union-attr]
    assert all(m.delegation_signature for _, m in keepers.asked)  # type: ignore[union-attr]


def test_token_rows_are_little_endian_ids() -> None:
    assert tokens_in(commit.token_bytes([0, 1, 2**32 - 1])) == (0, 1, 2**32 - 1)


# --- the case on chain ---


@pytest.mark.parametrize("function", ["openMatched", "matchJob"])
async def test_case_is_read_from_the_transaction_that_matched_it(
    keepers: Keepers, function: str
) -> None:
    case = keepers.case
    chain = FakeChain(blocks=3)
    chain.emit("TaskRegistry", "JobMatched", job="0xother")
    chain.grow(4500 - chain.head)
    chain.match(case.order, case.plan, function=function)
    chain.grow(100)
    assert await case_of_job(chain, case.job_id, 1) == case
    assert chain.spans == [(1, 2000), (2001, 4000), (4001, 4601)]
    assert len(await events_named(chain, "JobMatched", 1)) == 2


async def test_the_newest_delivery_is_read_from_its_transaction(keepers: Keepers) -> None:
    bare = [
        msgspec.structs.replace(of[0], leaves=[], states=[], answers=[])
        for of in keepers.receipts.values()
    ]
    late = msgspec.structs.replace(bare[1].receipt, signed_at=2**63 - 1)
    newest = [bare[0], msgspec.structs.replace(bare[1], receipt=late), bare[2]]
    chain, job = FakeChain(), keepers.case.job_id
    assert await delivered_receipts(chain, job, 0) == []
    for receipts in (bare, newest):
        values = {"receipts": [one.receipt for one in receipts]}
        values |= {"sigs": [one.signature for one in receipts]}
        call = ChainCall("TaskRegistry", "deliver", msgspec.to_builtins(values), t.ZERO_ADDRESS)
        chain.emit("TaskRegistry", "JobDelivered", call=call, job=job)
        assert await delivered_receipts(chain, job, 0) == receipts
    assert await delivered_receipts(chain, "0xother", 0) == []


async def test_job_that_the_chain_does_not_show_is_an_error(keepers: Keepers) -> None:
    case = keepers.case
    with pytest.raises(IdInvalid):
        await case_of_job(FakeChain(), case.job_id, 0)
    for call in (None, ChainCall("TaskRegistry", "settleAck", {}, t.ZERO_ADDRESS)):
        hidden = FakeChain()
        hidden.emit("TaskRegistry", "JobMatched", call=call, job=case.job_id)
        with pytest.raises(CheckFailed, match="cannot be read from the chain"):
            await case_of_job(hidden, case.job_id, 0)
    wild = FakeChain()
    wild.match(msgspec.structs.replace(case.order, nonce=2**64 - 1), case.plan, case.job_id)
    with pytest.raises(CheckFailed, match="out of bounds"):
        await case_of_job(wild, case.job_id, 0)
