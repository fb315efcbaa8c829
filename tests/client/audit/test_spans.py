"""Do an auditor and a client get what a stage signed of the boundaries inside it, and no other?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from client.audit.spans import inner_roots, spans_of
from client.pipeline.verify import Bought, RegisteredShards, check_receipt
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed, RowsWithheld
from core.protocol.receipts import word_of, words_in
from tests.client.audit.test_evidence import made_keepers
from tests.client.keepers import Keepers
from tests.town.orders import DOMAIN, shard_root_of

STAGE = 1
EVERY = 1  # of its three layers
ROW = 16


def inside(request: int, number: int) -> bytes:
    """Rows at one of the two boundaries inside."""
    return b"".join(bytes([10 * request + number + row]) * ROW for row in range(4))


def roots_of(request: int) -> list[str]:
    return [commit.to_hex(commit.rows_root(inside(request, number), ROW)) for number in (0, 1)]


@pytest.fixture
async def keepers() -> AsyncIterator[Keepers]:
    """The stage in the middle has three spans."""
    made = await made_keepers()
    requests = range(len(made.batch.prompts))
    leaves = []
    for request in requests:
        inner = commit.inner_root([commit.unhex(root) for root in roots_of(request)])
        leaves.append(made.leaf(STAGE, request, inner_root=commit.to_hex(inner)))
        for number in (0, 1):
            made.rows[STAGE, f"inner-{number}", request] = inside(request, number), ROW
    signed = made.sign(STAGE, leaves)
    made.receipts[STAGE] = [
        msgspec.structs.replace(signed, inner=[roots_of(request) for request in requests])
    ]
    yield made
    await made.close()


def signed_leaf(keepers: Keepers, request: int = 0) -> t.RequestLeaf:
    return keepers.receipts[STAGE][0].leaves[request]


async def test_roots_and_rows_inside_come_from_the_stage(keepers: Keepers) -> None:
    evidence, spans = keepers.evidence(), spans_of(keepers.plan, STAGE, EVERY)
    assert [span.is_whole for span in spans] == [False] * 3
    assert [len(span.layers) for span in spans][:2] == [EVERY] * 2
    for request in range(3):
        leaf = signed_leaf(keepers, request)
        roots = await inner_roots(evidence, spans, leaf)
        assert roots == roots_of(request)
        middle = spans[1].leaf(leaf, roots)
        assert (middle.in_root, middle.out_root) == tuple(roots)
        first = spans[0].leaf(leaf, roots)
        assert await spans[0].left(evidence, first, ROW) == inside(request, 0)
        assert await spans[1].entered(evidence, middle, ROW) == inside(request, 0)
        assert await spans[1].left(evidence, middle, ROW) == inside(request, 1)
        with pytest.raises(RowsWithheld, match="do not match"):
            await spans[1].left(evidence, first, ROW)


async def test_a_stage_without_boundaries_inside_is_one_span(keepers: Keepers) -> None:
    for every in (0, 10**3):
        (span,) = spans_of(keepers.plan, STAGE, every)
        assert span.is_whole and span.place == keepers.plan[STAGE]
        assert await inner_roots(keepers.evidence(), [span], signed_leaf(keepers)) == []
        assert span.leaf(signed_leaf(keepers), []) == signed_leaf(keepers)


async def test_roots_inside_come_with_its_words_from_the_next_stage(keepers: Keepers) -> None:
    words = []
    for request, leaf in enumerate(keepers.receipts[STAGE][0].leaves):
        word = word_of(keepers.case.order_hash, keepers.case.plan_hash, STAGE, leaf)
        signature = signing.sign(keepers.operators[STAGE], DOMAIN, word)
        words.append(t.SignedWord(word, signature, roots_of(request)))
    keepers.words[STAGE + 1] = words
    keepers.refuse(STAGE)
    spans = spans_of(keepers.plan, STAGE, EVERY)
    evidence = keepers.evidence()
    assert await inner_roots(evidence, spans, signed_leaf(keepers, 2)) == roots_of(2)
    (worth,) = await evidence.receipts(STAGE)
    assert worth.inner == [roots_of(request) for request in range(3)]
    assert [word.word for word in words_in(worth)] == [word.word for word in words]
    shards = RegisteredShards(shard_root_of, EVERY)
    check_receipt(worth, Bought(DOMAIN, keepers.order, keepers.plan, shards), STAGE, is_shown=False)
    receipt = msgspec.structs.replace(worth.receipt, shard_root=t.ZERO_HASH)
    leaves = await evidence.leaves_of(receipt)
    assert leaves == keepers.receipts[STAGE][0].leaves, "its neighbours' roots alone lack them"


@pytest.mark.parametrize("shown", [[], [["0x" + "77" * 32] * 2] * 3, [[]] * 3])
async def test_roots_that_are_not_what_was_signed_are_withheld(
    keepers: Keepers, shown: list[list[str]]
) -> None:
    signed = keepers.receipts[STAGE][0]
    keepers.receipts[STAGE] = [msgspec.structs.replace(signed, inner=shown)]
    spans = spans_of(keepers.plan, STAGE, EVERY)
    with pytest.raises(RowsWithheld, match="roots inside stage 1"):
        await inner_roots(keepers.evidence(), spans, signed_leaf(keepers))


def test_a_client_pays_for_no_receipt_without_what_is_inside(keepers: Keepers) -> None:
    signed = keepers.receipts[STAGE][0]
    shards = RegisteredShards(shard_root_of, EVERY)
    bought = Bought(DOMAIN, keepers.order, keepers.plan, shards)
    check_receipt(signed, bought, STAGE)
    for inner in ([], signed.inner[:2], [[root, *rest] for root, *rest in signed.inner[::-1]]):
        with pytest.raises(CheckFailed) as refused:
            check_receipt(msgspec.structs.replace(signed, inner=inner), bought, STAGE)
        assert refused.value.details["field"] == "inner"
    shallow = Bought(DOMAIN, keepers.order, keepers.plan, RegisteredShards(shard_root_of))
    with pytest.raises(CheckFailed):
        check_receipt(signed, shallow, STAGE)
