"""A stage takes requests of an open order one by one: each signed for, paid for before too many
more, and counted.
"""

from __future__ import annotations

import asyncio
import random
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.orders.orders import Allowance, OrderTerms, Prompt, make_open_order, opening_of
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.runtime.network.channel import Peers, StreamIdentity
from miner.chain import admission
from miner.chain.onchain import ClosingNews
from miner.serving.job_table import CAPS, NOT_PAID, UNPAID
from miner.serving.stage import OPENING, REQUEST_OVER, UNAUTHORISED
from tests.core.protocol.test_wire import MESSAGES
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import greedy, reference
from tests.town.orders import ARBITRATOR, DOMAIN, NOW_S, key
from tests.town.requester import Requester

MATCHER, REQUESTER, SPENDER = key(40), key(50), key(51)


class Asker(Requester):
    """A requester of single requests under an open order.

    `signer` may be a spender of `account`.
    """

    acked: t.Ack | None = None

    def open_order(
        self,
        *,
        terms: t.Terms | None = None,
        account: str = "",
        requests: int = 8,
        tokens_in: int = 200,
        tokens_out: int = 100,
        **changes: Any,
    ) -> None:
        spec = self.machines[0].terms.spec
        self.terms = terms or t.Terms.of(2)
        order = make_open_order(
            Allowance(requests, tokens_in, tokens_out),
            signing.model_id(spec),
            spec,
            OrderTerms(
                price_in=10**9,
                price_out=10**9,
                matcher=t.ZERO_ADDRESS,
                matcher_fee_bps=0,
                opening_fee=0,
                min_stake=0,
                deadline=NOW_S + 600,
                window=60,
                auditor=t.ZERO_ADDRESS,
                arbitrator=ARBITRATOR,
                demands=self.terms,
            ),
            account or self.signer.address,
            1,
        )
        order = msgspec.structs.replace(order, **changes)
        signature = signing.sign(self.signer, DOMAIN, order)
        self.signed = t.SignedOrder(order, signature, self.terms)
        self.order_hash = signing.order_hash(order)
        self.job_id = signing.job_id(DOMAIN, order)
        self.plan = [t.Stage(m.signer.address, m.layers.start, m.layers.end) for m in self.machines]
        self.plan_hash = signing.plan_hash(self.plan)
        self.endpoints = [m.endpoint for m in self.machines]
        self.prompts: dict[int, Prompt] = {}

    def prompt(self, index: int, ids: tuple[int, ...] = (5, 6, 7), new: int = 4) -> None:
        self.prompts[index] = Prompt(str(index), ids, greedy(new), bytes([index]) * 32)

    def submission(self, index: int) -> tuple[wire.Submit, bytes]:
        prompt = self.prompts[index]
        opening = opening_of(self.order_hash, index, prompt)
        message = wire.Submit(
            self.order_hash,
            index,
            commit.to_hex(prompt.salt),
            [],
            prompt.sampling,
            [],
            t.SignedOpening(opening, signing.sign(self.signer, DOMAIN, opening)),
        )
        return message, commit.token_bytes(prompt.ids)

    async def begin(self) -> None:
        for answer in await self.propose(MATCHER):
            assert isinstance(answer, wire.Accepted), answer
        self.match()
        for answer in await self.open():
            assert isinstance(answer, wire.JobOpened), answer

    async def ask(self, index: int, **prompt: Any) -> list[wire.AnyMessage]:
        self.prompt(index, **prompt)
        return await self.submit(index)

    def ack(self, tokens_in: int, tokens_out: int) -> wire.Acknowledge:
        ack = t.Ack(self.order_hash, self.plan_hash, t.ZERO_HASH, tokens_in, tokens_out)
        return wire.Acknowledge(ack, signing.sign(self.signer, DOMAIN, ack))

    async def acknowledge(self, tokens_in: int, tokens_out: int) -> None:
        for channel in self.channels:
            await channel.send(self.ack(tokens_in, tokens_out))


def codes(answers: list[wire.AnyMessage]) -> list[str]:
    return [a.code if isinstance(a, wire.Failed) else "" for a in answers]


