"""Receipts are collected over what every stage finished, and a silent stage is named."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from core.protocol import types as t
from core.protocol import wire
from core.runtime.network.collecting import Ask, Collected, collect, dialled
from matcher.matching.proposing import propose
from tests.clocks import ManualClock
from tests.town.fleet import (
    FakePeers,
    FakeStage,
    machine_key,
    make_job,
    make_order,
    make_receipt,
    make_words,
)
from tests.town.orders import DOMAIN, NOW_S, sign_order, sign_receipt

JOB = make_job(sign_order(make_order()), [(1, 0, 10), (2, 10, 30)])
ORDER, PLAN = JOB.signed.order, JOB.plan
LIE = "0x" + "66" * 32
RECEIPT = make_receipt(ORDER, PLAN, 1, (0, 1), machine_key(2))


class Hanging(FakeStage):
    """Accepts the stream and never answers."""

    async def call(self, *_: object, **__: object) -> wire.Frame:
        await asyncio.Event().wait()
        raise AssertionError


async def two_stages(of_second: type[FakeStage] = FakeStage) -> tuple[list[FakeStage], Ask]:
    """Both finished both requests, and hold the words of each other."""
    clock = ManualClock(float(NOW_S))
    stages = [FakeStage(n, clock, finished={0, 1}) for n in (1, 2)]
    peers = FakePeers({machine_key(n).address: stage for n, stage in enumerate(stages, start=1)})
    await propose(peers, JOB.signed, PLAN, JOB.endpoints, DOMAIN, NOW_S)
    for stage in (0, 1):
        signed = make_receipt(ORDER, PLAN, stage, (0, 1), machine_key(stage + 1))
        stages[1 - stage].words = make_words(signed, machine_key(stage + 1))
    if of_second is not FakeStage:
        stages[1] = peers.stages[machine_key(2).address] = of_second(2, clock)
    return stages, dialled(peers, PLAN, JOB.endpoints)


async def whole(ask: Ask) -> Collected:
    return await collect(ask, ORDER, PLAN, DOMAIN, all_requests=True, timeout_s=0.2)


async def test_a_silent_stage_is_named_after_one_deadline() -> None:
    stages, ask = await two_stages(Hanging)
    stages[0].words = []
    found = await whole(ask)
    assert found.receipts == ()
    assert "stage 1" in found.problem


async def test_a_silent_stage_is_bound_by_its_words() -> None:
    _, ask = await two_stages(Hanging)
    found = await whole(ask)
    assert (found.requests, found.problem) == ((0, 1), "")
    one, other = (signed.receipt for signed in found.receipts)
    assert other.input_root == one.output_root
    assert (other.shard_root, other.signed_at) == (t.ZERO_HASH, 0)


class Denying(FakeStage):
    """Says that it finished nothing, and signs nothing."""

    def _answer(self, message: wire.AnyMessage) -> wire.AnyMessage:
        if isinstance(message, wire.Progress):
            return wire.Finished([])
        return wire.Failed("E-CHECK-01", "nothing is finished")


class Refusing(FakeStage):
    """Says that it finished all, and signs nothing."""

    def _answer(self, message: wire.AnyMessage) -> wire.AnyMessage:
        if isinstance(message, wire.Progress):
            return wire.Finished([0, 1])
        return wire.Failed("E-CHECK-01", "no")


class Lying(Refusing):
    """Signs for other rows than it sent."""

    def _answer(self, message: wire.AnyMessage) -> wire.AnyMessage:
        if isinstance(message, wire.CloseJob):
            lie = make_receipt(ORDER, PLAN, 1, (0, 1), machine_key(2))
            leaves = [msgspec.structs.replace(leaf, out_root=LIE) for leaf in lie.leaves]
            return wire.Receipt(sign_receipt(machine_key(2), ORDER, PLAN, 1, leaves, []))
        return super()._answer(message)


@pytest.mark.parametrize("how", [Denying, Refusing, Lying])
async def test_a_stage_that_takes_its_words_back_is_bound_by_them(how: type[FakeStage]) -> None:
    stages, ask = await two_stages(how)
    found = await whole(ask)
    assert (found.problem, len(found.receipts)) == ("", 2)
    assert found.receipts[1].leaves == [word.word.leaf for word in stages[0].words]
    stages[0].words = stages[0].words[:1]
    assert (await whole(ask)).receipts == ()


async def test_a_first_stage_is_bound_by_its_words_too() -> None:
    stages, ask = await two_stages()
    stages[0].is_gone = True
    one, other = (await whole(ask)).receipts
    assert one.receipt.input_root == other.receipt.output_root


async def part(ask: Ask) -> Collected:
    return await collect(ask, ORDER, PLAN, DOMAIN, all_requests=False, timeout_s=0.2)


async def test_words_bind_a_stage_to_a_part_of_a_batch() -> None:
    stages, ask = await two_stages(Hanging)
    stages[0].finished = {0}
    found = await part(ask)
    assert (found.requests, len(found.receipts)) == ((0,), 2)


@pytest.mark.parametrize("how", [Denying, Refusing, Hanging])
async def test_a_stage_that_gave_no_word_of_a_request_holds_up_no_other(
    how: type[FakeStage],
) -> None:
    """Whatever it says that it finished."""
    stages, ask = await two_stages(how)
    stages[0].words = stages[0].words[:1]
    found = await part(ask)
    assert (found.requests, len(found.receipts)) == ((0,), 2)


async def test_words_that_nobody_signed_bind_nobody() -> None:
    stages, ask = await two_stages(Refusing)
    stages[0].words[1] = make_words(RECEIPT, machine_key(9))[1]
    assert (await part(ask)).requests == (0,)


async def test_words_that_are_worth_nothing_together_end_the_search() -> None:
    """Neighbours that mean to keep others busy sign any counts."""
    stages, ask = await two_stages(Hanging)
    signer, place = machine_key(2), {"tokens_in": 2**32 - 1}
    absurd = [make_receipt(ORDER, PLAN, 1, (n,), signer, **place) for n in (0, 1)]
    stages[0].words = [word for one in absurd for word in make_words(one, signer)]
    for collected in (whole, part):
        async with asyncio.timeout(5):
            assert (await collected(ask)).receipts == ()


class Odd(FakeStage):
    """Signs for other rows of request 1, of which it gave no word."""

    def _answer(self, message: wire.AnyMessage) -> wire.AnyMessage:
        if isinstance(message, wire.Progress):
            return wire.Finished([0, 1])
        if isinstance(message, wire.CloseJob):
            lie = make_receipt(ORDER, PLAN, 1, message.requests, machine_key(2))
            leaves = [
                msgspec.structs.replace(leaf, in_root=LIE) if leaf.request_index else leaf
                for leaf in lie.leaves
            ]
            return wire.Receipt(sign_receipt(machine_key(2), ORDER, PLAN, 1, leaves, []))
        return wire.Receipts([], [])


async def test_a_request_on_which_stages_do_not_agree_is_left_out() -> None:
    stages, ask = await two_stages(Odd)
    stages[0].words = []
    found = await part(ask)
    assert (found.requests, len(found.receipts)) == ((0,), 2)
    assert (await whole(ask)).receipts == ()


class Unheard(FakeStage):
    """A first stage that was cut: it did not hear the answer to request 1."""

    def _answer(self, message: wire.AnyMessage) -> wire.AnyMessage:
        if isinstance(message, wire.CloseJob):
            honest = make_receipt(ORDER, PLAN, 0, message.requests, machine_key(1))
            answers = [
                t.ZERO_HASH if leaf.request_index else answer
                for leaf, answer in zip(honest.leaves, honest.answers, strict=True)
            ]
            return wire.Receipt(
                sign_receipt(machine_key(1), ORDER, PLAN, 0, honest.leaves, [], answers)
            )
        return super()._answer(message)


async def test_an_answer_that_the_first_stage_did_not_hear_is_not_delivered() -> None:
    """The chain takes no such receipt."""
    clock = ManualClock(float(NOW_S))
    stages = [Unheard(1, clock, finished={0, 1}), FakeStage(2, clock, finished={0, 1})]
    peers = FakePeers({machine_key(n).address: stage for n, stage in enumerate(stages, start=1)})
    await propose(peers, JOB.signed, PLAN, JOB.endpoints, DOMAIN, NOW_S)
    ask = dialled(peers, PLAN, JOB.endpoints)
    assert "did not hear" in (await whole(ask)).problem
    assert (await part(ask)).requests == (0,)


async def test_only_what_every_stage_finished_is_receipted() -> None:
    clock = ManualClock(float(NOW_S))
    stages = {machine_key(n).address: FakeStage(n, clock) for n in (1, 2)}
    peers = FakePeers(dict(stages))
    await propose(peers, JOB.signed, PLAN, JOB.endpoints, DOMAIN, NOW_S)
    stages[machine_key(1).address].finished = {0, 1, 77}
    stages[machine_key(2).address].finished = {1, 77}
    ask = dialled(peers, PLAN, JOB.endpoints)
    found = await collect(ask, ORDER, PLAN, DOMAIN, all_requests=False)
    assert (found.requests, len(found.receipts)) == ((1,), 2)
    all_of_it = await whole(ask)
    assert (all_of_it.requests, all_of_it.receipts) == ((1,), ())
