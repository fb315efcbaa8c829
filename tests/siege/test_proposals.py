"""Proposals that nobody opens, and those of others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from core.money import pricing
from core.protocol import wire
from core.protocol.types import JobState
from miner.chain import admission
from miner.chain.onchain import JobNews
from miner.serving.job_table import (
    HELD_S,
    LENT_S,
    LOOKED_UP,
    MAX_ASKED,
    MAX_HELD,
    OPENED_WITHIN_S,
    Refused,
)
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import Machine, greedy
from tests.town.orders import key
from tests.town.requester import Requester

SLOTS = 16
HONEST_MATCHER = key(40)


def job_of(
    number: int, chain: FakeChain, machines: Sequence[Machine], *, nonce: int = 1, requests: int = 8
) -> Requester:
    requester = Requester(key(number), chain, machines)
    chain.prepaid[requester.signer.address] = 10**6
    requester.order([([5, 6, 7], greedy(4))] * requests, nonce=nonce)
    return requester


def code(answer: Any) -> str:
    return answer.code if isinstance(answer, wire.Failed) else ""


async def test_what_others_propose_and_do_not_open_takes_no_slots(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4), max_requests=SLOTS)
    attackers = [job_of(60 + i, chain, [machine]) for i in range(20)]
    for number, attacker in enumerate(attackers):
        (answer,) = await attacker.propose(key(80 + number))
        assert isinstance(answer, wire.Accepted)
    assert machine.table.free_requests == SLOTS, "so matchers are told"
    honest = job_of(50, chain, [machine])
    await honest.run_all(HONEST_MATCHER)
    await honest.close()


async def test_one_requesters_own_fill_its_slots_for_seconds(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4), max_requests=2)
    for nonce in (2, 3):
        (answer,) = await job_of(63, chain, [machine], nonce=nonce).propose(key(80 + nonce))
        assert isinstance(answer, wire.Accepted)
    (answer,) = await job_of(63, chain, [machine], nonce=4).propose(key(90))
    assert code(answer) == admission.SLOTS
    (answer,) = await job_of(62, chain, [machine]).propose(key(82))
    assert isinstance(answer, wire.Accepted), "the same matcher's, of another requester"
    machine.offset_s = HELD_S + 1
    machine.stage.tick()
    (answer,) = await job_of(63, chain, [machine], nonce=5).propose(key(90))
    assert isinstance(answer, wire.Accepted)


async def test_a_job_that_is_opened_late_has_slots_all_the_same(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4), max_requests=SLOTS)
    late = job_of(50, chain, [machine])
    await late.propose(HONEST_MATCHER)
    machine.offset_s = HELD_S + 1
    machine.stage.tick()
    late.match()
    await late.open()
    assert machine.table.jobs[late.order_hash].reserved == 1
    assert machine.table.free_requests == SLOTS - 1
    await asyncio.gather(*map(late.submit, range(8)))
    assert machine.table.jobs[late.order_hash].most_asked == 8
    assert machine.table.jobs[late.order_hash].reserved == 8, "as many as it asks for"
    await late.finished(range(8))
    await late.close()


async def test_what_the_chain_shows_and_nobody_opens_is_held_for_seconds(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4), max_requests=2)
    idlers = [job_of(60, chain, [machine], nonce=n) for n in (1, 2)]
    for idler in idlers:
        await idler.propose(HONEST_MATCHER)
        idler.match()
        await machine.table.hear(JobNews(idler.job_id, JobState.MATCHED, idler.plan_hash))
    third = job_of(60, chain, [machine], nonce=3)
    (answer,) = await third.propose(HONEST_MATCHER)
    assert code(answer) == admission.SLOTS
    machine.offset_s = OPENED_WITHIN_S + 1
    machine.stage.tick()
    (answer,) = await third.propose(HONEST_MATCHER)
    assert isinstance(answer, wire.Accepted)
    await idlers[0].open()
    await asyncio.gather(*map(idlers[0].submit, range(8)))
    await idlers[0].finished(range(8))
    await idlers[0].close()


async def test_places_that_opened_orders_do_not_use_are_lent(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4), max_requests=2)
    idlers = [job_of(60 + i, chain, [machine]) for i in range(2)]
    for idler in idlers:
        await idler.propose(HONEST_MATCHER)
        idler.match()
        await idler.open()
    honest = job_of(50, chain, [machine])
    (answer,) = await honest.propose(HONEST_MATCHER)
    assert code(answer) == admission.SLOTS
    machine.offset_s = LENT_S + 1
    await idlers[0].open()  # to open it once more is no use of it
    machine.stage.tick()
    assert machine.table.free_requests == 2
    (answer,) = await honest.propose(HONEST_MATCHER)
    assert isinstance(answer, wire.Accepted)
    honest.match()
    await honest.open()
    await asyncio.gather(*map(honest.submit, range(8)))
    await asyncio.gather(*map(idlers[0].submit, range(8)))
    await honest.finished(range(8))
    await idlers[0].finished(range(8))
    for one in (honest, *idlers):
        await one.close()


async def test_a_job_keeps_as_many_places_as_it_uses(start: Start, chain: FakeChain) -> None:
    (machine,) = await start((0, 4), max_requests=SLOTS)
    job = job_of(60, chain, [machine])
    await job.propose(HONEST_MATCHER)
    job.match()
    await job.open()
    active = machine.table.jobs[job.order_hash]
    await asyncio.gather(*map(job.submit, range(3)))
    await job.finished(range(3))
    machine.offset_s = LENT_S + 1
    machine.stage.tick()
    assert active.reserved == active.most_asked + 3 == 3, "as many as it used at once"
    machine.offset_s += LENT_S + 1
    machine.stage.tick()
    assert active.reserved == 0
    await asyncio.gather(*map(job.submit, range(3, 8)))
    assert 1 <= active.reserved <= 5
    await job.finished(range(3, 8))
    await job.close()


async def test_what_its_proposer_withdraws_holds_nothing(start: Start, chain: FakeChain) -> None:
    (machine,) = await start((0, 4), max_requests=2)
    held = [job_of(60, chain, [machine], nonce=n) for n in (1, 2)]
    for one in held:
        await one.propose(HONEST_MATCHER)
    third = job_of(60, chain, [machine], nonce=3)
    (answer,) = await third.propose(HONEST_MATCHER)
    assert code(answer) == admission.SLOTS
    machine.table.withdraw(key(80).address, held[0].order_hash)
    (answer,) = await third.propose(HONEST_MATCHER)
    assert code(answer) == admission.SLOTS, "another's proposal is not a stranger's to withdraw"
    machine.table.withdraw(HONEST_MATCHER.address, held[0].order_hash)
    (answer,) = await third.propose(HONEST_MATCHER)
    assert isinstance(answer, wire.Accepted)
    held[0].match()
    await held[0].open()
    assert machine.table.jobs[held[0].order_hash].reserved, "the chain shows it"
    machine.table.withdraw(HONEST_MATCHER.address, held[0].order_hash)
    assert machine.table.jobs[held[0].order_hash].reserved
    await held[0].close()


async def test_accepted_orders_are_held_against_one_balance(start: Start, chain: FakeChain) -> None:
    (machine,) = await start((0, 4), max_requests=64)
    first, second, third = (job_of(60, chain, [machine], nonce=n) for n in (1, 2, 3))
    need = pricing.max_amount(first.signed.order, machine.terms.spec)
    chain.prepaid[key(60).address] = 2 * need
    answers = [(await one.propose(key(80)))[0] for one in (first, second, third)]
    assert [code(answer) for answer in answers] == ["", "", admission.ESCROW]
    (again,) = await second.propose(key(80))
    assert isinstance(again, wire.Accepted), "an order is not held against itself"
    machine.offset_s = HELD_S + 1
    machine.stage.tick()
    (answer,) = await third.propose(key(80))
    assert isinstance(answer, wire.Accepted)


async def test_junk_of_one_peer_makes_nobody_else_wait(start: Start, chain: FakeChain) -> None:
    """The chain takes its time; a hundred proposals of one peer wait for each other alone."""
    (machine,) = await start((0, 4), max_requests=64)
    table, view = machine.table, machine.chain.view
    reading, most, gate = 0, 0, asyncio.Event()

    async def slow_view(order: Any, signer: Any) -> Any:
        nonlocal reading, most
        if order.requester == key(50).address:
            return await view(order, signer)
        reading += 1
        most = max(most, reading)
        await gate.wait()
        reading -= 1
        return await view(order, signer)

    machine.chain.view = slow_view  # type: ignore[method-assign]
    junk = [job_of(60, chain, [machine], nonce=n, requests=1).proposal(0) for n in range(1, 101)]
    peer = key(80).address
    asked = [asyncio.create_task(table.propose(peer, one)) for one in junk]
    honest = job_of(50, chain, [machine], requests=1)
    (answer,) = await honest.propose(HONEST_MATCHER)
    assert isinstance(answer, wire.Accepted)
    assert most == LOOKED_UP
    refused = [task for task in asked if task.done()]
    assert len(refused) == 100 - MAX_ASKED
    assert all(isinstance(task.exception(), Refused) for task in refused)
    gate.set()
    await asyncio.gather(*asked, return_exceptions=True)
    assert not table._asked


async def test_no_more_accepted_jobs_are_kept_than_memory_is_set_aside_for(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4), max_requests=SLOTS)
    real = job_of(50, chain, [machine], requests=1)
    await real.propose(HONEST_MATCHER)
    real.match()
    await real.open()
    for number in range(MAX_HELD + 20):
        proposal = job_of(1000 + number, chain, [machine], requests=1).proposal(0)
        await machine.table.propose(key(5000 + number).address, proposal)
    assert len(machine.table.jobs) == MAX_HELD + 1
    await real.submit(0)
    await real.finished([0])
    await real.close()