@pytest.fixture
async def asker(start: Start, chain: FakeChain) -> Asker:
    asker = Asker(REQUESTER, chain, await start((0, 2), (2, 4)))
    asker.open_order()
    return asker


async def test_requests_begin_one_by_one_and_answer_as_ever(asker: Asker, model_dir: Path) -> None:
    await asker.begin()
    for index, ids in enumerate([(5, 6, 7), (65,), tuple(range(60, 90))]):
        assert codes(await asker.ask(index, ids=ids)) == ["", ""]
        await asker.finished([index])
        assert asker.tokens[index] == reference(model_dir, ids, greedy(4), index)
        done = sum(len(p.ids) for p in asker.prompts.values()), sum(map(len, asker.tokens.values()))
        await asker.acknowledge(*done)
    for machine in asker.machines:
        job = machine.table.jobs[asker.order_hash]
        assert (job.tokens_in, job.tokens_out) == job.done == done  # what was promised is released
        async with asyncio.timeout(30):
            while machine.store.ack(asker.order_hash, asker.plan_hash)[0].tokens_in != done[0]:
                await asyncio.sleep(0.02)
        assert job.acked == done
    await asker.close()


async def test_a_prompt_that_no_request_can_have_is_not_even_hashed(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asker.begin()
    asker.prompt(0)
    message, _ = asker.submission(0)
    hashed = list[int]()
    monkeypatch.setattr(commit, "prompt_leaf", lambda index, *rest: hashed.append(index))
    answer = (await asker.channels[0].call(message, bytes(2**20))).message
    assert isinstance(answer, wire.Failed)
    assert (answer.code, hashed) == ("E-CONTEXT-01", [])
    await asker.close()


async def test_a_stage_stops_at_what_it_lets_go_unpaid_and_goes_on_when_it_is_paid(
    asker: Asker,
) -> None:
    asker.open_order(requests=32, tokens_in=3000, tokens_out=3000)
    await asker.begin()
    jobs = [machine.table.jobs[asker.order_hash] for machine in asker.machines]
    first, credit = jobs[0], jobs[0].credit
    assert 128 <= credit < 300 and {job.credit for job in jobs} == {credit}
    for index in range(5):
        assert codes(await asker.ask(index, ids=tuple(range(60, 100)), new=40)) == ["", ""]
    waits = 0
    while len(first.finished) < 5:
        is_held = [run.is_held for run in first.runs.values() if run.request.phase == "running"]
        if not all(is_held) or not first.runs:
            await asyncio.sleep(0.01)
            continue
        waits += 1
        assert all(job.unacknowledged <= credit + 8 for job in jobs), "8 guesses at most"
        came = sum(len(tokens) for tokens in asker.tokens.values())
        begun = 40 * sum(1 for index in range(5) if index in asker.tokens)
        assert begun + came > credit + sum(first.acked) - 80
        await asker.acknowledge(begun + 40, came)
        await asker.until(lambda: first.acked == (begun + 40, came))  # noqa: B023
    assert waits >= 2
    await asker.finished(range(5))
    await asker.close()


async def test_a_request_that_waits_too_long_for_an_acknowledgement_is_let_go(
    asker: Asker,
) -> None:
    asker.open_order(requests=32, tokens_in=3000, tokens_out=3000)
    await asker.begin()
    jobs = [machine.table.jobs[asker.order_hash] for machine in asker.machines]
    assert codes(await asker.ask(0, new=400)) == ["", ""]
    (run,) = jobs[0].runs.values()
    await asker.until(lambda: run.is_held)
    assert all(jobs[0].credit <= job.unacknowledged <= jobs[0].credit + 8 for job in jobs)
    (refused, _) = await asker.ask(1, ids=tuple(range(60, 100)), new=4)
    assert refused == wire.Submitted()
    asker.machines[0].offset_s = 16.0
    asker.machines[0].stage.tick()
    await asker.until(lambda: bool(asker.failures))
    assert "not acknowledged" in asker.failures[0].reason
    for channel in asker.channels:
        await channel.call(wire.Cut(asker.order_hash, 0, 3, len(asker.tokens[0])))
    assert all(job.unacknowledged >= job.credit - 16 for job in jobs), "an end pays nothing"
    await asker.acknowledge(3, len(asker.tokens[0]))
    await asker.finished([1])
    await asker.close()


async def test_a_later_stage_does_no_more_than_twice_the_credit(asker: Asker) -> None:
    """Its requester and the stage before it work together."""
    asker.open_order(requests=8, tokens_in=3000, tokens_out=3000)
    await asker.begin()
    machine = asker.machines[1]
    job, row = machine.table.jobs[asker.order_hash], b"\0" * 4 * machine.shard.hidden
    channel = await Peers(StreamIdentity(asker.machines[0].signer, DOMAIN)).get(
        machine.signer.address, machine.endpoint
    )
    asker.prompt(0, ids=tuple(range(1, 250)) * 2, new=4)
    for start in range(0, 2 * job.credit + 8, 8):
        await channel.send(wire.Activations(asker.order_hash, 0, start, 8), row * 8)
    await asker.until(lambda: machine.stage.counts[UNPAID] > 0)
    assert job.unacknowledged <= 2 * job.credit
    await channel.close()
    await asker.close()


async def test_an_index_is_opened_once_and_by_the_requester_only(
    asker: Asker, chain: FakeChain
) -> None:
    await asker.begin()
    assert codes(await asker.ask(0)) == ["", ""]
    await asker.finished([0])
    assert codes(await asker.submit(0)) == ["", ""]  # the same again is told again
    assert codes(await asker.ask(0, ids=(9, 9))) == [OPENING, OPENING]
    asker.prompt(1)
    message, payload = asker.submission(1)
    assert message.opening is not None
    forged = signing.sign(key(99), DOMAIN, message.opening.opening)
    for wrong in (
        msgspec.structs.replace(message, opening=None),
        msgspec.structs.replace(message, opening=t.SignedOpening(message.opening.opening, forged)),
        msgspec.structs.replace(message, prompt_proof=[t.ZERO_HASH]),
        msgspec.structs.replace(message, salt=t.ZERO_HASH),
        msgspec.structs.replace(message, request=2),
    ):
        answer = (await asker.channels[0].call(wrong, payload)).message
        assert isinstance(answer, wire.Failed) and answer.code == OPENING, wrong
    assert codes(await asker.submit(1)) == ["", ""]
    await asker.close()


async def test_another_prompt_under_an_old_index_is_refused_after_a_restart_too(
    asker: Asker,
) -> None:
    await asker.begin()
    await asker.ask(0)
    await asker.finished([0])
    for machine in asker.machines:
        machine.table.jobs.clear()
    assert codes(await asker.ask(0, ids=(9, 9))) == [OPENING, OPENING]
    await asker.close()


async def test_the_caps_hold_for_what_is_promised_and_release_what_was_not_used(
    asker: Asker,
) -> None:
    await asker.begin()
    refused = await asker.ask(0, new=101)
    assert codes(refused)[0] == CAPS
    jobs = [machine.table.jobs[asker.order_hash] for machine in asker.machines]
    with asker.machines[1].held(1, lambda key: None):
        assert codes(await asker.ask(1, new=90)) == ["", ""]
        assert codes(await asker.ask(2, new=90))[0] == CAPS
        for channel in asker.channels:
            await channel.send(wire.Cancel(asker.order_hash, 1))
        await asker.until(lambda: jobs[1].runs[1].is_unwanted)
    await asker.until(lambda: all(job.tokens_out < 90 for job in jobs))
    assert codes(await asker.submit(2)) == ["", ""]
    await asker.close()


async def test_acknowledgements_only_grow_and_come_from_the_requester(
    asker: Asker, chain: FakeChain
) -> None:
    await asker.begin()
    await asker.acknowledge(3, 4)
    await asker.acknowledge(2, 4)  # an older one that comes late
    for wrong in (
        wire.Acknowledge(
            t.Ack(asker.order_hash, asker.plan_hash, t.ZERO_HASH, 50, 50), "0x" + "1b" * 65
        ),
        wire.Acknowledge(
            t.Ack(asker.order_hash, t.ZERO_HASH, t.ZERO_HASH, 50, 50), "0x" + "1b" * 65
        ),
        asker.ack(201, 4),
    ):
        answer = await asker.machines[0].stage.handle(asker.channels[0], _frame(wrong, asker))
        assert isinstance(answer, wire.Failed) and answer.code in (NOT_PAID, UNAUTHORISED)
    async with asyncio.timeout(30):
        while (kept := asker.machines[0].store.ack(asker.order_hash, asker.plan_hash)) is None:
            await asyncio.sleep(0.02)
    assert (kept[0].tokens_in, kept[0].tokens_out) == (3, 4)
    assert asker.machines[0].table.jobs[asker.order_hash].acked == (3, 4)
    await asker.close()


def _frame(message: wire.AnyMessage, asker: Asker) -> wire.Frame:
    return wire.Frame(message, memoryview(b""))


async def test_an_ended_session_begins_nothing_and_frees_its_slots(asker: Asker) -> None:
    await asker.begin()
    first = asker.machines[0]
    assert first.table.jobs[asker.order_hash].reserved == 1
    for channel in asker.channels:
        await channel.send(wire.EndJob(asker.order_hash))
    answers = await asker.ask(0)
    assert codes(answers)[0] == REQUEST_OVER
    first.stage.tick()
    assert first.table.free_requests == first.terms.max_requests
    await asker.close()


async def test_a_session_closed_on_chain_begins_nothing(asker: Asker) -> None:
    await asker.begin()
    for machine in asker.machines:
        await machine.table.hear(ClosingNews(asker.job_id))
    assert codes(await asker.ask(0))[0] == REQUEST_OVER
    await asker.close()


async def test_a_draining_stage_begins_nothing_and_does_not_wait_for_a_session(
    asker: Asker,
) -> None:
    await asker.begin()
    asker.machines[1].table.is_draining = True
    assert codes(await asker.ask(0))[0] == admission.DRAINING
    assert asker.machines[1].table.is_idle
    await asker.close()


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        (t.Terms.of(2, avoided=[key(101).address]), admission.TERMS),
        (t.Terms.of(2, trusted=[key(100).address]), admission.TERMS),
        (t.Terms.of(2, trusted=[key(100).address, key(101).address]), ""),
    ],
)
async def test_a_plan_against_the_terms_is_refused_by_every_stage(
    start: Start, chain: FakeChain, terms: t.Terms, code: str
) -> None:
    asker = Asker(REQUESTER, chain, await start((0, 2), (2, 4)))
    asker.open_order(terms=terms)
    assert codes(await asker.propose(MATCHER)) == [code, code]


