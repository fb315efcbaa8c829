"""Stages draw as the order says, end where its stop strings are, and tell only the client what was
likely.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from core.engine.sampling import grammar
from core.engine.weights.tokenizer import Tokenizer
from core.protocol import types as t
from core.protocol import wire
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import greedy, reference
from tests.town.orders import key
from tests.town.requester import Requester

MATCHER, REQUESTER = key(40), key(50)
PROMPT = list(range(60, 90))
RICH = t.SamplingParams(
    temperature_micro=900_000,
    top_k=200,
    min_p_micro=100,
    max_new_tokens=20,
    seed=12,
    top_p_micro=990_000,
    repetition_penalty_micro=1_500_000,
    frequency_penalty_micro=800_000,
    presence_penalty_micro=100_000,
    min_new_tokens=5,
    logit_bias=((65, 5_000_000), (66, -100_000_000)),
)


@pytest.mark.parametrize("cuts", [[(0, 4)], [(0, 2), (2, 4)]], ids=["one", "two"])
async def test_every_parameter_reaches_the_machine_that_draws(
    cuts: list[tuple[int, int]], start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start(*cuts)
    requester = Requester(REQUESTER, chain, machines)
    plain = t.SamplingParams(temperature_micro=900_000, max_new_tokens=20, seed=12)
    forever = msgspec.structs.replace(plain, ignore_eos=True, logit_bias=((258, 4_000_000),))
    greedily = msgspec.structs.replace(RICH, temperature_micro=0)
    samplings = [RICH, plain, forever, greedily]
    requester.order([(PROMPT, sampling) for sampling in samplings])
    await requester.run_all(MATCHER)
    for index, sampling in enumerate(samplings):
        assert requester.tokens[index] == reference(model_dir, PROMPT, sampling, index)
    assert len({tuple(tokens) for tokens in requester.tokens.values()}) == 4
    assert requester.finish[2] == "length"
    assert 258 in requester.tokens[2]
    await requester.close()


async def test_an_answer_cut_in_two_orders_is_the_undisturbed_one(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    whole = msgspec.structs.replace(RICH, ignore_eos=True)
    undisturbed = reference(model_dir, PROMPT, whole, 0)
    rest = msgspec.structs.replace(whole, key_index=0, first_step=8, max_new_tokens=12)
    requester = Requester(REQUESTER, chain, machines)
    requester.order([([1, 2], greedy(1)), (PROMPT + undisturbed[:8], rest)])
    await requester.run_all(MATCHER)
    assert requester.tokens[1] == undisturbed[8:]
    await requester.close()


async def test_an_answer_ends_with_the_token_that_completes_a_stop_string(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    tokenizer = Tokenizer(model_dir)
    plain = t.SamplingParams(temperature_micro=10**6, max_new_tokens=30, seed=5, ignore_eos=True)
    undisturbed = reference(model_dir, PROMPT, plain, 0)
    text = tokenizer.decode(undisturbed)
    place = next(i for i in range(3, len(text) - 1) if "\ufffd" not in text[i : i + 2])
    stop = text[place : place + 2]
    stopping = msgspec.structs.replace(plain, stop=(stop.encode(),))
    at_the_end = msgspec.structs.replace(plain, key_index=0)
    requester = Requester(REQUESTER, chain, machines)
    requester.order([(PROMPT, stopping), (PROMPT, at_the_end)])
    await requester.run_all(MATCHER)
    answer = requester.tokens[0]
    assert answer == undisturbed[: len(answer)]
    assert stop in tokenizer.decode(answer)
    assert stop not in tokenizer.decode(answer[:-1])
    assert requester.finish[0] == "stop"
    assert requester.finish[1] == "length"
    # Asked again, what is finished is told with the same end.
    requester.tokens.clear()
    requester.finish.clear()
    await requester.submit(0)
    await requester.until(lambda: requester.tokens.get(0) == answer)
    assert requester.finish[0] == "stop"
    await requester.close()


@pytest.mark.parametrize("cuts", [[(0, 4)], [(0, 2), (2, 4)]], ids=["one", "two"])
async def test_an_answer_follows_its_grammar_whatever_is_guessed_ahead(
    cuts: list[tuple[int, int]], start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines, tokenizer = await start(*cuts), Tokenizer(model_dir)
    schema = '{"type":"array","items":{"enum":["tock","tick"]},"minItems":8,"maxItems":12}'
    greedily = t.SamplingParams(max_new_tokens=200, grammar=schema)
    drawn = msgspec.structs.replace(greedily, temperature_micro=10**6, seed=3)
    samplings = [greedily, drawn, greedy(20)]
    requester = Requester(REQUESTER, chain, machines)
    requester.order([(PROMPT, sampling) for sampling in samplings])
    await requester.run_all(MATCHER)
    for index, sampling in enumerate(samplings):
        assert requester.tokens[index] == reference(model_dir, PROMPT, sampling, index)
    for index in (0, 1):
        assert requester.finish[index] == "stop"
        assert set(json.loads(tokenizer.decode(requester.tokens[index][:-1]))) <= {"tick", "tock"}
    await requester.close()


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_job_may_name_few_grammars_that_cannot_be_read(
    start: Start, chain: FakeChain, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = Requester(REQUESTER, chain, machines)
    bad = [t.SamplingParams(grammar=f'{{"type": "banana{i}"}}') for i in range(6)]
    good = t.SamplingParams(grammar='start: "yes"')
    requester.order([([1, 2], sampling) for sampling in (*bad, good)])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    tried: list[str] = []
    check = grammar._try

    def counted(process: object, text: str) -> None:
        tried.append(text)
        check(process, text)  # type: ignore[arg-type]

    monkeypatch.setattr(grammar, "_try", counted)
    answers = [(await requester.submit(index))[stage] for index in range(7)]
    reasons = [answer.reason for answer in answers if isinstance(answer, wire.Failed)]
    assert len(reasons) == 7
    assert all("cannot be used" in reason for reason in reasons[:3])
    assert all("3 grammars could not be read here" in reason for reason in reasons[3:])
    assert len(tried) == 2 * 3
    await requester.close()


async def test_an_answer_cut_in_two_orders_follows_its_grammar_on(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    schema = '{"type":"array","items":{"type":"boolean"},"minItems":4,"maxItems":6}'
    whole = t.SamplingParams(
        temperature_micro=10**6, max_new_tokens=99, seed=3, key_index=0, grammar=schema
    )
    undisturbed = reference(model_dir, PROMPT, whole, 0)
    rest = msgspec.structs.replace(whole, first_step=9)
    requester = Requester(REQUESTER, chain, machines)
    requester.order([([1, 2], greedy(1)), (PROMPT + undisturbed[:9], rest)])
    await requester.run_all(MATCHER)
    assert requester.tokens[1] == undisturbed[9:]
    await requester.close()


async def test_logprobs_are_told_to_the_client_alone_and_only_when_asked_for(
    start: Start, chain: FakeChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = await start((0, 2), (2, 4))
    heard: list[wire.Token] = []
    original = type(machines[0].stage)._token

    async def listen(self: object, channel: object, message: wire.Token) -> object:
        heard.append(message)
        return await original(self, channel, message)  # type: ignore[arg-type]

    stage = machines[0].stage
    monkeypatch.setitem(stage._handlers, wire.Token, listen.__get__(stage))
    asking = msgspec.structs.replace(greedy(6), n_logprobs=3)
    requester = Requester(REQUESTER, chain, machines)
    requester.order([(PROMPT, asking), (PROMPT, greedy(6))])
    await requester.run_all(MATCHER)
    for message in requester.told:
        if message.request == 1:
            assert message.logprob is None
            assert message.top == ()
            continue
        assert message.logprob is not None
        assert message.logprob <= 0
        assert message.top[0] == (message.token, message.logprob)
        assert [lp for _, lp in message.top] == sorted((lp for _, lp in message.top), reverse=True)
        assert len(message.top) == 3
    assert heard
    assert all(message.logprob is None and message.top == () for message in heard)
    await requester.close()


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (t.SamplingParams(first_step=2, key_index=0), "2 of the prompt's 2 tokens"),
        (t.SamplingParams(logit_bias=((272, 5),)), "biased token ids of this model are below 272"),
        (t.SamplingParams(grammar='{"type": "banana"}'), "grammar cannot be used"),
    ],
)
async def test_parameters_that_mean_nothing_here_are_refused(
    start: Start, chain: FakeChain, sampling: t.SamplingParams, reason: str
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = Requester(REQUESTER, chain, machines)
    requester.order([([1, 2], sampling)])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    for answer in await requester.submit(0):
        assert isinstance(answer, wire.Failed)
        assert reason in answer.reason
    await requester.close()
