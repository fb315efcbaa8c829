"""A request is answered token by token, and whoever stops listening stops the work and pays for what came."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.answering import Answered, Ask, AskTerms, OrderEach, Said
from client.context import Context, Model
from client.matcher_api import Quote
from client.orders import Prompt
from client.store import ClientStore
from core.protocol import pricing, signing
from core.protocol import types as t
from core.protocol.errors import HeadraceError, NoCapacity
from core.runtime.folders import Folders
from core.runtime.settings import load
from devnet.tiny_models import write_tiny_tokenizer
from tests.client.conftest import MakeStages
from tests.client.test_jobs import FakeMatcher, batches
from tests.client.world import (
    DOMAIN,
    MODEL_ID,
    REQUESTER,
    SPEC,
    FakeChain,
    Stages,
    answer_of,
    key,
    prompts,
    serve,
)

MODEL = Model("tiny", MODEL_ID, SPEC)


class Matcher(FakeMatcher):
    async def quote(self, model_id: str, tokens_in: int, tokens_out: int) -> Quote:
        return Quote(10**9, 2 * 10**9, [], key(40).address, 0)

    async def close(self) -> None: ...


class Chain(FakeChain):
    async def read(self, contract: str, function: str, *args: Any, block: int | None = None) -> Any:
        if function == "params":
            return {"maxJobSeconds": 7200, "maxWindowSeconds": 3600}
        return await super().read(contract, function, *args, block=block)


class World(Context):
    """A context whose matcher is scripted."""

    def __init__(self, tmp_path: Path, offers: list[Stages | HeadraceError]) -> None:
        os.environ.pop("HEADRACE_CONFIG", None)
        settings = load(environ={}, folders=Folders.at(tmp_path))
        super().__init__(settings, Chain())  # type: ignore[arg-type]
        folder = tmp_path / "cache" / "models" / "tiny"
        object.__setattr__(self, "scripted", Matcher(self.chain, offers))  # type: ignore[arg-type]
        object.__setattr__(self, "records", ClientStore(tmp_path / "client.sqlite"))
        folder.mkdir(parents=True, exist_ok=True)

    def matcher(self) -> Any:
        return self.scripted  # type: ignore[attr-defined]

    def store(self) -> ClientStore:
        return self.records  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(autouse=True)
def remember(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scripted stages know the prompts of an order; the tiny tokenizer stands for the model's."""
    from client import jobs

    whole = jobs.make_order

    def make_order(batch: Any, *args: Any, **more: Any) -> t.Order:
        order = whole(batch, *args, **more)
        batches[order.input_root] = batch
        return order

    monkeypatch.setattr(jobs, "make_order", make_order)
    (tmp_path / "tokenizer").mkdir()
    write_tiny_tokenizer(tmp_path / "tokenizer")
    monkeypatch.setattr(Model, "folder", lambda model, settings: tmp_path / "tokenizer")


async def world(tmp_path: Path, *offers: Stages | HeadraceError) -> tuple[World, OrderEach]:
    context = World(tmp_path, list(offers))
    return context, OrderEach(context, REQUESTER)


def ask(prompt: Prompt, **terms: Any) -> Ask:
    return Ask("req-1", MODEL, prompt, AskTerms(**terms))


async def all_of(items: AsyncIterator[Said | Answered]) -> list[Said | Answered]:
    return [item async for item in items]


async def test_tokens_come_in_order_and_the_last_item_says_what_they_cost(
    tmp_path: Path, stages: Stages
) -> None:
    context, answerer = await world(tmp_path, stages)
    (prompt,) = prompts(1)
    items = await all_of(answerer.answer(ask(prompt)))
    expected = answer_of(prompt).tokens
    assert [(i.step, i.token) for i in items if isinstance(i, Said)] == list(enumerate(expected))
    (match,) = [stages.match(stages.batch, stages.signed)]  # type: ignore[arg-type]
    gross = pricing.split(match.signed.order, match.plan, SPEC, len(prompt.ids), 4).gross
    assert items[-1] == Answered(
        match.job_id,
        0,
        tuple(s.operator for s in match.plan),
        len(prompt.ids),
        4,
        "length",
        sum(gross),
        False,
    )
    await answerer.close()
    ((job_id, ack),) = context.matcher().acks
    assert job_id == match.job_id and (ack.tokens_in, ack.tokens_out) == (len(prompt.ids), 4)


