"""Requests over a session: one order, answers as ever, and every unit paid once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from client.records.store import ClientStore
from client.sessions.answering import Answered, Said
from client.sessions.budget import Life
from core.protocol.errors import DeadlinePassed, HeadraceError, NoCapacity
from core.protocol.units import NANO, whole_units
from tests.clocks import Hasty
from tests.town.chain import PREPAID
from tests.town.orders import REQUESTER
from tests.town.town import prompts
from tests.town.village import SMALL, Village, ask, hear


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
    chain = village.chain
    assert village.paid_nano == sum(chain.earned.values()) + sum(chain.fees.values())
    assert told == whole_units(village.paid_nano)


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
    await until(lambda: not any(machine.table.active_requests for machine in machines))
    heard = await hear(sessions.answer(ask(village, short)))
    assert heard.tokens == village.expected(short, 0)
    assert len(village.matches) == 1
    await sessions.close()
    village.running.clear()
    ack = village.acks[village.matches[0].job_id]
    given = ack.tokens_out - len(heard.tokens)
    assert 5 <= given < 60 and ack.tokens_in == len(long.ids) + len(short.ids)
    for machine in machines:  # what the stages counted themselves
        assert machine.store.leaves(*_names(village), 0)[0].leaf.tokens_out == given


async def test_who_leaves_before_the_first_token_pays_for_what_was_read(village: Village) -> None:
    machines = await village.start((0, 3), (3, 6))
    sessions = village.sessions()
    long, short = prompts(2, tokens=60)
    ends: list[Answered] = []
    items = sessions.answer(replace(ask(village, long), on_end=ends.append))
    machines[1].slow_down(0.2)
    begun = asyncio.create_task(anext(items))
    await until(lambda: any(job.running for job in machines[1].table.jobs.values()))
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    await items.aclose()
    await until(lambda: bool(ends))
    heard = await hear(sessions.answer(ask(village, short)))
    assert heard.answered is not None and len(village.matches) == 1
    await sessions.close()
    village.running.clear()
    (end,) = ends
    assert end.tokens_out == 0 and end.is_partial and end.cost_units > 0
    ack = village.acks[village.matches[0].job_id]
    counts = len(long.ids) + len(short.ids), len(heard.tokens) + 1
    assert (ack.tokens_in, ack.tokens_out) == counts
    for machine in machines:
        leaf = machine.store.leaves(*_names(village), 0)[0].leaf
        assert (leaf.tokens_in, leaf.tokens_out) == (len(long.ids), 1)


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


async def test_a_slow_reader_outlives_the_session_that_broke(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.sessions.session.TAKE_OVER_S", 0.01)
    await village.start((0, 2), (2, 4), (4, 6), (2, 4))
    sessions = village.sessions()
    prompt = prompts(1, tokens=60)[0]
    items = sessions.answer(ask(village, prompt))
    begun = await anext(items)
    first = sessions.sessions()[0]
    await village.machine(village.matches[0].plan[1].operator).kill()
    await until(lambda: first.use.life is Life.ENDED)
    assert await hear_from(items, begun) == village.expected(prompt, 0)
    await sessions.close()
    village.running.clear()


async def hear_from(items, first) -> list[int]:  # type: ignore[no-untyped-def]
    tokens, last = [first.token], None
    async for item in items:
        if isinstance(item, Said):
            tokens.append(item.token)
        last = item
    assert last is not None and not isinstance(last, Said) and not last.is_partial
    return tokens


async def until(check: Any, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(0.02)


async def test_the_next_session_is_there_before_the_present_one_is_used_up(
    village: Village,
) -> None:
    await village.start((0, 6), max_requests=16)
    sessions = village.sessions(SMALL.model_copy(update={"requests": 8}))
    asked = prompts(14, tokens=2)
    for prompt in asked:
        heard = await hear(sessions.answer(ask(village, prompt, prompt.custom_id)))
        assert heard.tokens == village.expected(prompt, 0)
        await until(lambda: all(p.opening is None for p in sessions._pools.values()))
    assert len(village.matches) == 2
    await sessions.close()
    village.running.clear()
    used = {match.job_id: village.acks[match.job_id].tokens_out for match in village.matches}
    assert sum(used.values()) == sum(len(village.expected(p, 0)) for p in asked)


async def test_a_full_session_gets_another_beside_it_and_then_requests_wait(
    village: Village,
) -> None:
    await village.start((0, 6), max_requests=16)
    village.most_open = 2
    sessions = village.sessions(SMALL.model_copy(update={"in_flight": 1}))
    asked = prompts(6, tokens=8)
    heard = await asyncio.gather(
        *(hear(sessions.answer(ask(village, p, p.custom_id))) for p in asked)
    )
    for prompt, one in zip(asked, heard, strict=True):
        assert one.tokens == village.expected(prompt, 0)
    assert len(village.matches) == 2


async def test_no_pipeline_costs_nothing_and_is_said_at_once(village: Village) -> None:
    await village.start((0, 3))
    sessions = village.sessions()
    with pytest.raises(NoCapacity) as raised:
        await hear(sessions.answer(ask(village, prompts(1)[0])))
    assert "answered" not in raised.value.details
    assert not village.matches and not village.paid_nano


async def test_where_every_machine_is_taken_a_request_waits_for_a_place(village: Village) -> None:
    await village.start((0, 6))
    village.most_open = 0
    sessions = village.sessions()
    prompt = prompts(1, tokens=8)[0]
    asking = asyncio.create_task(hear(sessions.answer(ask(village, prompt))))
    await until(lambda: village.turned_away >= 2)
    assert not asking.done()
    village.most_open = 1
    assert (await asking).tokens == village.expected(prompt, 0)


async def test_who_waits_longer_than_the_queue_allows_is_told_so(village: Village) -> None:
    await village.start((0, 6))
    village.most_open = 0
    sessions = village.sessions(SMALL.model_copy(update={"queue_s": 1}))
    with pytest.raises(NoCapacity, match="there is no further one"):
        await hear(sessions.answer(ask(village, prompts(1)[0])))
    assert village.turned_away >= 2 and not village.matches


async def test_what_nobody_uses_is_closed_and_its_lock_comes_back(village: Village) -> None:
    machines = await village.start((0, 6))
    sessions = village.sessions(SMALL.model_copy(update={"idle_s": 1}))
    heard = await hear(sessions.answer(ask(village, prompts(1, tokens=3)[0])))
    assert heard.answered is not None
    await until(lambda: village.closed)
    assert not sessions.sessions()
    assert whole_units(PREPAID * NANO - village.prepaid) == heard.answered.cost_units
    await until(lambda: machines[0].table.jobs[village.matches[0].order_hash].is_ended)


async def test_a_session_of_a_dead_program_is_settled_by_the_next_to_the_unit(
    village: Village,
) -> None:
    await village.start((0, 3), (3, 6))
    first = village.sessions()
    asked = prompts(3, tokens=5)
    told = 0
    for prompt in asked[:2]:
        heard = await hear(first.answer(ask(village, prompt, prompt.custom_id)))
        assert heard.answered is not None
        told += heard.answered.cost_units
    # An answer is told before it is booked, and what was not booked is not paid.
    await until(lambda: not any(session._turns for session in first.sessions()))
    village.died(first)
    second = village.sessions()
    heard = await hear(second.answer(ask(village, asked[2])))
    assert heard.answered is not None and heard.answered.job_id != village.matches[0].job_id
    await until(lambda: village.matches[0].job_id in village.closed)
    assert whole_units(village.paid_for(village.matches[0])) == told
    await second.close()
    village.running.clear()
    assert whole_units(village.paid_nano) == told + heard.answered.cost_units
    states = {row.job_id: row.state for row in ClientStore(village.folder / "client.sqlite").jobs()}
    assert set(states.values()) == {"acknowledged"}


async def test_who_settles_for_a_dead_program_pays_no_less_than_it_had(village: Village) -> None:
    await village.start((0, 3), (3, 6), max_unpaid=0)
    first = village.sessions()
    asked = prompts(3, tokens=150)
    await hear(first.answer(ask(village, asked[0], "whole")))
    await until(lambda: not any(session._turns for session in first.sessions()))
    items = first.answer(ask(village, asked[1], "cut"))
    for _ in range(140):
        await anext(items)
    (session,) = first.sessions()
    store = ClientStore(village.folder / "client.sqlite")
    job_id = village.matches[0].job_id
    await until(lambda: store.paid(job_id) == session._paid)
    on_the_way = session._paid
    finished = sum(len(row.tokens.split(",")) for row in store.requests(job_id) if row.finish)
    assert on_the_way[1] > finished, "part of the second answer is paid"
    village.acks[job_id] = session._signed_ack()[0]  # as the matcher was told
    village.died(first)
    second = village.sessions()
    await hear(second.answer(ask(village, asked[2])))
    await until(lambda: job_id in village.closed)
    ack = village.acks[job_id]
    assert ack.tokens_in >= on_the_way[0] and ack.tokens_out >= on_the_way[1]
    rows = [row for row in store.requests(job_id) if row.tokens != "[]"]
    said = sum(len(row.tokens.split(",")) for row in rows)
    assert (len(rows), ack.tokens_out) == (2, said), "the stages said what had come of the second"
    charged = sum(store.charges(job_id).values())
    assert charged == whole_units(village.paid_for(village.matches[0]))
    await second.close()
    assert {row.state for row in store.jobs()} == {"acknowledged"}
    store.close()
    village.running.clear()


async def test_a_living_programs_sessions_are_left_alone(village: Village) -> None:
    await village.start((0, 6), max_requests=16)
    first = village.sessions()
    one, other = prompts(2, tokens=3)
    await hear(first.answer(ask(village, one)))
    second = village.sessions()
    await hear(second.answer(ask(village, other)))
    await asyncio.gather(*second._tasks)
    assert not village.closed
    await hear(first.answer(ask(village, one, "again")))
    assert len(village.matches) == 2
    nonces = [match.signed.order.nonce for match in village.matches]
    assert nonces == [nonces[0], nonces[0] + 1], "programs with the same records share a word"


async def test_who_avoids_a_machine_never_shows_it_a_prompt(village: Village) -> None:
    await village.start((0, 3), (3, 6), (3, 6))
    sessions = village.sessions()
    avoided = village.machines[1].signer.address
    prompt = prompts(1, tokens=3)[0]
    heard = await hear(sessions.answer(ask(village, prompt, avoided=frozenset({avoided}))))
    assert heard.answered is not None and avoided not in heard.answered.operators
    open_to_all = await hear(sessions.answer(ask(village, prompt)))
    assert open_to_all.answered is not None
    assert len(village.matches) == 2  # other terms, another session


async def test_money_in_an_idle_session_is_let_go_for_a_request_of_other_terms(
    village: Village,
) -> None:
    await village.start((0, 3), (3, 6), (0, 3), (3, 6))
    sessions = village.sessions()
    village.chain.prepaid[REQUESTER.address] = 5_000
    first = await hear(sessions.answer(ask(village, prompts(1)[0])))
    assert first.answered is not None and village.chain.prepaid[REQUESTER.address] < 500
    seen = {stage.operator for match in village.matches for stage in match.plan}
    other = ask(village, prompts(1)[0], "other", avoided=frozenset(seen))
    second = await hear(sessions.answer(other))
    assert second.answered is not None and not second.answered.is_partial
    assert len(village.matches) == 2 and village.matches[0].job_id in village.closed
    await sessions.close()
    village.running.clear()


async def test_a_price_cap_below_the_offer_is_refused_before_anything_is_locked(
    village: Village,
) -> None:
    await village.start((0, 6))
    sessions = village.sessions()
    with pytest.raises(NoCapacity):
        await hear(sessions.answer(ask(village, prompts(1)[0], cap_out=1)))
    assert not village.matches


async def test_an_answer_that_takes_too_long_ends_with_what_came(village: Village) -> None:
    (machine,) = await village.start((0, 6))
    sessions = village.sessions()
    prompt = prompts(1, tokens=400)[0]
    await hear(sessions.answer(ask(village, prompts(1, tokens=1)[0])))
    machine.slow_down(0.03)
    with pytest.raises(DeadlinePassed) as raised:
        await hear(sessions.answer(ask(village, prompt, deadline_s=1)))
    part = raised.value.details["answered"]
    assert part.is_partial and 0 < part.tokens_out < 400
    await sessions.close()
    village.running.clear()
    assert village.acks[part.job_id].tokens_out - 1 >= part.tokens_out > 0
    assert part.cost_units <= whole_units(village.paid_nano)


async def test_a_matcher_that_is_away_delays_the_payment_and_nothing_else(village: Village) -> None:
    machines = await village.start((0, 6))
    sessions = village.sessions()
    asked = prompts(3, tokens=3)
    await hear(sessions.answer(ask(village, asked[0])))
    village.is_away = True
    for prompt in asked[1:]:
        heard = await hear(sessions.answer(ask(village, prompt)))
        assert heard.tokens == village.expected(prompt, 0)
    match = village.matches[0]
    produced = sum(len(village.expected(p, 0)) for p in asked)
    # The stages have the last word in hand, and can bring it themselves.
    await until(
        lambda: (
            (kept := machines[0].store.ack(match.order_hash, match.plan_hash)) is not None
            and kept[0].tokens_out == produced
        )
    )
    village.is_away = False
    await sessions.close()
    village.running.clear()
    assert village.acks[match.job_id].tokens_out == produced


async def test_where_nothing_can_go_on_the_error_says_what_was_paid(village: Village) -> None:
    await village.start((0, 3), (3, 6))
    sessions = village.sessions(clock=Hasty())
    items = sessions.answer(ask(village, prompts(1, tokens=80)[0]))
    said = [await anext(items) for _ in range(4)]
    await village.machines[1].kill()
    with pytest.raises(HeadraceError) as raised:
        async for item in items:
            said.append(item)
    part = raised.value.details["answered"]
    assert part.is_partial and part.tokens_out == len(said) and part.cost_units > 0
    await sessions.close()
    village.running.clear()
    assert whole_units(village.paid_nano) == part.cost_units


async def test_a_session_that_gave_nothing_is_closed_and_its_whole_lock_comes_back(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    await village.start((0, 3), (3, 6))
    open_job = village.open_job

    async def dies_when_matched(*asked: Any) -> Any:
        match = await open_job(*asked)
        await village.machines[1].kill()
        return match

    monkeypatch.setattr(village, "open_job", dies_when_matched)
    sessions = village.sessions()
    with pytest.raises(HeadraceError):
        await hear(sessions.answer(ask(village, prompts(1)[0])))
    await sessions.close()
    village.running.clear()
    assert village.closed == {match.job_id for match in village.matches} != set()
    assert village.prepaid == PREPAID * NANO and village.paid_nano == 0
    states = {row.state for row in ClientStore(village.folder / "client.sqlite").jobs()}
    assert states == {"abandoned"}


async def test_a_session_that_its_stages_brought_on_chain_is_charged_what_that_paid(
    village: Village,
) -> None:
    await village.start((0, 3), (3, 6))
    first = village.sessions()
    heard = await hear(first.answer(ask(village, prompts(1, tokens=5)[0], "whole")))
    assert heard.answered is not None
    await until(lambda: not any(session._turns for session in first.sessions()))
    await until(lambda: bool(village.acks))
    village.died(first)
    (match,) = village.matches
    village.closed.add(match.job_id)
    village.chain.end(match.job_id)
    history = len(village.history)
    second = village.sessions()
    await second.recover()
    store = ClientStore(village.folder / "client.sqlite")
    assert [row.state for row in store.jobs()] == ["acknowledged"]
    assert sum(store.charges(match.job_id).values()) == heard.answered.cost_units
    assert len(village.history) == history, "nothing follows the end"
    store.close()
