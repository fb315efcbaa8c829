"""Nothing finished is lost or paid twice, whatever pipelines, matcher and chain do in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.jobs.batch import (
    ACK_TRIES,
    FRUITLESS_ROUNDS,
    OPEN_TRIES,
    BatchResult,
    Policy,
    Requester,
    run_batch,
)
from client.orders.matcher_api import Goes
from client.orders.matchers import Matchers
from client.orders.orders import Prompt
from client.pipeline.pipeline import Match, PipelinePatience
from client.pipeline.verify import ack_of_leaves
from client.records.store import ClientStore
from core.money import pricing
from core.protocol import signing, wire
from core.protocol import types as t
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    ContractRefused,
    DepositShort,
    HeadraceError,
    MatcherUnreachable,
    NoCapacity,
    UsageError,
)
from core.protocol.units import covering_units, whole_units
from tests.client.conftest import MakeStages
from tests.clocks import InstantClock
from tests.town.chain import ChainJob, FakeChain
from tests.town.orders import (
    DOMAIN,
    MODEL_ID,
    REQUESTER,
    SPEC,
    answer_of,
    leaves_of,
    prompts,
    terms,
)
from tests.town.stages import Stages, serve

NO_ROUTE = NoCapacity("no pipeline", "nobody holds layer 3")


class FakeMatcher:
    """Opens each order on the next of its pipelines, or raises the next of its errors."""

    def __init__(self, chain: FakeChain, offers: list[Stages | HeadraceError]) -> None:
        self.chain, self.offers = chain, offers
        self.orders: list[t.SignedOrder] = []
        self.goes: list[Goes | None] = []
        self.acks: list[tuple[str, t.Ack]] = []
        self.ack_errors: list[HeadraceError] = []

    async def open_job(
        self, signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        assert domain == DOMAIN
        self.goes.append(goes_on)
        assert signing.is_signed_by(domain, signed.order, signed.signature, REQUESTER.address)
        self.orders.append(signed)
        offer = self.offers.pop(0)
        if isinstance(offer, HeadraceError):
            raise offer
        match = offer.match(batches[signed.order.input_root], signed)
        self.chain.match(signed.order, match.plan)
        return match

    async def acknowledge(self, job_id: str, ack: t.Ack, signature: str) -> dict[str, Any]:
        if self.ack_errors:
            raise self.ack_errors.pop(0)
        assert signing.is_signed_by(DOMAIN, ack, signature, REQUESTER.address)
        self.acks.append((job_id, ack))
        return {}


batches: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def remember_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripted stages know the prompts behind an order's root."""
    from client.jobs import batch as jobs

    whole = jobs.make_order

    def make_order(batch: Any, *args: Any, **more: Any) -> t.Order:
        order = whole(batch, *args, **more)
        batches[order.input_root] = batch
        return order

    monkeypatch.setattr(jobs, "make_order", make_order)


class Watch:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.tokens: dict[str, list[tuple[int, int]]] = {}
        self.paid = 0

    def order_signed(self, order: t.Order, locked_units: int) -> None:
        self.events.append(("signed", order.requests, locked_units))

    def job_opened(self, match: Match) -> None:
        self.events.append(("opened", match.job_id))

    def token(self, custom_id: str, step: int, token: int) -> None:
        self.tokens.setdefault(custom_id, []).append((step, token))

    def request_finished(self, custom_id: str, finish: str) -> None:
        self.events.append(("finished", custom_id, finish))

    def pipeline_lost(self, reason: HeadraceError, finished: int, left: int) -> None:
        self.events.append(("lost", finished, left))

    def acknowledged(self, match: Match, paid_units: int) -> None:
        self.paid += paid_units

    def not_acknowledged(self, match: Match, reason: HeadraceError) -> None:
        self.events.append(("unpaid", match.job_id))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == name]


