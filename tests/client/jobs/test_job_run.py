"""A run takes what is in order and signed for, and says why the rest is not finished."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from client.jobs.job_run import JobRun
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import PipelineOutcome, PipelinePatience, RequestState
from client.pipeline.verify import RegisteredShards
from core.protocol import wire
from core.protocol.errors import (
    AuthenticationFailed,
    CheckFailed,
    HeadraceError,
    PeerUnreachable,
)
from core.runtime.network.channel import StreamIdentity
from tests.client.conftest import MakeStages
from tests.town.orders import DOMAIN, REQUESTER, prompts, shard_root_of
from tests.town.stages import Stages, serve


class Seen:
    """What a run told its owner."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.finished: list[int] = []

    def token(self, index: int, step: int, token: int) -> None:
        known = self.tokens.setdefault(index, [])
        assert step == len(known), "tokens come once and in order"
        known.append(token)

    def finish(self, index: int, state: RequestState) -> None:
        self.finished.append(index)


def job_run_of(stages: Stages, batch: PromptBatch, seen: Seen, **limits: Any) -> JobRun:
    return JobRun(
        stages.match(batch),
        batch,
        StreamIdentity(REQUESTER, DOMAIN),
        RegisteredShards(shard_root_of),
        on_token=seen.token,
        on_finish=seen.finish,
        limits=PipelinePatience(**({"silence_s": 10.0} | limits)),
    )


async def run(stages: Stages, count: int = 1, **limits: Any) -> tuple[PipelineOutcome, Seen]:
    seen = Seen()
    job = job_run_of(stages, PromptBatch.of(prompts(count)), seen, **limits)
    async with asyncio.timeout(20):
        await job.open()
        try:
            return await job.run(), seen
        finally:
            await job.close()


def reason(outcome: PipelineOutcome, index: int = 0) -> HeadraceError:
    assert index in outcome.unfinished, outcome
    return outcome.unfinished[index]


