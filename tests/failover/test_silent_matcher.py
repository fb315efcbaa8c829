"""A matcher that does nothing after it opened a job costs no stage its pay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed, MatcherUnreachable
from miner.daemon.claims import Claims
from miner.records.store import StoredJob
from tests.town.chain import CLOSE_DELAY_S, PREPAID
from tests.town.orders import DOMAIN, REQUESTER, sign_receipt
from tests.town.town import Town, Watch, prompts

CUTS = ((0, 2), (2, 4), (4, 6))
STEP_S = 10
OTHER = "0x" + "77" * 32


@pytest.fixture
async def town(tmp_path: Path, model_dir: Path) -> AsyncIterator[Silent]:
    town = Silent(tmp_path, model_dir)
    yield town
    await town.close()


class Silent(Town):
    """Its matcher opens jobs, and is never heard of again."""

    async def acknowledge(self, job_id: str, ack: t.Ack, signature: str) -> dict[str, Any]:
        raise MatcherUnreachable("no answer from the matcher", "it is silent", retryable=False)

    async def served(self, **policy: Any) -> Watch:
        """Three answers, all of which came."""
        await self.start(*CUTS)
        watch = Watch()
        result = await self.begin(prompts(3, tokens=6), watch, **policy)
        assert not result.unfinished
        return watch

    async def time_passes(self) -> None:
        """Until the job and every delay of it are over: each machine that lives looks by turns."""
        claims = [
            Claims(self.chain, m.signer, m.book, m.peers, m.table.is_running)
            for m in self.machines
            if not m.is_dead
        ]
        order = self.matches[0].signed.order
        until = order.deadline + order.window + 3 * CLOSE_DELAY_S
        while self.now_s < until:
            await self.chain.clock.advance(STEP_S)
            for one in claims:
                await one.look(self.now_s)

    @property
    def now_s(self) -> int:
        return int(self.chain.clock.now())

    @property
    def called(self) -> list[str]:
        return [function for _, function, *_ in self.chain.sent]

    def check_paid(self, watch: Watch) -> None:
        """Every stage and the requester have what all the tokens that came cost."""
        (match,) = self.matches
        tokens_in = sum(len(prompt.ids) for prompt in prompts(3, tokens=6))
        tokens_out = sum(len(tokens) for tokens in watch.tokens.values())
        due = pricing.split(match.signed.order, match.plan, self.spec, tokens_in, tokens_out)
        for stage, pay in zip(match.plan, due.pays, strict=True):
            assert self.chain.earned[stage.operator] == pay > 0
        assert self.prepaid == PREPAID * 10**9 - due.locked + due.refund


async def test_work_that_nobody_acknowledged_is_delivered_by_a_stage(town: Silent) -> None:
    watch = await town.served(acknowledge=False)
    await town.time_passes()
    assert town.called == ["openMatched", "deliver", "finalize"]
    town.check_paid(watch)


async def test_an_acknowledgement_that_the_matcher_keeps_back_is_brought_by_a_stage(
    town: Silent,
) -> None:
    watch = await town.served()
    await town.time_passes()
    assert town.called == ["openMatched", "settleAck", "expire"]
    town.check_paid(watch)


async def test_a_small_ack_that_the_requester_brings_keeps_no_stage_from_its_pay(
    town: Silent,
) -> None:
    watch = await town.served(acknowledge=False)
    (match,) = town.matches
    order = match.signed.order
    ack = t.Ack(match.order_hash, match.plan_hash, t.ZERO_HASH, 1, 0)
    signature = signing.sign(REQUESTER, DOMAIN, ack)
    await town.chain.transact(
        REQUESTER, "TaskRegistry", "settleAck", order, ack, signature, match.plan
    )
    await town.time_passes()
    assert town.called == ["openMatched", "settleAck", "deliver", "finalize"]
    town.check_paid(watch)


@pytest.mark.parametrize("stage", range(len(CUTS)))
async def test_a_stage_that_keeps_its_receipt_back_is_delivered_by_its_words(
    town: Silent, stage: int
) -> None:
    """With a requester that pays nobody: the next stage holds its word of each request."""
    watch = await town.served(acknowledge=False)
    await town.machines[stage].kill()
    await town.time_passes()
    assert town.called == ["openMatched", "deliver", "finalize"]
    town.check_paid(watch)


async def test_a_stage_that_signs_for_other_rows_than_it_sent_is_delivered_by_its_words(
    town: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = await town.served(acknowledge=False)
    liar, match = town.machines[1], town.matches[0]
    honest = liar.book.sign_over

    async def sign_otherwise(job: StoredJob, requests: Sequence[int]) -> t.SignedReceipt:
        signed = await honest(job, requests)
        leaves = [msgspec.structs.replace(one, out_root=OTHER) for one in signed.leaves]
        return sign_receipt(liar.signer, match.signed.order, match.plan, 1, leaves, [], [])

    monkeypatch.setattr(liar.book, "sign_over", sign_otherwise)
    await town.time_passes()
    assert town.called == ["openMatched", "deliver", "equivocation", "finalize"]
    town.check_paid(watch)
    (shown,) = (args for _, called, *args in town.chain.sent if called == "equivocation")
    receipts = [one[0] for one in shown[2:]]
    assert {one.stage for one in receipts} == {1}
    assert receipts[0].output_root != receipts[1].output_root


async def test_what_was_finished_of_a_batch_is_delivered_after_the_deadline(
    town: Silent,
) -> None:
    """A stage gives no word of one request, and the requester pays nobody: two are paid for."""
    await town.start(*CUTS)
    withholding, watch = town.machines[1], Watch()
    give = withholding.book.word

    def keep_one_back(job: StoredJob, leaf: t.RequestLeaf, *said: Any) -> t.SignedWord:
        if leaf.request_index == 1:
            raise CheckFailed("no word of this one", "it is kept back")
        return give(job, leaf, *said)

    withholding.book.word = keep_one_back  # type: ignore[method-assign]
    asked = prompts(3, tokens=6)
    await town.begin(asked, watch, acknowledge=False)
    await withholding.kill()
    await town.time_passes()
    assert sorted(town.called) == sorted(["openMatched", "deliver", "finalize"] * 2)
    broken, again = town.matches  # the client had that request answered once more
    done = sum(len(asked[i].ids) for i in (0, 2)), 12
    dues = [
        pricing.split(broken.signed.order, broken.plan, town.spec, *done),
        pricing.split(again.signed.order, again.plan, town.spec, len(asked[1].ids), 6),
    ]
    for stage in range(3):
        pays = [due.pays[stage] for due in dues]
        assert town.chain.earned[broken.plan[stage].operator] == sum(pays) > 0


async def test_without_the_words_of_a_stage_nothing_is_delivered(town: Silent) -> None:
    """What is left open: two neighbours that fall silent with a requester that pays nobody."""
    await town.served(acknowledge=False)
    for silent in town.machines[1:]:
        await silent.kill()
    await town.time_passes()
    assert town.called == ["openMatched"]