class Bench:
    """One submission of four prompts against scripted pipelines."""

    def __init__(self, folder: Path) -> None:
        self.chain, self.clock, self.watch = FakeChain(), InstantClock(), Watch()
        self.store = ClientStore(folder / "client.sqlite")
        self.prompts: list[Prompt] = prompts(4)
        self.matcher = FakeMatcher(self.chain, [])

    def holds(self, *, prepaid: int, wallet: int) -> None:
        me = REQUESTER.address
        self.chain.prepaid[me], self.chain.usd[me] = prepaid, wallet

    async def submit(
        self, *offers: Stages | HeadraceError, in_flight: int = 2, **policy: Any
    ) -> BatchResult:
        self.matcher.offers = list(offers)
        requester = Requester(
            self.chain,
            Matchers([(self.matcher, None)], self.clock),  # type: ignore[list-item]
            REQUESTER,
            self.store,
            self.clock,
            MODEL_ID,
            SPEC,
        )
        limits = PipelinePatience(in_flight=in_flight, connect_s=5.0, silence_s=5.0)
        rules = Policy(
            terms_of=lambda now: terms(deadline=now + 600), **({"limits": limits} | policy)
        )
        async with asyncio.timeout(30):
            return await run_batch(requester, self.prompts, rules, self.watch, "sub")

    def expected(self, custom_id: str) -> tuple[int, ...]:
        return answer_of(next(p for p in self.prompts if p.custom_id == custom_id)).tokens

    def states(self) -> list[str]:
        return [row.state for row in reversed(self.store.jobs())]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.store.close()


def dies_after(finished: int, *, shown: int = 2) -> Any:
    """Finish so many requests, then show a part of the next and lose a stage."""

    async def script(s: Stages, index: int) -> None:
        if index < finished:
            await serve(s, index)
            return
        await s.tokens(index, shown)
        await s.die(1)

    return script


async def acks_heard(stages: Stages, count: int) -> dict[int, t.Ack]:
    """By stage, once so many came: they are sent without an answer."""
    async with asyncio.timeout(30):
        while True:
            heard = {n: m.ack for n, m in stages.heard if isinstance(m, wire.Acknowledge)}
            if len(heard) >= count:
                return heard
            await asyncio.sleep(0.01)


async def test_a_batch_is_answered_acknowledged_and_kept(bench: Bench, stages: Stages) -> None:
    result = await bench.submit(stages)
    assert not result.unfinished
    for prompt in bench.prompts:
        done = result.finished[prompt.custom_id]
        assert tuple(done.state.tokens) == bench.expected(prompt.custom_id)
    assert len(bench.watch.named("finished")) == 4
    ((job_id, ack),) = bench.matcher.acks
    answers = {i: stages.answer(i) for i in range(4)}
    assert ack == ack_of_leaves(leaves_of(answers, 2, 3), stages.signed.order, stages.plan)
    order = stages.signed.order
    heard = await acks_heard(stages, 3)
    assert heard == dict.fromkeys(range(3), ack), "the stages have it in hand too"
    split = pricing.split(order, stages.plan, SPEC, ack.tokens_in, ack.tokens_out)
    assert sum(split.gross) == split.locked - split.refund
    assert bench.watch.paid == whole_units(sum(split.gross))
    assert bench.watch.named("signed") == [(4, covering_units(split.locked))]
    assert bench.states() == ["acknowledged"]
    requests = bench.store.requests(job_id)
    assert [r.finish for r in requests] == ["length"] * 4
    rows = [row.request_index for row, _ in bench.store.receipts(job_id)]
    assert sorted(rows) == sorted([-1, 0, 1, 2, 3] * 3)