async def test_requests_in_flight_are_bounded_and_all_finish(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        while s.most_running < 3:
            await asyncio.sleep(0.001)
        await serve(s, index)

    stages.script = script
    outcome, seen = await run(stages, 7, in_flight=3)
    assert not outcome.unfinished
    assert sorted(seen.finished) == list(range(7))
    assert stages.most_running == 3
    for index, state in outcome.finished.items():
        assert tuple(seen.tokens[index]) == state.answer.tokens == stages.answer(index).tokens
        assert state.finish == "length"
        assert sorted(state.receipts) == [0, 1, 2]


async def test_an_end_that_nobody_asked_for_is_no_answer_and_no_lie(stages: Stages) -> None:
    """A stage ends so what its client has left, or is late for: a stream may have been away."""

    async def script(s: Stages, index: int) -> None:
        await s.token(index, 0, s.answer(index).tokens[0], "cancelled")
        await s.receipts(index)

    stages.script = script
    outcome, seen = await run(stages)
    assert isinstance(reason(outcome), PeerUnreachable) and not seen.finished
    assert len(outcome.begun[0].tokens) == 1 and outcome.begun[0].is_trusted


async def test_stages_that_give_hardly_any_credit_are_not_paid_ahead(stages: Stages) -> None:
    stages.credit = 1
    outcome, _ = await run(stages, 3)
    assert not outcome.unfinished
    assert not [m for _, m in stages.heard if isinstance(m, wire.Acknowledge)]


async def test_last_stage_hears_of_a_request_before_the_first(stages: Stages) -> None:
    await run(stages, 2)
    submits = [(stage, m.request) for stage, m in stages.heard if isinstance(m, wire.Submit)]
    assert {stage for stage, _ in submits} == {0, 2}
    for index in (0, 1):
        assert [stage for stage, request in submits if request == index] == [2, 0]


async def test_answers_are_known_one_by_one_while_others_run(stages: Stages) -> None:
    gate = asyncio.Event()

    async def script(s: Stages, index: int) -> None:
        if index == 1:
            await gate.wait()
        await serve(s, index)

    stages.script = script
    seen = Seen()
    job = job_run_of(stages, PromptBatch.of(prompts(2)), seen)
    await job.open()
    running = asyncio.create_task(job.run())
    async with asyncio.timeout(30):
        while seen.finished != [0]:
            await asyncio.sleep(0.01)
        assert set(job.outcome().finished) == {0}
        assert set(job.outcome().unfinished) == {1}
        gate.set()
        assert not (await running).unfinished
    await job.close()


async def test_duplicate_late_and_early_tokens_are_ignored(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        produced = s.answer(index).tokens
        await s.token(index, 2, 999)  # early
        for step, token in enumerate(produced):
            end = "length" if step == len(produced) - 1 else ""
            await s.token(index, step, token, end)
            await s.token(index, step, 998, end)  # again, and other
            await s.token(index, 0, 997)  # late
        await s.token(index, len(produced), 996)  # past the end
        await s.send(2, wire.Token("0x" + "ee" * 32, index, 0, 995))  # of another job
        await s.send(2, wire.Token(s.order_hash, 77, 0, 994))  # of no request
        await s.send(
            1, wire.Token(s.order_hash, index, 0, 993)
        )  # from a stage that samples nothing
        await s.receipts(index)

    stages.script = script
    outcome, seen = await run(stages)
    assert not outcome.unfinished
    assert tuple(seen.tokens[0]) == stages.answer(0).tokens


async def test_receipts_of_other_jobs_and_repeated_ones_are_ignored(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        whole = {0: s.answer(0), 1: s.answer(1)}
        await s.send(0, wire.Receipt(s.receipt(0, whole)))  # over more than one request
        foreign = s.receipt(0, {index: s.answer(index)}, order_hash="0x" + "ee" * 32)
        await s.send(0, wire.Receipt(foreign))
        await serve(s, index)
        await s.receipts(index)

    stages.script = script
    outcome, seen = await run(stages, 2)
    assert sorted(outcome.finished) == sorted(seen.finished) == [0, 1]


async def close_in_mid_answer(s: Stages, index: int) -> None:
    """Request 0 is answered; the next two have begun when stage 1 ends."""
    if index == 0:
        await serve(s, 0)
        return
    await s.tokens(index, 2)
    while not any(isinstance(m, wire.Submit) and m.request == 2 for _, m in s.heard):
        await asyncio.sleep(0.01)
    if index == 1:
        await s.die(1)


async def test_stage_that_closes_in_mid_answer_ends_what_is_open_and_keeps_the_rest(
    stages: Stages,
) -> None:
    stages.script = close_in_mid_answer
    outcome, seen = await run(stages, 6, in_flight=2)
    assert list(outcome.finished) == seen.finished == [0]
    assert set(outcome.unfinished) == {1, 2, 3, 4, 5}
    assert all(isinstance(e, PeerUnreachable) for e in outcome.unfinished.values())
    assert stages.operators[1].address in reason(outcome, 5).what


async def test_unfinished_requests_are_cancelled_at_the_stages_that_remain(
    stages: Stages,
) -> None:
    async def script(s: Stages, index: int) -> None:
        failed = wire.RequestFailed(s.order_hash, index, "E-CHECK-01", "rows differ")
        await s.send(1, failed)

    stages.script = script
    job = job_run_of(stages, PromptBatch.of(prompts(2)), Seen())
    await job.open()
    outcome = await job.run()
    assert set(outcome.unfinished) == {0, 1}
    await job.let_go()
    async with asyncio.timeout(30):
        while len(cancels := [x for x in stages.heard if isinstance(x[1], wire.Cancel)]) < 6:
            await asyncio.sleep(0.01)
    assert {(stage, m.request) for stage, m in cancels} == {
        (s, i) for s in range(3) for i in (0, 1)
    }


async def test_request_failed_names_stage_code_and_reason(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        if index == 0:
            await s.send(1, wire.RequestFailed(s.order_hash, 0, "E-CHECK-01", "rows differ"))
        else:
            await serve(s, index)

    stages.script = script
    outcome, _ = await run(stages, 2)
    assert list(outcome.finished) == [1]
    assert "stage 1" in reason(outcome).what
    assert reason(outcome).why == "E-CHECK-01: rows differ"


async def test_the_stages_that_remain_are_told_at_once_that_a_pipeline_is_broken(
    stages: Stages,
) -> None:
    stages.script = close_in_mid_answer
    job = job_run_of(stages, PromptBatch.of(prompts(4)), Seen(), in_flight=2)
    await job.open()
    outcome = await job.run()
    assert set(outcome.unfinished) == {1, 2, 3}
    async with asyncio.timeout(30):
        while len(told := [x for x in stages.heard if isinstance(x[1], wire.Stopped)]) < 4:
            await asyncio.sleep(0.01)
    assert {(stage, m.request) for stage, m in told} == {(s, i) for s in (0, 2) for i in (1, 2)}, (
        "neither what has ended nor what was never asked"
    )
    await job.close()


async def test_silence_ends_the_run(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        await s.tokens(index, 2)

    stages.script = script
    outcome, seen = await run(stages, 3, in_flight=2, silence_s=0.3)
    assert len(seen.tokens) == 2
    assert set(outcome.unfinished) == {0, 1, 2}
    assert "no token or receipt for 0.3 s" in reason(outcome, 2).why


async def test_refused_open_job_is_raised_with_the_reason(stages: Stages) -> None:
    stages.refuse[1] = wire.Failed("E-JOB-NOT-MATCHED", "not on chain")
    job = job_run_of(stages, PromptBatch.of(prompts(1)), Seen())
    with pytest.raises(PeerUnreachable) as caught:
        await job.open()
    assert "stage 1" in caught.value.what
    assert caught.value.why == "E-JOB-NOT-MATCHED: not on chain"


async def test_stage_that_proves_another_key_is_refused(make_stages: MakeStages) -> None:
    ours, others = await make_stages(100), await make_stages(200)
    batch = PromptBatch.of(prompts(1))
    wrong = replace(ours.match(batch), endpoints=(*ours.endpoints[:2], others.endpoints[2]))
    job = JobRun(
        wrong,
        batch,
        StreamIdentity(REQUESTER, DOMAIN),
        RegisteredShards(shard_root_of),
        on_token=Seen().token,
        on_finish=Seen().finish,
        limits=PipelinePatience(),
    )
    with pytest.raises(AuthenticationFailed):
        await job.open()


async def test_stage_that_is_not_there_is_unreachable(stages: Stages) -> None:
    job = job_run_of(stages, PromptBatch.of(prompts(1)), Seen())
    await stages.die(2)
    with pytest.raises(PeerUnreachable):
        await job.open()


async def test_refused_submit_is_this_requests_failure(stages: Stages) -> None:
    stages.refuse_submit = {1}
    outcome, _ = await run(stages, 3)
    assert sorted(outcome.finished) == [0, 2]
    assert "refused" in reason(outcome, 1).what
    assert "no room" in reason(outcome, 1).why


def lie(stage: int, **changes: Any) -> Any:
    async def script(s: Stages, index: int) -> None:
        await s.tokens(index)
        for at in range(3):
            answers = {index: s.answer(index)}
            await s.send(at, wire.Receipt(s.receipt(at, answers, **changes if at == stage else {})))

    return script


@pytest.mark.parametrize(
    ("stage", "field", "value"),
    [
        (0, "tokens_out", 99),
        (1, "shard_root", "0x" + "ee" * 32),
        (1, "plan_hash", "0x" + "ee" * 32),
        (2, "output_root", "0x" + "ee" * 32),
    ],
)
async def test_receipt_that_does_not_hold_leaves_the_request_unfinished(
    stages: Stages, stage: int, field: str, value: Any
) -> None:
    stages.script = lie(stage, **{field: value})
    outcome, seen = await run(stages, 2)
    assert not outcome.finished
    assert not seen.finished
    error = reason(outcome, 1)
    assert isinstance(error, CheckFailed)
    assert (error.details["stage"], error.details["field"]) == (stage, field)


async def test_receipts_for_other_tokens_than_we_got_are_refused(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        produced = s.answer(index).tokens
        for step, _ in enumerate(produced):
            await s.token(index, step, 250 + step, "length" if step == 3 else "")
        await s.receipts(index)

    stages.script = script
    assert reason((await run(stages))[0]).details["field"] in ("in_root", "out_root")


async def test_receipts_before_the_end_of_the_answer_are_refused(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        for step, token in enumerate(s.answer(index).tokens):
            await s.token(index, step, token, "")
        await s.receipts(index)

    stages.script = script
    outcome, _ = await run(stages)
    assert isinstance(reason(outcome), CheckFailed)


async def test_answer_cut_short_is_refused(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stages.answer
    monkeypatch.setattr(stages, "answer", lambda i: replace(whole(i), tokens=whole(i).tokens[:2]))
    outcome, _ = await run(stages)  # two tokens, said to be as many as were ordered
    assert "not whole" in reason(outcome).what


async def test_last_stage_that_goes_on_is_refused(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        for step in range(100):
            await s.token(index, step, 1)

    stages.script = script
    outcome, seen = await run(stages)
    assert "goes on" in reason(outcome).what
    assert len(seen.tokens[0]) == 4


async def test_close_job_gives_one_checked_receipt_a_stage(stages: Stages) -> None:
    seen = Seen()
    job = job_run_of(stages, PromptBatch.of(prompts(3)), seen)
    await job.open()
    await job.run()
    receipts = await job.close_job([2, 0, 1])
    assert [len(r.leaves) for r in receipts] == [3, 3, 3]
    await job.close()


async def test_close_job_over_other_requests_is_refused(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_run_of(stages, PromptBatch.of(prompts(3)), Seen())
    await job.open()
    await job.run()
    honest = stages.receipt
    monkeypatch.setattr(
        stages, "receipt", lambda stage, answers: honest(stage, {0: answers[0], 7: answers[1]})
    )
    with pytest.raises(CheckFailed):
        await job.close_job([0, 1, 2])
    await job.close()


async def test_cancelled_run_leaves_nothing_running(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        await s.tokens(index, 1)

    stages.script = script
    before = asyncio.all_tasks()
    job = job_run_of(stages, PromptBatch.of(prompts(3)), Seen())
    await job.open()
    running = asyncio.create_task(job.run())
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await job.close()
    await stages.close()
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not left