async def test_no_capacity_raises_and_costs_nothing(tmp_path: Path) -> None:
    context, answerer = await world(tmp_path, NoCapacity("no pipeline", "nobody"))
    with pytest.raises(NoCapacity) as raised:
        await all_of(answerer.answer(ask(prompts(1)[0])))
    assert "answered" not in raised.value.details
    await answerer.close()
    assert not context.matcher().acks


async def test_a_price_above_the_cap_is_refused_before_anything_is_signed(
    tmp_path: Path, stages: Stages
) -> None:
    context, answerer = await world(tmp_path, stages)
    with pytest.raises(NoCapacity):
        await all_of(answerer.answer(ask(prompts(1)[0], cap_out=1)))
    await answerer.close()
    assert not context.matcher().orders


async def test_who_stops_listening_pays_for_what_came_and_no_more(
    tmp_path: Path, stages: Stages
) -> None:
    async def two_tokens(stages: Stages, index: int) -> None:
        await stages.tokens(index, 2)
        await asyncio.Event().wait()

    stages.script = two_tokens
    context, answerer = await world(tmp_path, stages)
    (prompt,) = prompts(1)
    items = answerer.answer(ask(prompt))
    assert [await anext(items), await anext(items)] == [
        Said(i, token) for i, token in enumerate(answer_of(prompt).tokens[:2])
    ]
    await items.aclose()
    await answerer.close()
    ((_, ack),) = context.matcher().acks
    assert (ack.tokens_in, ack.tokens_out) == (len(prompt.ids), 2)


async def test_an_answer_that_goes_on_elsewhere_costs_the_sum_of_both_jobs(
    tmp_path: Path, make_stages: MakeStages
) -> None:
    async def breaks(stages: Stages, index: int) -> None:
        await stages.tokens(index, 2)
        await stages.die(1)

    broken, sound = await make_stages(), await make_stages(200)
    broken.script, sound.script = breaks, serve
    context, answerer = await world(tmp_path, broken, sound)
    (prompt,) = prompts(1)
    items = await all_of(answerer.answer(ask(prompt)))
    await answerer.close()
    assert [i.step for i in items if isinstance(i, Said)] == [0, 1, 2, 3]
    last = items[-1]
    assert isinstance(last, Answered) and not last.is_partial
    paid = 0
    for signed, plan in zip(context.matcher().orders, (broken.plan, sound.plan), strict=True):
        for job_id, ack in context.matcher().acks:
            if job_id == signing.job_id(DOMAIN, signed.order):
                split = pricing.split(signed.order, plan, SPEC, ack.tokens_in, ack.tokens_out)
                paid += sum(split.gross)
    assert last.cost_units == paid


async def test_an_answer_that_breaks_off_for_good_says_what_was_paid(
    tmp_path: Path, stages: Stages
) -> None:
    async def breaks(stages: Stages, index: int) -> None:
        await stages.tokens(index, 2)
        await stages.die(1)

    stages.script = breaks
    _, answerer = await world(
        tmp_path,
        stages,
        *[
            type("Gone", (NoCapacity,), {"retryable": False})("no pipeline", "nobody")
            for _ in range(8)
        ],
    )
    (prompt,) = prompts(1)
    with pytest.raises(HeadraceError) as raised:
        await all_of(answerer.answer(ask(prompt)))
    answered = raised.value.details["answered"]
    assert answered.is_partial and answered.tokens_out == 2 and answered.cost_units > 0
    await answerer.close()