async def test_terms_that_the_order_was_not_signed_with_are_refused(
    start: Start, chain: FakeChain
) -> None:
    asker = Asker(REQUESTER, chain, await start((0, 4)))
    asker.open_order(terms_hash=signing.terms_hash(t.Terms.of(3)))
    assert codes(await asker.propose(MATCHER)) == [admission.TERMS]
    asker.open_order(terms_hash=t.ZERO_HASH)
    asker.signed = t.SignedOrder(asker.signed.order, asker.signed.signature)
    assert codes(await asker.propose(MATCHER)) == [admission.TERMS]  # an open order needs some


async def test_a_spender_asks_in_the_requesters_name_and_only_while_it_may(
    start: Start, chain: FakeChain, model_dir: Path
) -> None:
    asker = Asker(SPENDER, chain, await start((0, 2), (2, 4)))
    asker.open_order(account=REQUESTER.address)
    assert codes(await asker.propose(MATCHER)) == [admission.SIGNATURE] * 2
    chain.spenders[REQUESTER.address, SPENDER.address] = {"limit": 1, "expiry": NOW_S + 600}
    await asker.begin()
    assert codes(await asker.ask(0)) == ["", ""]
    await asker.finished([0])
    assert asker.tokens[0] == reference(model_dir, (5, 6, 7), greedy(4), 0)
    await asker.acknowledge(3, len(asker.tokens[0]))
    answer = (await asker.channels[0].call(wire.FetchReceipts(asker.order_hash))).message
    assert isinstance(answer, wire.Receipts) and len(answer.signed) == 1
    opened = await asker.channels[0].call(wire.FetchOpening(asker.order_hash, 0))
    assert isinstance(opened.message, wire.Opening)
    assert opened.message.opening == asker.submission(0)[0].opening
    await asker.close()


