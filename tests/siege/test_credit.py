"""Honest clients of machines that do little before it is acknowledged, and what others can have."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from client.orders.orders import PromptBatch
from core.money import pricing
from core.protocol.units import NANO
from tests.town.orders import SPEC, signed_order
from tests.town.town import Town, Watch, prompts
from tests.town.village import Village, ask, hear

CUTS = ((0, 2), (2, 4))
#: In units of money that buy less than a row: the least that any job is given.
LEAST = {"max_unpaid": 0}


async def test_a_session_pays_on_the_way_and_is_never_held_up(village: Village) -> None:
    machines = await village.start(*CUTS, **LEAST)
    sessions = village.sessions()
    asked = prompts(4, tokens=150)
    heard = await asyncio.gather(
        *(hear(sessions.answer(ask(village, p, p.custom_id))) for p in asked)
    )
    (match,) = village.matches
    for machine in machines:
        job = machine.table.jobs[match.order_hash]
        assert job.credit == pricing.LEAST_CREDIT_ROWS
        assert job.unacknowledged <= job.credit
    told = 0
    for prompt, one in zip(asked, heard, strict=True):
        assert one.tokens == village.expected(prompt, 0)
        assert one.answered is not None
        told += one.answered.cost_units
    await sessions.close()
    village.running.clear()
    ack = village.acks[match.job_id]
    assert ack.tokens_in == sum(len(prompt.ids) for prompt in asked)
    assert ack.tokens_out == sum(len(one.tokens) for one in heard)


async def test_a_batch_pays_on_the_way_and_ends_as_ever(town: Town) -> None:
    machines = await town.start(*CUTS, **LEAST)
    batch = prompts(6, tokens=120)
    result = await town.begin(batch, Watch())
    assert not result.unfinished
    for index, prompt in enumerate(batch):
        assert result.finished[prompt.custom_id].state.tokens == town.expected(prompt, index)
    (match,) = town.matches
    ack = town.acks[match.job_id]
    assert ack.tokens_in == sum(len(prompt.ids) for prompt in batch)
    for machine in machines:
        kept = machine.store.ack(match.order_hash, match.plan_hash)
        assert kept is not None
        assert kept[0].tokens_out == ack.tokens_out


def test_the_credit_is_worth_what_it_is_said_to_be() -> None:
    order = signed_order(PromptBatch.of(prompts(1))).order
    for price_in, price_out in ((1, 1), (10**7, 3 * 10**7), (10**12, 10**13), (0, 10**9)):
        order = replace(order, price_in=price_in, price_out=price_out)
        a_row = SPEC.layer_units * max(price_in, price_out)
        rows = pricing.credit_rows(order, SPEC)
        assert pricing.LEAST_CREDIT_ROWS <= rows <= pricing.UNBOUNDED_ROWS
        if rows > pricing.LEAST_CREDIT_ROWS:
            assert rows * a_row <= pricing.CREDIT_UNITS * NANO
    free = replace(order, price_in=0, price_out=0)
    assert pricing.credit_rows(free, SPEC) == pricing.UNBOUNDED_ROWS
