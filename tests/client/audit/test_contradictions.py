"""What convicts a stage is found in what stages show; `tests/attacks` sends it to a chain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from client.audit.contradictions import find
from client.orders.orders import PromptBatch
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.receipts import word_of
from tests.client.keepers import Keepers
from tests.town.orders import DOMAIN, SPANS, answer_of, key, prompts

WIDTH, LAST = 16, 2
OTHER = "0x" + "77" * 32


@pytest.fixture
async def keepers() -> AsyncIterator[Keepers]:
    """Three stages with made-up rows of two requests, a receipt each, and every word."""
    batch = PromptBatch.of(prompts(2))
    keepers = Keepers(batch, SPANS)
    for index, prompt in enumerate(batch.prompts):
        answer = answer_of(prompt)
        count = len(answer.fed_ids)
        between = [(bytes([index, cut]) * (WIDTH // 2) * count, WIDTH) for cut in (1, 2)]
        ids, tokens = commit.token_bytes(answer.fed_ids), commit.token_bytes(answer.tokens)
        boundaries = [(ids, 4), *between, (tokens, 4)]
        for stage in range(3):
            keepers.rows[stage, "in", index] = boundaries[stage]
            keepers.rows[stage, "out", index] = boundaries[stage + 1]
        keepers.rows[LAST, "states", index] = (bytes([index]) * WIDTH * len(answer.tokens), WIDTH)
    keepers.sign_all()
    for stage in range(3):
        said = [word(keepers, stage, index) for index in range(2)]
        keepers.words[(stage + 1) % 3] = said
    await keepers.start()
    yield keepers
    await keepers.close()


def word(keepers: Keepers, stage: int, index: int, by: Any = None, **changes: Any) -> Any:
    place = keepers.case.order_hash, keepers.case.plan_hash
    answer = t.ZERO_HASH if stage else keepers.leaf(LAST, index).out_root
    said = word_of(*place, stage, keepers.leaf(stage, index), answer)
    said = msgspec.structs.replace(said, **changes)
    return t.SignedWord(said, signing.sign(by or keepers.operators[stage], DOMAIN, said))


async def test_nothing_is_found_against_stages_that_signed_what_they_did(keepers: Keepers) -> None:
    assert await find(keepers.evidence()) == ([], [])


@pytest.mark.parametrize("stage", range(3))
async def test_a_word_of_other_rows_is_found_with_the_stage_after(
    keepers: Keepers, stage: int
) -> None:
    keepers.words[(stage + 1) % 3][1] = word(keepers, stage, 1, out_root=OTHER)
    (one,), gaps = await find(keepers.evidence())
    assert (one.call, one.stage, one.request, gaps) == ("equivocation", stage, 1, [])


@pytest.mark.parametrize(
    "changes", [{"by": key(99)}, {"request_index": 7}, {"order_hash": OTHER}, {"plan_hash": OTHER}]
)
async def test_words_of_another_signer_or_place_are_no_evidence(
    keepers: Keepers, changes: dict[str, Any]
) -> None:
    keepers.words[1][1] = word(keepers, 0, 1, out_root=OTHER, **changes)
    assert await find(keepers.evidence()) == ([], [])


async def test_a_receipt_is_evidence_only_over_its_own_leaves_and_by_its_signer(
    keepers: Keepers,
) -> None:
    leaves = [keepers.leaf(1, 0), keepers.leaf(1, 1, out_root=OTHER)]
    lie = keepers.sign(1, leaves)
    forged = msgspec.structs.replace(lie, signature=keepers.receipts[1][0].signature)
    other_leaves = msgspec.structs.replace(lie, leaves=leaves[:1])
    keepers.receipts[1] += [forged, other_leaves]
    assert await find(keepers.evidence()) == ([], [])
    (one,), _ = await find(keepers.evidence(), [lie])
    assert (one.call, one.stage, one.request) == ("equivocation", 1, 1)


async def test_what_a_stage_withholds_is_told_and_hides_nobody_else(keepers: Keepers) -> None:
    keepers.refuse(0)
    found, gaps = await find(keepers.evidence(), keepers.receipts[0])
    assert found == []
    assert any("stage 0" in gap for gap in gaps), gaps
    both = [keepers.leaf(1, 0), keepers.leaf(1, 1)]
    keepers.receipts[1] = [keepers.sign(1, both, tokens_out=999)]
    (one,), _ = await find(keepers.evidence())
    assert (one.call, one.stage) == ("counts", 1)