async def test_a_job_that_another_key_opened_is_not_worked_for(
    start: Start, chain: FakeChain
) -> None:
    """A spender's signature is taken, the requester opens by its own: the spender's
    acknowledgements would be worth nothing on chain.
    """
    asker = Asker(SPENDER, chain, await start((0, 2), (2, 4)))
    asker.open_order(account=REQUESTER.address)
    chain.spenders[REQUESTER.address, SPENDER.address] = {"limit": 1, "expiry": NOW_S + 600}
    for answer in await asker.propose(MATCHER):
        assert isinstance(answer, wire.Accepted), answer
    chain.match(asker.signed.order, asker.plan, asker.job_id, opener=REQUESTER.address)
    assert codes(await asker.open()) == ["E-JOB-NOT-MATCHED"] * 2
    await asker.close()


async def test_only_the_requester_says_what_a_request_goes_on_with(asker: Asker) -> None:
    await asker.begin()
    message = wire.GoesOn(asker.order_hash, 1, t.ZERO_HASH, 0)
    assert isinstance((await asker.channels[0].call(message)).message, wire.Submitted)
    peers = Peers(StreamIdentity(key(101), DOMAIN))
    stranger = await peers.get(asker.machines[0].signer.address, asker.machines[0].endpoint)
    answer = (await stranger.call(message)).message
    assert isinstance(answer, wire.Failed) and answer.code == UNAUTHORISED
    await peers.close()
    await asker.close()


