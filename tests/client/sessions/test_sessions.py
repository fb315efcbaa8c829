"""Requests over a session: one order, answers as ever, and every unit paid once."""

from __future__ import annotations

import asyncio
import time

from client.answering import Said
from client.store import ClientStore
from tests.client.sessions.village import Village, ask, hear
from tests.failover.town import prompts


async def test_twenty_requests_take_one_order_and_cost_what_was_told(village: Village) -> None:
    await village.start((0, 3), (3, 6))
    sessions = village.sessions()
    asked = prompts(20, tokens=6, sampled=True)
    told = 0
    for start in range(0, 20, 4):
        heard = await asyncio.gather(
            *(hear(sessions.answer(ask(village, p, p.custom_id))) for p in asked[start : start + 4])
        )
        for prompt, one in zip(asked[start : start + 4], heard, strict=True):
            assert one.tokens == village.expected(prompt, 0)  # whichever its place in the session
            assert one.answered is not None and not one.answered.is_partial
            assert one.answered.tokens_out == len(one.tokens)
            told += one.answered.cost_units
    assert len(village.matches) == 1
    job_id = village.matches[0].job_id
    await sessions.close()
    village.running.clear()
    store = ClientStore(village.folder / "client.sqlite")
    (row,) = store.jobs()
    assert row.state == "acknowledged" and job_id in village.closed
    receipts = [signed for _, signed in store.receipts(job_id)]
    assert len(receipts) == 20 * 2  # each stage for each request
    signed_in = sum(r.receipt.tokens_in for r in receipts if r.receipt.stage == 0)
    signed_out = sum(r.receipt.tokens_out for r in receipts if r.receipt.stage == 0)
    ack = village.acks[job_id]
    assert (ack.tokens_in, ack.tokens_out) == (signed_in, signed_out)
    assert told == village.paid_units == sum(village.ledger.credit.values())


async def test_who_stops_listening_stops_the_stages_and_the_session_lives_on(
    village: Village,
) -> None:
    machines = await village.start((0, 3), (3, 6))
    sessions = village.sessions()
    long, short = prompts(2, tokens=60)
    items = sessions.answer(ask(village, long))
    said = [await anext(items) for _ in range(5)]
    assert all(isinstance(one, Said) for one in said)
    await items.aclose()
    began = time.monotonic()
    while any(machine.desk.active_requests for machine in machines):
        await asyncio.sleep(0.02)
        assert time.monotonic() - began < 2
    heard = await hear(sessions.answer(ask(village, short)))
    assert heard.tokens == village.expected(short, 0)
    assert len(village.matches) == 1
    await sessions.close()
    village.running.clear()
    ack = village.acks[village.matches[0].job_id]
    given = ack.tokens_out - len(heard.tokens)
    assert 5 <= given < 60 and ack.tokens_in == len(long.ids) + len(short.ids)
    for machine in machines:  # what the stages counted themselves
        assert machine.store.leaf(*_names(village), 0).tokens_out == given


def _names(village: Village) -> tuple[str, str]:
    match = village.matches[0]
    return match.order_hash, match.plan_hash


async def test_a_killed_stage_is_a_pause_for_the_reader(village: Village) -> None:
    await village.start((0, 2), (2, 4), (4, 6), (2, 4))
    sessions = village.sessions()
    asked = prompts(3, tokens=60, sampled=True)
    items = [sessions.answer(ask(village, p, p.custom_id)) for p in asked]
    begun = [await anext(one) for one in items]
    await village.machine(village.matches[0].plan[1].operator).kill()
    heard = await asyncio.gather(
        *(hear_from(one, said) for one, said in zip(items, begun, strict=True))
    )
    for prompt, tokens in zip(asked, heard, strict=True):
        assert tokens == village.expected(prompt, 0)
    await sessions.close()
    village.running.clear()
    assert len(village.matches) == 2
    assert set(village.closed) == {match.job_id for match in village.matches}


async def hear_from(items, first) -> list[int]:  # type: ignore[no-untyped-def]
    tokens, last = [first.token], None
    async for item in items:
        if isinstance(item, Said):
            tokens.append(item.token)
        last = item
    assert last is not None and not isinstance(last, Said) and not last.is_partial
    return tokens
