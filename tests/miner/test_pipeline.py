"""Stages over real streams give the whole model's answers and receipts that fit together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from client.pipeline.verify import (
    Bought,
    RegisteredShards,
    RequestAnswer,
    check_answers,
    check_pipeline,
)
from core.dispute.judging.numerics import reexecute, whitened_relative_l2
from core.engine.weights.load_shard import load_shard
from core.engine.weights.weights import weight_roots
from core.protocol import commit, hashing, signing, wire
from core.protocol import types as t
from core.protocol.errors import PeerUnreachable
from core.protocol.types import JobState
from core.runtime.network.channel import Peers, StreamIdentity, connect
from devnet.models.tiny_models import write_tiny_model
from miner.chain.onchain import JobNews
from miner.serving.request_state import RequestPhase
from tests.miner.conftest import SPAN_LAYERS, Start
from tests.town.chain import FakeChain
from tests.town.machines import Machine, greedy, reference
from tests.town.orders import DOMAIN, NOW_S, key
from tests.town.requester import Requester

MATCHER, REQUESTER = key(40), key(50)
PROMPTS = [[5, 6, 7, 8, 9], [65], list(range(60, 130)), [1, 2, 3]]


def requester_of(chain: FakeChain, machines: list) -> Requester:  # type: ignore[type-arg]
    return Requester(REQUESTER, chain, machines)


def check_receipts(model_dir: Path, requester: Requester, indices: list[int]) -> None:
    """What a client checks before it pays."""
    weights = weight_roots(model_dir)
    bought = Bought(
        DOMAIN,
        requester.signed.order,
        requester.plan,
        RegisteredShards(lambda a, b: commit.to_hex(weights.shard_root(a, b)), SPAN_LAYERS),
    )
    for index in indices:
        receipts = [requester.receipts[index][s] for s in range(len(requester.machines))]
        check_pipeline(receipts, bought)
        answer = RequestAnswer(requester.batch.prompts[index].ids, tuple(requester.tokens[index]))
        check_answers(receipts, {index: answer})


@pytest.mark.parametrize(
    "cuts", [[(0, 4)], [(0, 2), (2, 4)], [(0, 1), (1, 3), (3, 4)]], ids=["one", "two", "three"]
)
async def test_answers_equal_the_whole_models_and_receipts_chain(
    cuts: list[tuple[int, int]], start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start(*cuts)
    requester = requester_of(chain, machines)
    sampled = t.SamplingParams(temperature_micro=800_000, top_k=50, max_new_tokens=40, seed=7)
    requester.order([(p, greedy(12)) for p in PROMPTS] + [([9, 8, 7], sampled)])
    await requester.run_all(MATCHER)
    for index, prompt in enumerate(requester.batch.prompts):
        expected = reference(model_dir, prompt.ids, prompt.sampling, index)
        assert requester.tokens[index] == expected
        assert requester.finish[index] == ("stop" if expected[-1] == 258 else "length")
    check_receipts(model_dir, requester, list(range(5)))
    await requester.close()


async def test_stages_that_hash_in_c_sign_the_same(
    start: Start, chain: FakeChain, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "in_c", hashing.in_c)
    if not hashing.hash_in_c():
        pytest.skip("no compiler has made the hashing in C")
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6))])
    await requester.run_all(MATCHER)
    monkeypatch.setattr(hashing, "in_c", None)
    check_receipts(model_dir, requester, [0])
    await requester.close()


async def test_receipt_over_the_job_chains_and_equals_the_sum_of_requests(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(p, greedy(6)) for p in PROMPTS], matcher=MATCHER.address)
    await requester.run_all(MATCHER)
    peers = Peers(StreamIdentity(MATCHER, DOMAIN))
    closed = []
    for machine in machines:
        channel = await peers.get(machine.signer.address, machine.endpoint)
        done = (await channel.call(wire.Progress(order_hash=requester.order_hash))).message
        assert done == wire.Finished(requests=[0, 1, 2, 3])
        ask = wire.CloseJob(order_hash=requester.order_hash, requests=[3, 0, 1, 2])
        answer = (await channel.call(ask)).message
        assert isinstance(answer, wire.Receipt)
        again = (await channel.call(ask)).message
        assert again == answer, "one set of requests has one receipt"
        closed.append(answer.signed)
    assert closed[0].receipt.output_root == closed[1].receipt.input_root
    assert {r.receipt.requests for r in closed} == {4}
    assert {r.receipt.tokens_in for r in closed} == {sum(map(len, PROMPTS))}
    await peers.close()
    await requester.close()


async def test_rows_behind_a_receipt_are_kept_and_open_its_roots(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(5))])
    await requester.run_all(MATCHER)
    boundaries, besides = {}, {}
    for stage, channel in enumerate(requester.channels):
        leaf = requester.receipts[0][stage].leaves[0]
        tokens = commit.to_hex(commit.tokens_root(requester.tokens[0]))
        sides = {"in": leaf.in_root, "out": leaf.out_root}
        if stage == 1:  # its tokens and its state rows have one root
            (states,) = requester.receipts[0][1].states
            sides |= {"out": tokens, "states": states}
            roots = map(commit.unhex, (tokens, states))
            assert commit.to_hex(commit.answer_root(*roots)) == leaf.out_root
        for side, root in sides.items():
            frame = await channel.call(
                wire.FetchRows(
                    order_hash=requester.order_hash, request=0, side=side, start=0, count=1000
                )
            )
            assert isinstance(frame.message, wire.Rows)
            assert frame.message.rows == frame.message.total
            data = bytes(frame.payload)
            assert commit.to_hex(commit.rows_root(data, frame.message.row_bytes)) == root
            boundaries[stage, side] = data
            besides[stage, side] = frame.message.beside
    assert boundaries[0, "out"] == boundaries[1, "in"]
    assert {at: root for at, root in besides.items() if root} == {
        (1, "out"): states,
        (1, "states"): tokens,
    }
    exact = load_shard(model_dir, t.LayerRange(0, 4), reference=True)
    fed = torch.tensor([*PROMPTS[0], *requester.tokens[0][:-1]])
    rows = range(len(PROMPTS[0]) - 1, len(fed))
    found = reexecute(exact, fed, logit_rows=rows, states=True).rows.numpy()
    kept = np.frombuffer(boundaries[1, "states"], "<f4").reshape(found.shape)
    assert whitened_relative_l2(kept, found).rows.max() < 1e-5, "what its last layer gave"
    frame = await requester.channels[0].call(
        wire.FetchRows(order_hash=requester.order_hash, request=0, side="out", start=3, count=2)
    )
    row = 4 * machines[0].shard.hidden
    assert bytes(frame.payload) == boundaries[0, "out"][3 * row : 5 * row]
    opened = await requester.channels[0].call(
        wire.FetchOpening(order_hash=requester.order_hash, request=0)
    )
    assert isinstance(opened.message, wire.Opening)
    assert bytes(opened.payload) == commit.token_bytes(PROMPTS[0])
    await requester.close()


async def test_rows_inside_a_stage_are_kept_and_are_what_a_shallower_one_sends(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    """Of a stage of four layers with three boundaries inside, which draws, and shares prompts."""
    (machine,) = await start((0, 4))
    requester = requester_of(chain, [machine])
    long = list(range(60, 200))
    requester.order([(long, greedy(6)), (long, greedy(6)), (PROMPTS[0], greedy(20))])
    await requester.run_all(MATCHER)
    check_receipts(model_dir, requester, [0, 1, 2])
    hidden = machine.shard.hidden
    for index, prompt in enumerate(requester.batch.prompts):
        (signed,) = requester.receipts[index].values()
        fed = torch.tensor([*prompt.ids, *requester.tokens[index][:-1]])
        for number, root in enumerate(signed.inner[0]):
            frame = await requester.channels[0].call(
                wire.FetchRows(
                    order_hash=requester.order_hash,
                    request=index,
                    side=wire.inner_side(number),
                    start=0,
                    count=1000,
                )
            )
            assert commit.to_hex(commit.rows_root(frame.payload, 4 * hidden)) == root
            assert frame.message.beside is None
            exact = load_shard(model_dir, t.LayerRange(0, number + 1), reference=True)
            kept = np.frombuffer(frame.payload, "<f4").reshape(len(fed), hidden)
            off = whitened_relative_l2(kept, reexecute(exact, fed).numpy())
            assert off.rows.max() < 1e-5
        assert len(signed.inner[0]) == 3
    await requester.close()


async def test_many_requests_run_at_once_and_none_waits_for_another(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4), max_requests=4)
    requester = requester_of(chain, machines)
    requester.order([([i + 1, i + 2], greedy(8)) for i in range(12)])
    busiest = 0

    async def watch() -> None:
        nonlocal busiest
        while True:
            running = [
                run.request.phase == "running"
                for job in machines[0].table.jobs.values()
                for run in job.runs.values()
            ]
            busiest = max(busiest, sum(running))
            await asyncio.sleep(0.002)

    watcher = asyncio.create_task(watch())
    await requester.run_all(MATCHER)
    watcher.cancel()
    assert 2 <= busiest <= 4, "several run at once, and never more than the slots"
    for index, prompt in enumerate(requester.batch.prompts):
        assert requester.tokens[index] == reference(model_dir, prompt.ids, prompt.sampling, index)
    await requester.close()


async def test_two_jobs_of_two_requesters_share_the_same_stages(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    chain.prepaid[key(51).address] = 10**12
    first, second = requester_of(chain, machines), Requester(key(51), chain, machines)
    first.order([(PROMPTS[0], greedy(10)), (PROMPTS[1], greedy(10))])
    second.order([(PROMPTS[2], greedy(10))])
    await asyncio.gather(first.run_all(MATCHER), second.run_all(MATCHER))
    check_receipts(model_dir, first, [0, 1])
    check_receipts(model_dir, second, [0])
    await first.close()
    await second.close()


async def test_work_on_a_job_that_the_chain_does_not_show_is_refused(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(5))])
    (unknown,) = await requester.open()
    assert isinstance(unknown, wire.Failed)
    assert unknown.code == "E-JOB-UNKNOWN"
    await requester.propose(MATCHER)
    refused = (await requester.channels[0].call(requester.opening(0))).message
    assert isinstance(refused, wire.Failed)
    assert refused.code == "E-JOB-NOT-MATCHED"
    submitted = await requester.submit(0)
    assert [m.code for m in submitted if isinstance(m, wire.Failed)] == ["E-JOB-NOT-MATCHED"]
    await requester.close()


async def test_a_plan_on_chain_that_was_never_accepted_is_refused(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(5))])
    await requester.propose(MATCHER)
    requester.plan_hash = "0x" + "ee" * 32
    requester.match()
    (refused,) = await requester.open()
    assert isinstance(refused, wire.Failed)
    assert refused.code == "E-JOB-NOT-MATCHED"
    await requester.close()


async def test_accepted_work_goes_on_while_the_chain_is_down_and_new_work_is_refused(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6)), (PROMPTS[1], greedy(6))])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    await requester.submit(0)
    await requester.finished([0])
    chain.is_down = True
    assert all(isinstance(m, wire.Submitted) for m in await requester.submit(1))
    await requester.finished([1])
    other = requester_of(chain, machines)
    other.order([(PROMPTS[0], greedy(6))], nonce=2)
    for answer in await other.propose(MATCHER):
        assert isinstance(answer, wire.Failed)
        assert answer.code == "E-NET-01"
    chain.is_down = False
    assert all(isinstance(a, wire.Accepted) for a in await other.propose(MATCHER))
    await requester.close()


async def test_strangers_are_refused_at_every_door(start: Start, chain: FakeChain) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6))])
    await requester.run_all(MATCHER)
    stranger = StreamIdentity(key(66), DOMAIN)
    channel = await connect(machines[1].endpoint, stranger, expected=machines[1].signer.address)
    submit, prompt = requester.submission(0)
    order = requester.order_hash
    for message, payload in [
        (requester.opening(1), b""),
        (submit, prompt),
        (wire.Activations(order_hash=order, request=0, start=0, rows=1), bytes(256)),
        (wire.FinishRequest(order_hash=order, request=0, tokens_in=1, tokens_out=1), b""),
        (wire.Cancel(order_hash=order, request=0), b""),
        (wire.Stopped(order_hash=order, request=0), b""),
        (wire.Cut(order_hash=order, request=0, tokens_in=1, tokens_out=1), b""),
        (wire.Progress(order_hash=order), b""),
        (wire.CloseJob(order_hash=order, requests=[0]), b""),
        (wire.FetchOpening(order_hash=order, request=0), b""),
        (wire.FetchRows(order_hash=order, request=0, side="in", start=0, count=9), b""),
        (wire.FetchReceipts(order_hash=order), b""),
    ]:
        answer = (await channel.call(message, payload)).message
        assert isinstance(answer, wire.Failed), message
        assert answer.code == "E-PEER-AUTH", message
    assert machines[1].stage.counts["E-PEER-AUTH"] == 12
    assert isinstance((await channel.call(wire.Ping())).message, wire.Pong)
    await channel.close()
    await requester.close()


async def test_auditors_with_a_delegation_and_drawn_jurors_are_answered(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6))])
    await requester.run_all(MATCHER)
    auditor, juror = key(70), key(71)
    delegation = t.AuditorDelegation(
        order_hash=requester.order_hash, auditor=auditor.address, expiry=NOW_S + 10
    )
    signature = signing.sign(REQUESTER, DOMAIN, delegation)
    ask = wire.FetchReceipts(
        order_hash=requester.order_hash, delegation=delegation, delegation_signature=signature
    )
    peers = Peers(StreamIdentity(auditor, DOMAIN))
    channel = await peers.get(machines[0].signer.address, machines[0].endpoint)
    assert isinstance((await channel.call(ask)).message, wire.Receipts)
    await chain.clock.advance(20)
    expired = (await channel.call(ask)).message
    assert isinstance(expired, wire.Failed)

    jury = Peers(StreamIdentity(juror, DOMAIN))
    channel = await jury.get(machines[0].signer.address, machines[0].endpoint)
    rows = wire.FetchRows(order_hash=requester.order_hash, request=0, side="in", start=0, count=99)
    assert isinstance((await channel.call(rows)).message, wire.Failed)
    machines[0].store.put_dispute("0x" + "d1" * 32, requester.job_id, 0)
    chain.panels["0x" + "d1" * 32] = [juror.address]
    assert isinstance((await channel.call(rows)).message, wire.Rows)
    machines[0].store.close_dispute("0x" + "d1" * 32)
    assert isinstance((await channel.call(rows)).message, wire.Failed)
    await peers.close()
    await jury.close()
    await requester.close()


async def test_restarted_miner_answers_for_what_it_signed_and_signs_nothing_else(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(p, greedy(6)) for p in PROMPTS[:2]])
    await requester.run_all(MATCHER)
    before = requester.receipts[0][1]
    await requester.close()
    machine = machines[1]
    await machine.stop()
    chain.is_down = True
    await machine.start(t.LayerRange(2, 4))
    channel = await connect(machine.endpoint, requester.identity, expected=machine.signer.address)
    ask = wire.CloseJob(order_hash=requester.order_hash, requests=[0])
    assert (await channel.call(ask)).message == wire.Receipt(signed=before)
    both = (
        await channel.call(wire.CloseJob(order_hash=requester.order_hash, requests=[0, 1]))
    ).message
    assert isinstance(both, wire.Receipt)
    assert both.signed.leaves[0] == before.leaves[0]
    rows = wire.FetchRows(order_hash=requester.order_hash, request=0, side="in", start=0, count=9)
    assert isinstance((await channel.call(rows)).message, wire.Rows)
    submit, prompt = requester.submission(0)
    assert isinstance((await channel.call(submit, prompt)).message, wire.Submitted)
    assert machine.table.active_requests == 0, "a finished request is not computed again"
    await channel.close()


async def gone(machines: list[Machine], requester: Requester) -> None:
    """The requester has left, and every machine has noticed."""
    clients = [m.table.jobs[requester.order_hash].client for m in machines]
    await requester.close()
    await requester.until(lambda: not any(client and client.is_open for client in clients))
    for machine in machines:
        machine.stage.tick()


async def test_a_job_that_is_signed_for_leaves_memory_with_its_client_and_comes_back_with_it(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(p, greedy(6)) for p in PROMPTS[:2]])
    await requester.run_all(MATCHER)
    tokens, receipts = dict(requester.tokens), dict(requester.receipts)
    for machine in machines:
        machine.stage.tick()
        assert list(machine.table.jobs) == [requester.order_hash], "its client is here"
    await gone(machines, requester)
    assert not any(m.table.jobs for m in machines)
    assert {m.table.free_requests for m in machines} == {16}

    requester.tokens, requester.receipts = {}, {}
    for answer in await requester.open():
        assert isinstance(answer, wire.JobOpened) and answer.again
    await requester.finished([0, 1])
    await requester.until(lambda: requester.tokens == tokens)
    assert requester.receipts == receipts
    assert {m.table.free_requests for m in machines} == {16}, "nothing of it can start again"
    await gone(machines, requester)
    for answer in await requester.propose(MATCHER):
        assert isinstance(answer, wire.Failed), "this order was worked on"
        assert answer.code == "E-ADMIT-USED"


async def test_a_job_of_which_something_has_no_receipt_stays_in_memory(
    start: Start, chain: FakeChain
) -> None:
    machines, requester = await in_mid_answer(start, chain, (PROMPTS[1], greedy(6)))
    for channel in requester.channels:
        await channel.send(wire.Stopped(order_hash=requester.order_hash, request=0))
        await channel.send(wire.Cancel(order_hash=requester.order_hash, request=0))
    await requester.submit(1)
    await requester.until(lambda: len(requester.receipts.get(1, {})) == 2)
    await gone(machines, requester)
    for machine in machines:
        assert machine.table.jobs[requester.order_hash].over == {0: "cancelled"}
        assert machine.table.free_requests == 16


async def test_prompt_that_is_not_in_the_order_is_refused(start: Start, chain: FakeChain) -> None:
    machines = await start((0, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6)), (PROMPTS[1], greedy(6))])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    submit, prompt = requester.submission(0)
    other, _ = requester.submission(1)
    longer = t.SamplingParams(max_new_tokens=7)
    for message, payload in [
        (submit, commit.token_bytes([5, 6, 7])),
        (submit, prompt[:-1]),
        (wire.Submit(**{**_fields(submit), "request": 1}), prompt),
        (wire.Submit(**{**_fields(submit), "request": 2}), prompt),
        (wire.Submit(**{**_fields(submit), "salt": other.salt}), prompt),
        (wire.Submit(**{**_fields(submit), "sampling": longer}), prompt),
        (wire.Submit(**{**_fields(submit), "prompt_proof": []}), prompt),
    ]:
        answer = (await requester.channels[0].call(message, payload)).message
        assert isinstance(answer, wire.Failed)
        assert answer.code == "E-JOB-OPENING"
    assert isinstance((await requester.channels[0].call(submit, prompt)).message, wire.Submitted)
    assert isinstance((await requester.channels[0].call(submit, prompt)).message, wire.Submitted)
    await requester.finished([0])
    await requester.close()


async def test_a_submit_that_ended_with_its_stream_half_way_is_taken_up_by_the_next(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6))])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    first, held = machines[0], asyncio.Event()
    disk = first.book.disk

    async def slow(call: Any, *args: Any) -> Any:
        if call == first.store.put_opening:
            held.set()
            await asyncio.Event().wait()
        return await disk(call, *args)

    first.book.disk = slow  # type: ignore[method-assign]
    submitting = asyncio.create_task(requester.submit(0))
    await asyncio.wait_for(held.wait(), 30)
    first.book.disk = disk  # type: ignore[method-assign]
    first.reset()
    with pytest.raises(PeerUnreachable):
        await submitting
    await requester.close()
    opened = await requester.open()
    assert [message.again for message in opened if isinstance(message, wire.JobOpened)] == [
        True,
        True,
    ]
    await requester.submit(0)
    await requester.finished([0])
    await requester.close()


async def test_who_opens_a_job_again_is_told_all_before_the_answer_but_what_it_knows(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6)), (PROMPTS[1], greedy(6))])
    await requester.run_all(MATCHER)
    await requester.close()
    again = Requester(requester.signer, chain, machines)
    again.batch, again.signed, again.order_hash = (
        requester.batch,
        requester.signed,
        requester.order_hash,
    )
    again.plan, again.endpoints = requester.plan, requester.endpoints
    await again.connect()
    for stage, channel in enumerate(again.channels):
        opening = msgspec.structs.replace(again.opening(stage), known=[0])
        answer = (await channel.call(opening)).message
        assert isinstance(answer, wire.JobOpened) and answer.again
        assert again.receipts[1][stage] == requester.receipts[1][stage]
    assert again.tokens == {1: requester.tokens[1]} and list(again.receipts) == [1]
    await again.close()


async def test_orders_caps_and_the_context_bound_what_is_taken(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 4))
    requester = requester_of(chain, machines)
    requester.order(
        [(PROMPTS[0], greedy(6)), (PROMPTS[1], greedy(6)), ([1] * 500, greedy(13))],
        max_tokens_out=10,
        max_tokens_in=1000,
    )
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    (first,), (second,) = await requester.submit(0), await requester.submit(1)
    assert isinstance(first, wire.Submitted)
    assert isinstance(second, wire.Failed)
    assert second.code == "E-JOB-CAPS"
    machines[0].table.jobs[requester.order_hash].tokens_out = 0
    (third,) = await requester.submit(2)
    assert isinstance(third, wire.Failed)
    await requester.finished([0])
    await requester.close()


async def in_mid_answer(
    start: Start, chain: FakeChain, *others: tuple[list[int], t.SamplingParams]
) -> tuple[list[Machine], Requester]:
    """Two stages and a long answer of which a few tokens are here.

    The others were not asked for yet.
    """
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(400)), *others])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    await requester.submit(0)
    await requester.until(lambda: len(requester.tokens.get(0, [])) > 2)
    return machines, requester


@pytest.mark.parametrize("told", [(0, 1), (1,)], ids=["all are told", "only the last"])
async def test_cancelled_request_ends_with_its_next_token_and_is_signed_for(
    start: Start, chain: FakeChain, told: tuple[int, ...]
) -> None:
    machines, requester = await in_mid_answer(start, chain, (PROMPTS[1], greedy(6)))
    for stage in told:
        cancel = wire.Cancel(order_hash=requester.order_hash, request=0)
        await requester.channels[stage].send(cancel)
    await requester.submit(1)
    await requester.finished([0, 1])
    assert requester.finish == {0: "cancelled", 1: "length"}
    for signed in requester.receipts[0].values():
        assert signed.receipt.tokens_out == len(requester.tokens[0])
    await requester.until(lambda: all(m.table.active_requests == 0 for m in machines))
    await requester.until(lambda: all(m.compute.kv_tokens == 0 for m in machines))
    for machine in machines:
        job = machine.table.jobs[requester.order_hash]
        assert job.done == (job.tokens_in, job.tokens_out), "it counts against the order's caps"
        assert job.done[1] == len(requester.tokens[0]) + 6
    await requester.close()


async def test_a_request_that_its_requester_stops_is_kept_and_signed_for(
    start: Start, chain: FakeChain
) -> None:
    machines, requester = await in_mid_answer(start, chain)
    for channel in requester.channels:
        await channel.send(wire.Stopped(order_hash=requester.order_hash, request=0))
    runs = [run for m in machines for job in m.table.jobs.values() for run in job.runs.values()]
    await requester.until(lambda: all(run.request.phase is RequestPhase.STRANDED for run in runs))
    assert len(runs) == 2
    assert not requester.failures, "who said so needs not hear it"
    held = len(requester.tokens[0])
    for channel in requester.channels:
        ask = wire.Cut(requester.order_hash, 0, len(PROMPTS[0]), held)
        answer = (await channel.call(ask)).message
        assert isinstance(answer, wire.Receipt)
        assert answer.signed.receipt.tokens_out == held
    await requester.close()


async def test_dead_next_stage_fails_the_request_and_not_the_stage(
    start: Start, chain: FakeChain
) -> None:
    machines, requester = await in_mid_answer(start, chain)
    await machines[1].listener.close()
    await machines[1].peers.close()
    await requester.until(lambda: bool(requester.failures))
    assert requester.failures[0].code == "E-NET-03"
    assert machines[0].table.active_requests == 0
    assert not requester.receipts
    await requester.channels[0].close()


async def test_silent_requests_and_gone_clients_are_dropped(start: Start, chain: FakeChain) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6)), (PROMPTS[1], greedy(6))])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    submit, prompt = requester.submission(0)
    # Only the first stage hears of it, so the last one waits for ever.
    await requester.channels[0].call(submit, prompt)
    await requester.until(lambda: machines[1].table.active_requests == 1)
    for machine in machines:
        machine.offset_s = 61.0
        machine.stage.tick()
    await requester.until(lambda: len(requester.failures) == 2)
    assert {m.table.active_requests for m in machines} == {0}
    submit, prompt = requester.submission(1)
    await requester.channels[0].call(submit, prompt)
    await requester.close()
    theirs = [c for c in machines[0].listener.channels if c.peer == requester.signer.address]
    await requester.until(lambda: not any(c.is_open for c in theirs))
    machines[0].stage.tick()
    assert machines[0].table.active_requests == 1
    machines[0].offset_s += 16.0
    machines[0].stage.tick()
    assert machines[0].table.active_requests == 1, "its pipeline may end it yet"
    machines[0].offset_s += 15.0
    machines[0].stage.tick()
    assert machines[0].table.active_requests == 0


async def test_long_prompts_go_through_in_canonical_chunks(
    tmp_path: Path, chain: FakeChain
) -> None:
    model = write_tiny_model(tmp_path / "long", "llama", layers=2, context=1400)
    machines = []
    for number, (a, b) in enumerate([(0, 1), (1, 2)]):
        machines.append(Machine(key(100 + number), tmp_path, model, chain))
        await machines[-1].start(t.LayerRange(a, b))
    requester = requester_of(chain, machines)
    prompts = [[(7 * i + n) % 250 for i in range(n)] for n in (512, 513, 1100)]
    requester.order([(prompt, greedy(4)) for prompt in prompts])
    await requester.run_all(MATCHER)
    for index, prompt in enumerate(prompts):
        assert requester.tokens[index] == reference(model, prompt, greedy(4), index)
    check_receipts(model, requester, [0, 1, 2])
    await requester.close()
    for machine in machines:
        await machine.stop()


async def test_a_client_that_comes_back_gets_again_what_it_missed(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = requester_of(chain, machines)
    requester.order([(PROMPTS[0], greedy(6)), (PROMPTS[2], greedy(300))])
    await requester.propose(MATCHER)
    requester.match()
    await requester.open()
    await requester.submit(0)
    await requester.finished([0])
    await requester.submit(1)
    await requester.until(lambda: len(requester.tokens.get(1, [])) > 3)
    await requester.close()
    seen = {index: list(tokens) for index, tokens in requester.tokens.items()}
    requester.tokens, requester.receipts = {}, {}
    assert all(isinstance(answer, wire.JobOpened) for answer in await requester.open())
    await requester.finished([0, 1])
    assert requester.tokens[0] == seen[0]
    assert requester.tokens[1][: len(seen[1])] == seen[1]
    for index in (0, 1):
        prompt = requester.batch.prompts[index]
        assert requester.tokens[index] == reference(model_dir, prompt.ids, prompt.sampling, index)
    await requester.close()


async def test_settled_jobs_give_their_slots_back(start: Start, chain: FakeChain) -> None:
    machines = await start((0, 4), max_requests=1)
    requester = requester_of(chain, machines)
    requester.order([(p, greedy(6)) for p in PROMPTS[:3]])
    (accepted,) = await requester.propose(MATCHER)
    assert isinstance(accepted, wire.Accepted)
    requester.match()
    other = requester_of(chain, machines)
    other.order([(PROMPTS[0], greedy(6))], nonce=2)
    (refused,) = await other.propose(MATCHER)
    assert isinstance(refused, wire.Failed)
    assert refused.code == "E-ADMIT-SLOTS"
    await machines[0].table.hear(JobNews(requester.job_id, JobState.SETTLED))
    machines[0].stage.tick()
    (accepted,) = await other.propose(MATCHER)
    assert isinstance(accepted, wire.Accepted)


def _fields(message: wire.Submit) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}
