"""Tokens that are guessed ahead change nothing but how many steps an answer takes: not the answer,
nor what is signed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from core.protocol import types as t
from core.protocol import wire
from core.protocol.errors import CheckFailed, PeerUnreachable
from miner.serving import request_run, request_state
from miner.serving.request_state import Request, RequestPhase
from tests.miner.conftest import Start
from tests.miner.test_pipeline import check_receipts, requester_of
from tests.town.chain import FakeChain
from tests.town.machines import greedy, reference
from tests.town.orders import key
from tests.town.requester import Requester

MATCHER = key(40)
PROMPT = [70, 71, 72, 73, 70, 71, 72, 73, 70, 71]
NEW_TOKENS = 36
LOOPS = t.SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True, logit_bias=((65, 90_000_000),))
WANDERS = t.SamplingParams(
    temperature_micro=800_000,
    seed=5,
    max_new_tokens=NEW_TOKENS,
    ignore_eos=True,
    frequency_penalty_micro=30_000,
    n_logprobs=2,
    logit_bias=((65, 30_000_000), (66, 30_000_000)),
)
ENDS = t.SamplingParams(
    temperature_micro=900_000,
    seed=2,
    max_new_tokens=NEW_TOKENS,
    logit_bias=((65, 30_000_000), (66, 30_000_000), (258, 28_000_000)),
)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many guesses were drawn along, and how many fitted."""
    from miner.compute.compute import Compute

    seen: Counter[str] = Counter()
    inner = Compute.tokens

    async def tokens(self: Compute, *args: Any, **options: Any) -> Any:
        choices = await inner(self, *args, **options)
        seen["guessed"] += len(args[3])
        seen["right"] += len(choices) - 1
        seen["most"] = max(seen["most"], len(args[3]))
        return choices

    monkeypatch.setattr(Compute, "tokens", tokens)
    return seen


@pytest.mark.parametrize(
    "cuts", [[(0, 4)], [(0, 2), (2, 4)], [(0, 1), (1, 3), (3, 4)]], ids=["one", "two", "three"]
)
async def test_guessing_changes_neither_tokens_nor_receipts(
    cuts: list[tuple[int, int]],
    start: Start,
    chain: FakeChain,
    model_dir: Any,
    frames: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_run, "GUESS_FREELY", 9)
    machines = await start(*cuts)
    requester = requester_of(chain, machines)
    samplings = [LOOPS, WANDERS, ENDS, greedy(NEW_TOKENS)]
    requester.order([(PROMPT, sampling) for sampling in samplings])
    await requester.run_all(MATCHER)
    for index, sampling in enumerate(samplings):
        assert requester.tokens[index] == reference(model_dir, PROMPT, sampling, index)
    assert requester.tokens[0] == [65] * NEW_TOKENS
    assert 0 < frames["right"] < frames["guessed"]
    assert frames["right"] >= NEW_TOKENS // 2  # of those that loop at the least
    check_receipts(model_dir, requester, list(range(4)))
    for machine in machines:
        for index in range(4):
            leaf = machine.store.leaves(requester.order_hash, requester.plan_hash)[index].leaf
            assert (leaf.tokens_in, leaf.tokens_out) == (
                len(PROMPT),
                len(requester.tokens[index]),
            )
        # Memory is given back between passes, after the last token is told.
        await requester.until(lambda: machine.compute.kv_tokens == 0)  # noqa: B023
    await requester.close()


@pytest.mark.parametrize("spare", [0, 2])
async def test_in_a_crowd_as_much_is_guessed_as_delays_nobody(
    spare: int,
    start: Start,
    chain: FakeChain,
    model_dir: Any,
    frames: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_run, "GUESS_FREELY", 0)
    machines = await start((0, 2), (2, 4))
    monkeypatch.setattr(machines[0].compute, "spare_rows", lambda key: spare)
    requester = Requester(key(50), chain, machines)
    samplings = [LOOPS, WANDERS, LOOPS]
    requester.order([(PROMPT, sampling) for sampling in samplings])
    await requester.run_all(MATCHER)
    for index, sampling in enumerate(samplings):
        assert requester.tokens[index] == reference(model_dir, PROMPT, sampling, index)
    assert bool(frames["guessed"]) == bool(spare)
    assert frames["most"] == spare
    await requester.close()


async def test_a_stage_that_does_not_guess(
    start: Start, chain: FakeChain, frames: Counter[str]
) -> None:
    machines = await start((0, 2), (2, 4), guesses=False)
    requester = Requester(key(50), chain, machines)
    requester.order([(PROMPT, LOOPS)])
    await requester.run_all(MATCHER)
    assert requester.tokens[0] == [65] * NEW_TOKENS
    assert not frames["guessed"]
    await requester.close()


async def test_a_ring_is_measured_while_all_of_its_steps_carry_guesses(
    start: Start, chain: FakeChain, frames: Counter[str]
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = Requester(key(50), chain, machines)
    requester.order([(PROMPT, LOOPS)])
    await requester.run_all(MATCHER)
    assert frames["right"]
    (ring,) = machines[0].compute.pace._rings.values()
    assert any(rows > 2 for rows in ring.later[0].by_rows())
    await requester.close()


MIDDLE = Request(index=0, is_first=False, is_last=False, context=100)
LAST = Request(index=0, is_first=False, is_last=True, context=100)


def test_rows_of_guesses_count_as_far_as_the_next_frame_says() -> None:
    request = request_state.rows_arrive(MIDDLE, 0, 10)
    assert request is not None
    request = request_state.rows_arrive(request, 10, 5, 4)
    assert request is not None and (request.rows, request.guessed) == (11, 4)
    assert request_state.rows_arrive(request, 10, 5, 4) is None  # it came twice
    for start, rows in ((11, 12), (13, 14), (15, 16)):
        after = request_state.rows_arrive(request, start, 1)
        assert after is not None and (after.rows, after.guessed) == (rows, 0)
    with pytest.raises(PeerUnreachable):
        request_state.rows_arrive(request, 16, 1)
    for tokens_out, fits in ((1, False), (2, True), (6, True), (7, False)):
        if fits:
            ended = request_state.end(request, 10, tokens_out)
            assert ended is not None and ended.phase is RequestPhase.FINISHED
        else:
            with pytest.raises(CheckFailed):
                request_state.end(request, 10, tokens_out)


def test_guesses_that_cannot_be_are_refused() -> None:
    request = request_state.submit(LAST, 10, 4)
    with pytest.raises(CheckFailed):
        request_state.rows_arrive(request, 0, 10, 3)  # of the prompt
    request = request_state.rows_arrive(request, 0, 10)
    assert request is not None
    request = request_state.produce(request, is_eos=False)
    for count, guessed in ((2, 2), (1, 1), (2, 3), (5, 4)):
        with pytest.raises(CheckFailed):
            request_state.rows_arrive(request, 10, count, guessed)
    request = request_state.rows_arrive(request, 10, 3, 2)
    assert request is not None
    request = request_state.guess_fits(request_state.guess_fits(request))
    assert (request.rows, request.guessed) == (13, 0)
    with pytest.raises(CheckFailed):
        request_state.guess_fits(request)


def test_a_frame_carries_few_guesses() -> None:
    said = {"type": "Activations", "orderHash": "0x" + "1" * 64, "request": 0, "start": 5}
    for guessed, fits in ((wire.MAX_GUESSED, True), (wire.MAX_GUESSED + 1, False), (-1, False)):
        data = said | {"rows": 20, "guessed": guessed}
        if fits:
            assert msgspec.convert(data, wire.Activations).guessed == guessed
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(data, wire.Activations)
