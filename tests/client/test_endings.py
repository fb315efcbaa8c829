"""A client holds the last stage to where an answer ends, and keeps what it tells of tokens."""

from __future__ import annotations

import asyncio

import pytest

from client.jobs.failover import Ongoing, go_on
from client.jobs.job_run import JobRun
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Logprobs, PipelineOutcome, PipelinePatience, RequestState
from client.pipeline.verify import RegisteredShards
from core.engine.sampling.stops import AnswerEnding
from core.protocol import wire
from core.protocol.errors import CheckFailed, PeerUnreachable
from core.runtime.network.channel import StreamIdentity
from tests.town.orders import DOMAIN, REQUESTER, prompts, shard_root_of
from tests.town.stages import Stages, serve


async def run(stages: Stages, eos_ids: set[int]) -> PipelineOutcome:
    batch = PromptBatch.of(prompts(1))
    job = JobRun(
        stages.match(batch),
        batch,
        StreamIdentity(REQUESTER, DOMAIN),
        RegisteredShards(shard_root_of),
        on_token=lambda index, step, token: None,
        on_finish=lambda index, state: None,
        limits=PipelinePatience(silence_s=10.0),
        ending_of=lambda prompt: AnswerEnding(prompt.sampling, eos_ids, None, prompt.ids),
    )
    async with asyncio.timeout(20):
        await job.open()
        try:
            return await job.run()
        finally:
            await job.close()


async def test_an_honest_end_is_believed(stages: Stages) -> None:
    stages.script = serve
    assert not (await run(stages, set())).unfinished


@pytest.mark.parametrize("finish", ["", "length"])
async def test_going_on_past_the_end_of_the_text_is_caught_at_once(
    stages: Stages, finish: wire.Finish
) -> None:
    async def script(s: Stages, index: int) -> None:
        await s.token(index, 0, 77, finish)

    stages.script = script
    outcome = await run(stages, {77})
    error = outcome.unfinished[0]
    assert isinstance(error, CheckFailed)
    assert "ends the answer in the wrong place" in error.what


async def test_an_answer_that_stops_for_no_reason_is_caught(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        await s.token(index, 0, 5)
        await s.token(index, 1, 6, "stop")

    stages.script = script
    outcome = await run(stages, {77})
    assert isinstance(outcome.unfinished[0], CheckFailed)
    assert "token 1 is said to end it by 'stop', it does by ''" in outcome.unfinished[0].why


async def test_logprobs_are_kept_for_every_token(stages: Stages) -> None:
    async def script(s: Stages, index: int) -> None:
        produced = s.answer(index).tokens
        for step, token in enumerate(produced):
            finish: wire.Finish = "length" if step == len(produced) - 1 else ""
            message = wire.Token(s.order_hash, index, step, token, finish)
            if step:
                message = wire.Token(
                    s.order_hash, index, step, token, finish, None, -0.5, ((token, -0.5), (3, -2.0))
                )
            await s.send(2, message)
        await s.receipts(index)

    stages.script = script
    state = (await run(stages, set())).finished[0]
    assert len(state.logprobs) == len(state.tokens)
    assert state.logprobs[0] is None
    assert state.logprobs[1] == Logprobs(-0.5, ((state.tokens[1], -0.5), (3, -2.0)))


def test_logprobs_of_all_parts_of_an_answer_stand_in_a_row() -> None:
    (prompt,) = prompts(1)
    answer = Ongoing(prompt)
    part = RequestState(prompt.ids, prompt.sampling.max_new_tokens)
    part.tokens, part.logprobs = [4, 5], [Logprobs(-1.0, ()), None]
    lost = PipelineOutcome({}, {0: PeerUnreachable("a stage", "gone")}, begun={0: part})
    assert go_on([answer], lost, "0x" + "11" * 32) == ([answer], {})
    last = RequestState(prompt.ids, 1)
    last.tokens, last.logprobs = [6], [Logprobs(-2.0, ())]
    whole = answer.whole(last)
    assert whole.tokens == [4, 5, 6]
    assert whole.logprobs == [Logprobs(-1.0, ()), None, Logprobs(-2.0, ())]
