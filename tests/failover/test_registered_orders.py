"""An order that its requester opens on chain is served like any other, or its money comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client.jobs import registering
from client.orders.orders import PromptBatch, make_order
from client.pipeline.pipeline import Match
from core.money import pricing
from core.protocol import signing
from core.protocol import types as t
from core.protocol.errors import MatcherUnreachable, NoCapacity, TokenShort
from core.protocol.types import REGISTERED, JobState, SignedOrder
from core.protocol.units import NANO
from tests.failover.clerks import Clerk, matchers_of, policy_of, time_passes, tokens_paid
from tests.town.chain import PREPAID
from tests.town.orders import DOMAIN, REQUESTER
from tests.town.proposing import propose
from tests.town.town import Town, Watch, prompts

CUTS = ((0, 2), (2, 4), (4, 6))
LINES, TOKENS = 3, 8


class Watching(Clerk):
    """A matcher that nobody hands an order in: it looks for its own on chain."""

    async def open_job(self, *handed_in: Any) -> Any:
        raise AssertionError("the requester said nothing to it")

    async def miners(self) -> list[dict[str, Any]]:
        await self._at("miners")
        return [{"operator": m.signer.address, "endpoint": m.endpoint} for m in self._town.machines]

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                for job in list(self._town.chain.jobs.values()):
                    order = job.order if job.state is JobState.OPEN else None
                    if order is not None and order.matcher == self.address:
                        await self._match(order)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            ended = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended[0], asyncio.CancelledError), ended

    async def _match(self, order: t.Order) -> None:
        town, signed = self._town, SignedOrder(order, REGISTERED)
        plan = town._route(set(), None)
        stages = tuple(t.Stage(m.signer.address, m.layers.start, m.layers.end) for m in plan)
        endpoints = tuple(m.endpoint for m in plan)
        _, silent = await propose(town.peers_of(self.signer), signed, stages, endpoints)
        assert not silent
        await town._send("matchJob", order, stages)
        town.matches.append(
            Match(signing.job_id(DOMAIN, order), signed, stages, endpoints, t.ZERO_HASH)
        )


def paying_from_the_wallet(town: Town, units: int = PREPAID) -> None:
    town.chain.prepaid[REQUESTER.address] = 0
    town.chain.usd[REQUESTER.address] = units


def total_nano(town: Town) -> int:
    return town.prepaid + town.chain.usd[REQUESTER.address] * NANO


async def test_a_registered_order_is_served_and_paid_without_a_word_to_its_matcher(
    town: Town,
) -> None:
    await town.start(*CUTS)
    clerk, watch = Watching(town, 0), Watch()
    paying_from_the_wallet(town)
    asked = prompts(LINES, tokens=TOKENS)
    async with clerk.at_work():
        policy = policy_of(matchers_of(clerk)) | {"registers": True}
        result = await town.begin(asked, watch, **policy)
    assert not result.unfinished
    for index, prompt in enumerate(asked):
        assert watch.tokens[prompt.custom_id] == town.expected(prompt, index)
    called = [function for _, function, *_ in town.chain.sent]
    assert called == ["approve", "open", "matchJob", "settleAck"]
    (match,) = town.matches
    job = town.chain.jobs[match.job_id]
    due = pricing.split(match.signed.order, match.plan, town.spec, job.tokens_in, job.tokens_out)
    assert sum(tokens_paid(town).values()) == sum(len(said) for said in watch.tokens.values())
    assert total_nano(town) == PREPAID * NANO - (due.locked - due.refund)


async def test_one_that_nobody_takes_comes_back_whole(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "WAIT_S", 0)
    clerk = Watching(town, 0)
    paying_from_the_wallet(town)
    policy = policy_of(matchers_of(clerk)) | {"registers": True}
    with pytest.raises(NoCapacity, match="no matcher took the order"):
        await town.begin(prompts(1), Watch(), **policy)
    assert [function for _, function, *_ in town.chain.sent] == ["approve", "open", "cancel"]
    assert total_nano(town) == PREPAID * NANO
    assert not town.store.orders()


async def test_another_matcher_gets_an_order_of_its_own_where_the_first_does_not_come(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "WAIT_S", 1)
    await town.start(*CUTS)
    first, second, watch = Watching(town, 0), Watching(town, 1), Watch()
    paying_from_the_wallet(town)
    async with second.at_work():
        policy = policy_of(matchers_of(first, second)) | {"registers": True}
        result = await town.begin(prompts(LINES, tokens=TOKENS), watch, **policy)
    assert not result.unfinished
    assert [match.signed.order.matcher for match in watch.opened] == [second.address]
    states = sorted(job.state.name for job in town.chain.jobs.values())
    assert states == ["CANCELLED", "SETTLED"]


async def test_a_wallet_without_the_tokens_opens_nothing(town: Town) -> None:
    clerk = Watching(town, 0)
    paying_from_the_wallet(town, 1)
    policy = policy_of(matchers_of(clerk)) | {"registers": True}
    with pytest.raises(TokenShort, match="the order cannot be opened"):
        await town.begin(prompts(1), Watch(), **policy)
    assert town.chain.sent == [] and not town.store.orders()


async def test_a_matcher_that_took_it_and_does_not_answer_costs_no_second_payment(
    town: Town,
) -> None:
    """Nobody says where the machines are: the job is left, its lock returns, nothing is paid."""
    await town.start(*CUTS)
    clerk = Watching(town, 0)
    clerk.fails = ("miners", "killed")
    paying_from_the_wallet(town)
    async with clerk.at_work():
        policy = policy_of(matchers_of(clerk)) | {"registers": True}
        with pytest.raises(MatcherUnreachable):
            await town.begin(prompts(1), Watch(), **policy)
    (left,) = town.store.orders()
    assert left.submission == ""
    await time_passes(town)
    assert set(tokens_paid(town).values()) == {0}
    assert not town.chain.earned


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_stage_takes_an_order_without_signature_only_while_it_waits_on_chain(
    town: Town, is_there: bool
) -> None:
    """Else machines would hold slots for money that is not there."""
    await town.start(*CUTS)
    clerk = Watching(town, 0)
    paying_from_the_wallet(town)
    terms = policy_of(matchers_of(clerk))["terms_of"](await town.chain.now())
    batch = PromptBatch.of(prompts(1))
    model = signing.model_id(town.spec), town.spec
    order = make_order(batch, *model, terms, REQUESTER.address, 5)
    if is_there:
        await town.chain.transact(REQUESTER, "TaskRegistry", "open", order)
        await clerk._match(order)
        with pytest.raises(RuntimeError, match="refused"):  # matched: it waits no more
            await clerk._match(order)
        return
    with pytest.raises(RuntimeError, match="not signed by"):
        await clerk._match(order)