@pytest.mark.parametrize("finished", [0, 1, 3])
async def test_lost_pipeline_is_paid_for_what_it_gave_and_the_rest_goes_on_from_there(
    bench: Bench, make_stages: MakeStages, finished: int
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    first.script = dies_after(finished)
    result = await bench.submit(first, second, in_flight=1)
    assert not result.unfinished
    assert {c: tuple(d.state.tokens) for c, d in result.finished.items()} == {
        p.custom_id: bench.expected(p.custom_id) for p in bench.prompts
    }
    for shown in bench.watch.tokens.values():
        assert [step for step, _ in shown] == list(range(len(shown))), "each token once, in order"
    assert [o.order.requests for o in bench.matcher.orders] == [4, 4 - finished]
    one, two = (o.order for o in bench.matcher.orders)
    assert one.nonce != two.nonce
    assert bench.watch.named("lost") == [(finished, 4 - finished)]
    cut = bench.prompts[finished]
    assert two.max_tokens_in == sum(len(p.ids) for p in bench.prompts[finished:]) + 2
    assert (
        two.max_tokens_out
        == one.max_tokens_out - sum(p.sampling.max_new_tokens for p in bench.prompts[:finished]) - 2
    ), "the two tokens that came are not bought again"
    job_id = signing.job_id(DOMAIN, one)
    lost = first.operators[1].address
    assert bench.matcher.goes == [None, Goes(job_id, frozenset({lost}))]
    by_job = dict(bench.matcher.acks)
    assert len(by_job) == len(bench.matcher.acks) == 2
    answers = {i: answer_of(bench.prompts[i]) for i in range(finished)}
    answers[finished] = replace(answer_of(cut), tokens=answer_of(cut).tokens[:2])
    assert by_job[job_id] == ack_of_leaves(leaves_of(answers, 2, 3), one, first.plan)
    rest = {i: second.answer(i) for i in range(4 - finished)}
    paid = by_job[signing.job_id(DOMAIN, two)]
    assert paid == ack_of_leaves(leaves_of(rest, 2, 3), two, second.plan)
    assert bench.states() == ["acknowledged", "acknowledged"]
    kept = {row.request_index: s for row, s in bench.store.receipts(job_id) if row.stage == 2}
    assert kept[finished].receipt.tokens_out == 2, "whoever is left has signed for the part"
    stages_that_signed = {
        row.stage for row, _ in bench.store.receipts(job_id) if row.request_index == finished
    }
    assert stages_that_signed == {0, 2}


async def test_continuation_names_what_it_goes_on_with_and_draws_on_with_the_same_noise(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    first.script = dies_after(1)
    await bench.submit(first, second, in_flight=1)
    opened, *others = [m.continues for _, m in second.heard if isinstance(m, wire.OpenJob)]
    assert others == [opened, opened], "the same at every stage"
    assert opened is not None
    assert opened.order_hash == first.order_hash
    assert opened.requests == [1, 2, 3]
    assert second.batch is not None
    going_on, *fresh = second.batch.prompts
    assert going_on.ids == bench.prompts[1].ids + bench.expected("p1")[:2]
    assert (going_on.sampling.key_index, going_on.sampling.first_step) == (1, 2)
    assert going_on.sampling.max_new_tokens == 2
    assert going_on.salt != bench.prompts[1].salt
    assert [(p.sampling.key_index, p.sampling.first_step) for p in fresh] == [(2, 0), (3, 0)]


async def test_answer_that_is_all_there_needs_no_other_pipeline(
    bench: Bench, stages: Stages
) -> None:
    async def script(s: Stages, index: int) -> None:
        if index < 3:
            await serve(s, index)
            return
        await s.tokens(index)
        await s.die(1)

    stages.script = script
    result = await bench.submit(stages, in_flight=1)
    assert not result.unfinished
    assert len(result.finished) == 4
    assert len(bench.matcher.orders) == 1
    assert bench.watch.named("finished")[-1] == ("p3", "length")
    ((_, ack),) = bench.matcher.acks
    assert ack.tokens_out == 16, "its text is here, so it is paid"


async def test_answer_of_a_stage_that_was_caught_is_begun_again(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)

    async def script(s: Stages, index: int) -> None:
        await s.tokens(index, 2)
        await s.send(1, wire.RequestFailed(s.order_hash, index, "E-CHECK-01", "rows differ"))

    first.script = script
    result = await bench.submit(first, second)
    assert len(result.finished) == 4
    assert second.batch is not None
    assert [p.ids for p in second.batch.prompts] == [p.ids for p in bench.prompts]
    assert len(bench.matcher.acks) == 1, "nothing is paid to a pipeline in which somebody lied"


async def test_part_that_is_signed_for_wrongly_is_not_paid(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    first.script = dies_after(1)
    honest = first.receipt

    def lying(stage: int, answers: Any, /, **changes: Any) -> t.SignedReceipt:
        bad = {"shard_root": "0x" + "ee" * 32} if stage == 2 and 1 in answers else {}
        return honest(stage, answers, **changes, **bad)

    first.receipt = lying  # type: ignore[method-assign]
    result = await bench.submit(first, second, in_flight=1)
    assert len(result.finished) == 4
    paid = dict(bench.matcher.acks)[signing.job_id(DOMAIN, bench.matcher.orders[0].order)]
    assert paid.tokens_out == 4, "only the answer that all signed for as it is"


async def test_no_capacity_at_first_raises_and_spends_nothing(bench: Bench) -> None:
    with pytest.raises(NoCapacity):
        await bench.submit(NO_ROUTE)
    assert len(bench.matcher.orders) == 1
    assert not bench.chain.sent
    assert not bench.store.jobs()


async def test_no_capacity_later_is_reported_per_request_and_keeps_what_is_finished(
    bench: Bench, stages: Stages
) -> None:
    stages.script = dies_after(1)
    result = await bench.submit(stages, *[NO_ROUTE] * FRUITLESS_ROUNDS, in_flight=1)
    assert list(result.finished) == ["p0"]
    assert result.unfinished == dict.fromkeys(("p1", "p2", "p3"), NO_ROUTE)
    assert len(result.matches) == len(bench.matcher.acks) == 1


async def test_no_capacity_that_passes_is_waited_for(bench: Bench, make_stages: MakeStages) -> None:
    first, second = await make_stages(100), await make_stages(200)
    first.script = dies_after(1)
    result = await bench.submit(first, NO_ROUTE, NO_ROUTE, second, in_flight=1)
    assert not result.unfinished
    assert bench.clock.slept == [0.25, 0.5], "the first time at once"


async def test_error_that_waiting_does_not_cure_ends_the_rounds(
    bench: Bench, stages: Stages
) -> None:
    stages.script = dies_after(1)
    refused = CheckFailed("the order is not signed", "by its requester")
    result = await bench.submit(stages, refused, in_flight=1)
    assert set(result.unfinished.values()) == {refused}
    assert len(bench.matcher.orders) == 2


async def test_pipelines_that_never_give_a_token_are_given_up(
    bench: Bench, make_stages: MakeStages
) -> None:
    async def nothing(s: Stages, index: int) -> None:
        await s.send(1, wire.RequestFailed(s.order_hash, index, "E-JOB-BUSY", "no memory"))

    pipelines = [await make_stages(100 + 10 * i) for i in range(FRUITLESS_ROUNDS)]
    for pipeline in pipelines:
        pipeline.script = nothing
    result = await bench.submit(*pipelines, in_flight=1)
    assert not result.finished
    assert set(result.unfinished) == {"p0", "p1", "p2", "p3"}
    assert not bench.matcher.acks
    assert bench.states() == ["abandoned"] * FRUITLESS_ROUNDS
    assert len(bench.clock.slept) == FRUITLESS_ROUNDS - 1


async def test_answer_goes_through_as_many_pipelines_as_it_takes(
    bench: Bench, make_stages: MakeStages
) -> None:
    pipelines = [await make_stages(100 + 10 * i) for i in range(5)]
    for pipeline in pipelines[:4]:
        pipeline.script = dies_after(0, shown=1)
    bench.prompts = prompts(1, max_new_tokens=6)
    result = await bench.submit(*pipelines)
    assert tuple(result.finished["p0"].state.tokens) == bench.expected("p0")
    assert [ack.tokens_out for _, ack in bench.matcher.acks] == [1, 1, 1, 1, 2]
    assert not bench.clock.slept, "each of them gave something"


async def test_stage_that_refuses_the_job_costs_a_round_and_no_money(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)
    first.refuse[0] = wire.Failed("E-JOB-FULL", "no room")
    result = await bench.submit(first, second)
    assert len(result.finished) == 4
    assert bench.states() == ["abandoned", "acknowledged"]


async def test_receipts_that_lie_are_not_paid(bench: Bench, make_stages: MakeStages) -> None:
    first, second = await make_stages(100), await make_stages(200)
    honest = first.receipt

    def lying(stage: int, answers: Any, /, **changes: Any) -> t.SignedReceipt:
        bad = {"shard_root": "0x" + "ee" * 32} if stage == 1 and 2 in answers else {}
        return honest(stage, answers, **changes, **bad)

    first.receipt = lying  # type: ignore[method-assign]
    result = await bench.submit(first, second)
    assert len(result.finished) == 4
    assert [a.tokens_out for _, a in bench.matcher.acks] == [12, 4]
    assert [o.order.requests for o in bench.matcher.orders] == [4, 1]


async def test_without_acknowledgement_nothing_is_sent_to_the_matcher(
    bench: Bench, stages: Stages
) -> None:
    result = await bench.submit(stages, acknowledge=False)
    assert len(result.finished) == 4
    assert not bench.matcher.acks
    assert not any(isinstance(m, wire.Acknowledge) for _, m in stages.heard)
    assert bench.states() == ["unacknowledged"]
    whole = [s for row, s in bench.store.receipts() if row.request_index == -1]
    assert len(whole) == 3, "the receipts that a dispute needs"


async def test_matcher_that_is_away_for_a_moment_still_gets_the_acknowledgement(
    bench: Bench, stages: Stages
) -> None:
    bench.matcher.ack_errors = [MatcherUnreachable("no answer")] * 2
    await bench.submit(stages)
    assert len(bench.matcher.acks) == 1
    assert bench.states() == ["acknowledged"]
    assert bench.clock.slept == [1.0, 2.0]


@pytest.mark.parametrize(
    ("error", "tries"),
    [(MatcherUnreachable("no answer"), ACK_TRIES), (CheckFailed("pays too little", "…"), 1)],
)
async def test_acknowledgement_that_is_not_taken_loses_no_answer(
    bench: Bench, stages: Stages, error: HeadraceError, tries: int
) -> None:
    bench.matcher.ack_errors = [error] * 10
    result = await bench.submit(stages)
    assert len(result.finished) == 4
    assert len(bench.matcher.ack_errors) == 10 - tries
    assert bench.watch.named("unpaid") == [(result.matches[0].job_id,)]
    assert bench.states() == ["unacknowledged"]


async def test_matcher_that_does_not_answer_is_asked_with_the_same_order(
    bench: Bench, stages: Stages
) -> None:
    away = MatcherUnreachable("no answer")
    result = await bench.submit(*[away] * (OPEN_TRIES - 1), stages)
    assert len(result.finished) == 4
    assert len({o.signature for o in bench.matcher.orders}) == 1
    assert len(bench.matcher.orders) == OPEN_TRIES


async def test_matcher_that_is_gone_is_an_error(bench: Bench) -> None:
    with pytest.raises(MatcherUnreachable):
        await bench.submit(*[MatcherUnreachable("no answer")] * OPEN_TRIES)


@pytest.mark.parametrize(
    ("state", "plan_hash", "why"),
    [
        (t.JobState.MATCHED, "0x" + "ee" * 32, "another plan has it"),
        (t.JobState.SETTLED, None, "SETTLED with plan"),
        (t.JobState.NONE, t.ZERO_HASH, "not opened"),
    ],
)
async def test_job_that_is_not_matched_on_chain_gets_no_prompt(
    bench: Bench, stages: Stages, state: t.JobState, plan_hash: str | None, why: str
) -> None:
    real = bench.matcher.open_job

    async def open_job(
        signed: t.SignedOrder, domain: signing.Domain, goes_on: Goes | None = None
    ) -> Match:
        match = await real(signed, domain)
        bench.chain.jobs[match.job_id] = ChainJob(state, plan_hash or match.plan_hash)
        bench.chain.used_nonces.clear()
        if state is not t.JobState.NONE:
            bench.chain.used_nonces.add((signed.order.requester, signed.order.nonce))
        return match

    bench.matcher.open_job = open_job  # type: ignore[method-assign]
    with pytest.raises(CheckFailed, match="not the one the matcher described") as caught:
        await bench.submit(stages)
    assert why in caught.value.why
    assert not stages.heard
    assert bench.states() == ["abandoned"], "what is locked is on record"


async def test_node_that_is_a_block_behind_is_waited_for(bench: Bench, stages: Stages) -> None:
    def job_of(job_id: str, plan_hash: str) -> Any:
        behind = bench.chain.reads.count("TaskRegistry.jobOf") < 3
        return bench.chain.job_of("none" if behind else job_id, plan_hash)

    bench.chain.answers["TaskRegistry.jobOf"] = job_of
    assert len((await bench.submit(stages)).finished) == 4
    assert bench.chain.reads.count("TaskRegistry.jobOf") == 3


async def test_orders_take_one_nonce_after_the_other(bench: Bench, make_stages: MakeStages) -> None:
    first, second = await make_stages(100), await make_stages(200)
    first.script = dies_after(1)
    await bench.submit(first, second, in_flight=1)
    one, two = (signed.order.nonce for signed in bench.matcher.orders)
    assert (one % 256, two) == (0, one + 1)
    assert bench.store.next_nonce(REQUESTER.address) == two + 1


@pytest.mark.parametrize(
    "refusal",
    [
        UsageError("the order was used already", "its nonce is used"),
        ContractRefused("openMatched was refused", error="NonceUsedAlready"),
    ],
)
async def test_nonce_that_is_used_on_chain_is_told_and_later_orders_have_others(
    bench: Bench, stages: Stages, refusal: HeadraceError
) -> None:
    used = bench.store.next_nonce(REQUESTER.address) + 1
    bench.chain.used_nonces.add((REQUESTER.address, used))
    with pytest.raises(ContractRefused) as caught:
        await bench.submit(refusal)
    assert (caught.value.error, caught.value.error_args) == ("NonceUsedAlready", {"nonce": used})
    assert str(used) in caught.value.what and "backup" in caught.value.state
    assert "ask again" in caught.value.next_step
    assert not stages.heard
    assert len((await bench.submit(stages)).finished) == 4
    nonce = bench.matcher.orders[-1].order.nonce
    assert nonce % 256 == 0 and nonce != used + 1


async def test_order_that_is_refused_for_another_reason_keeps_its_reason(bench: Bench) -> None:
    with pytest.raises(UsageError, match="deadline is too near"):
        await bench.submit(UsageError("the order's deadline is too near", "1 s"))
    bench.chain.answers["TaskRegistry.isNonceUsed"] = ChainUnreachable("no answer", "silent")
    with pytest.raises(UsageError, match="window is too long"):
        await bench.submit(UsageError("the order's window is too long", "9 s"))


async def test_chain_that_falls_silent_after_the_job_opened_loses_nothing(
    bench: Bench, make_stages: MakeStages
) -> None:
    first, second = await make_stages(100), await make_stages(200)

    def silent_once(model_id: str, *span: int) -> str:
        del bench.chain.answers["ModelRegistry.shardRoot"]
        raise ChainUnreachable("no answer")

    bench.chain.answers["ModelRegistry.shardRoot"] = silent_once
    result = await bench.submit(first, second)
    assert len(result.finished) == 4
    assert bench.states() == ["abandoned", "acknowledged"]


@pytest.mark.parametrize("wallet_share", [1, 3])
async def test_missing_deposit_is_made_for_this_order_and_one_that_goes_on_with_it(
    bench: Bench, stages: Stages, wallet_share: int
) -> None:
    locked = pricing.cost(SPEC.layer_units, 14, 16, 10**9, 2 * 10**9)
    bench.holds(prepaid=100, wallet=wallet_share * locked)
    await bench.submit(stages)
    assert bench.watch.named("signed") == [(4, locked)]
    moved = min(wallet_share * locked, 2 * locked - 100)
    assert ("Escrow", "deposit", moved) in bench.chain.sent


@pytest.mark.parametrize(("wallet", "may"), [(10, True), (10**12, False)])
async def test_deposit_that_is_short_raises_before_anything_is_signed(
    bench: Bench, wallet: int, may: bool
) -> None:
    bench.holds(prepaid=100, wallet=wallet)
    with pytest.raises(DepositShort):
        await bench.submit(deposit_missing=may)
    assert not bench.watch.events
    assert not bench.matcher.orders


async def test_interrupted_batch_pays_for_what_was_delivered(bench: Bench, stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        if index == 0:
            await serve(s, index)

    stages.script = script
    running = asyncio.create_task(bench.submit(stages))
    async with asyncio.timeout(30):
        while not bench.watch.named("finished"):
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ((_, ack),) = bench.matcher.acks
    assert ack.tokens_out == 4
    assert bench.states() == ["acknowledged"]