async def test_whatever_is_said_about_a_session_a_stage_answers_or_counts_and_lives(
    asker: Asker, model_dir: Path
) -> None:
    """The new messages with every field bent, from the requester and from a stranger."""
    await asker.begin()
    rng, stage = random.Random(7), asker.machines[0].stage
    asker.prompt(0)
    valid, payload = asker.submission(0)
    said = [
        *(
            m
            for m in MESSAGES
            if isinstance(m, wire.Submit | wire.GoesOn | wire.Acknowledge | wire.EndJob)
        ),
        valid,
        asker.ack(3, 4),
        wire.GoesOn(asker.order_hash, 0, asker.order_hash, 0),  # goes on with itself
    ]
    peers = Peers(StreamIdentity(key(102), DOMAIN))
    stranger = await peers.get(asker.machines[0].signer.address, asker.machines[0].endpoint)
    for _ in range(300):
        message = _bent(rng.choice(said), asker, rng)
        body = rng.choice([payload, b"", b"\xff" * 7, bytes(4 * rng.randrange(40))])
        channel = rng.choice([asker.channels[0], stranger])
        answer = await stage.handle(_From(channel), wire.Frame(message, memoryview(body)))
        assert answer is None or isinstance(answer, wire.Failed | wire.Submitted), message
    job = asker.machines[0].table.jobs[asker.order_hash]
    assert job.tokens_in <= job.order.max_tokens_in and job.tokens_out <= job.order.max_tokens_out
    assert job.acked <= (200, 100)
    await peers.close()
    await asker.close()


class _From:
    """A channel as its other end sees it: the peer is who opened it."""

    def __init__(self, channel: Any) -> None:
        self.peer = REQUESTER.address if channel.peer == key(100).address else key(102).address
        self.is_open = True


def _bent(message: Any, asker: Asker, rng: random.Random) -> Any:
    values = {name: getattr(message, name) for name in message.__struct_fields__}
    name = rng.choice(list(values))
    hints = typing.get_type_hints(type(message))
    old = values[name]
    choices: list[Any] = [old]
    if isinstance(old, str) and len(old) == 66:
        choices = [asker.order_hash, asker.plan_hash, t.ZERO_HASH]
    elif isinstance(old, int):
        choices = [0, 1, 7, 8, 2**32 - 1]
    elif isinstance(old, list):
        choices = [[], [t.ZERO_HASH] * 32]
    elif hints[name] == t.SignedOpening | None:
        choices = [None, asker.submission(0)[0].opening]
    elif isinstance(old, t.Ack):
        choices = [asker.ack(rng.randrange(300), rng.randrange(200)).ack]
    values[name] = rng.choice(choices)
    if "order_hash" in values and rng.random() < 0.8:
        values["order_hash"] = asker.order_hash
    return type(message)(**values)
