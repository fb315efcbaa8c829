"""From a signed order to a job on chain, with stages that refuse, vanish or are full."""

from __future__ import annotations

import asyncio

import pytest

from core.money import pricing
from core.protocol import signing, wire
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    ContractRefused,
    DepositShort,
    ModelUnknown,
    NoCapacity,
    UsageError,
)
from core.protocol.types import ZERO_ADDRESS, JobState
from matcher.matching.matching import MAX_OF_ONE, MAX_UNDER_WAY, Continuation
from matcher.records.jobs import Job
from tests.town.fleet import PRICE_IN, SPEC, machine_key, make_order
from tests.town.matcher import Net
from tests.town.orders import DOMAIN, MATCHER, NOW_S, REQUESTER, key, sign_order

SPLIT = ((1, 0, 10), (2, 10, 20), (3, 20, 30))


async def test_an_order_becomes_a_job_with_every_stage_accepted(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    order = make_order()
    job = await net.daemon.matchmaker.open(sign_order(order))
    assert job.state == "Matched"
    assert job.job_id == signing.job_id(DOMAIN, order)
    assert [(s.operator, s.layer_from, s.layer_to) for s in job.plan] == [
        (machine_key(n).address, a, b) for n, a, b in SPLIT
    ]
    assert net.chain.jobs[job.job_id].plan_hash == job.plan_hash
    assert job.open_tx


async def test_the_same_order_twice_is_one_job(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    signed = sign_order(make_order())
    first, second = await asyncio.gather(
        net.daemon.matchmaker.open(signed), net.daemon.matchmaker.open(signed)
    )
    third = await net.daemon.matchmaker.open(signed)
    assert first == second
    assert third.job_id == first.job_id
    assert third.plan == first.plan
    assert net.chain.called == ["openMatched"]
    assert net.stage(1).proposals == 1


async def test_a_refusing_stage_is_excluded_and_the_route_found_again(net: Net) -> None:
    net.serve(*SPLIT, (4, 10, 20))
    net.stage(2).refuse = "all request slots are reserved"
    net.stage(4).refuse = ""
    await net.tick()
    job = await net.daemon.matchmaker.open(sign_order(make_order()))
    assert machine_key(4).address in {stage.operator for stage in job.plan}
    assert machine_key(2).address not in {stage.operator for stage in job.plan}


async def test_who_accepted_an_order_that_is_not_opened_with_it_is_told(net: Net) -> None:
    net.serve(*SPLIT, (4, 10, 20))
    net.stage(2).refuse = net.stage(4).refuse = "all request slots are reserved"
    await net.tick()
    signed = sign_order(make_order())
    with pytest.raises(NoCapacity):
        await net.daemon.matchmaker.open(signed)
    order_hash = signing.order_hash(signed.order)
    assert [net.stage(n).withdrawn for n in (1, 2, 3, 4)] == [[order_hash], [], [order_hash], []]
    net.stage(4).refuse = ""
    await net.daemon.matchmaker.open(signed)
    assert [len(net.stage(n).withdrawn) for n in (1, 2, 3, 4)] == [1, 0, 1, 0]


async def test_an_unreachable_stage_is_avoided_by_the_next_order_too(net: Net) -> None:
    net.serve(*SPLIT, (4, 10, 20))
    await net.tick()
    net.stage(2).is_gone = True
    await net.daemon.matchmaker.open(sign_order(make_order(nonce=1)))
    before = net.stage(2).proposals
    await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)))
    assert net.stage(2).proposals == before
    assert machine_key(2).address in net.daemon.world.avoided(int(net.clock.now() * 1000))


async def test_after_three_rounds_of_refusals_the_order_is_refused_with_the_reasons(
    net: Net,
) -> None:
    net.serve((1, 0, 30), (2, 0, 30), (3, 0, 30), (4, 0, 30), memory_bytes=2**30)
    for number in (1, 2, 3, 4):
        net.stage(number).refuse = "not today"
    await net.tick()
    with pytest.raises(NoCapacity) as caught:
        await net.daemon.matchmaker.open(sign_order(make_order()))
    assert len(caught.value.details["refusals"]) == 3
    assert sum(net.stage(n).proposals for n in (1, 2, 3, 4)) == 3
    assert net.chain.called == []
    assert net.daemon.world.reservations == 0


async def test_a_failed_order_can_be_tried_again(net: Net) -> None:
    net.serve(*SPLIT)
    net.stage(2).refuse = "not yet"
    await net.tick()
    signed = sign_order(make_order())
    with pytest.raises(NoCapacity):
        await net.daemon.matchmaker.open(signed)
    net.stage(2).refuse = ""
    assert (await net.daemon.matchmaker.open(signed)).state == "Matched"


async def test_slots_are_taken_when_asked_not_when_telemetry_says_so(net: Net) -> None:
    """No herding: with the same stale telemetry, the second order goes to the other machine."""
    net.serve((1, 0, 30), (2, 0, 30), max_requests=1, memory_bytes=2**30)
    await net.tick()
    jobs = [
        await net.daemon.matchmaker.open(sign_order(make_order(nonce=nonce))) for nonce in (1, 2)
    ]
    assert {job.plan[0].operator for job in jobs} == {machine_key(n).address for n in (1, 2)}
    with pytest.raises(NoCapacity) as caught:
        await net.daemon.matchmaker.open(sign_order(make_order(nonce=3)))
    assert "slots" in caught.value.why


async def test_concurrent_orders_never_exceed_the_slots(net: Net) -> None:
    net.serve((1, 0, 30), max_requests=3, memory_bytes=2**30)
    await net.tick()
    orders = [sign_order(make_order(nonce=nonce)) for nonce in range(8)]
    found = await asyncio.gather(
        *(net.daemon.matchmaker.open(signed) for signed in orders), return_exceptions=True
    )
    assert sum(not isinstance(each, Exception) for each in found) == 3


async def test_an_order_signed_for_another_chain_is_refused(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    elsewhere = signing.Domain(1, DOMAIN.verifying_contract)
    with pytest.raises(CheckFailed, match="not signed by its requester"):
        await net.daemon.matchmaker.open(sign_order(make_order(), domain=elsewhere))
    with pytest.raises(CheckFailed):
        await net.daemon.matchmaker.open(sign_order(make_order(), signer=key(77)))


async def test_an_empty_balance_says_have_need_and_short_by(net: Net) -> None:
    net.serve(*SPLIT)
    net.chain.prepaid[REQUESTER.address] = 1
    await net.tick()
    with pytest.raises(DepositShort) as caught:
        await net.daemon.matchmaker.open(sign_order(make_order(max_tokens_out=2000)))
    need = pricing.max_amount(make_order(max_tokens_out=2000), SPEC)
    assert (caught.value.have, caught.value.need, caught.value.short_by) == (1, need, need - 1)
    assert caught.value.http_status == 402
    assert "deposit" in caught.value.fix


async def test_two_orders_under_way_do_not_spend_the_same_balance(net: Net) -> None:
    net.serve(*SPLIT)
    net.chain.prepaid[REQUESTER.address] = pricing.max_amount(make_order(), SPEC) + 1
    await net.tick()
    found = await asyncio.gather(
        *(net.daemon.matchmaker.open(sign_order(make_order(nonce=n))) for n in (1, 2)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, DepositShort) for each in found) == 1
    assert net.chain.called == ["openMatched"]


async def test_an_unknown_model_is_not_found(net: Net) -> None:
    await net.tick()
    with pytest.raises(ModelUnknown) as caught:
        await net.daemon.matchmaker.open(sign_order(make_order(model_id="0x" + "99" * 32)))
    assert caught.value.http_status == 404


async def test_a_used_order_is_refused_even_by_a_matcher_that_never_saw_it(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    signed = sign_order(make_order())
    job = await net.daemon.matchmaker.open(signed)
    (net.folder / "matcher.sqlite").rename(net.folder / "gone.sqlite")
    net.restarted()
    await net.daemon.prepare()
    net.daemon.world.learn_models(net.chain.models)
    assert net.chain.jobs[job.job_id].state is JobState.MATCHED
    with pytest.raises(UsageError, match="used already"):
        await net.daemon.matchmaker.open(signed)


async def test_an_order_that_names_no_matcher_reaches_no_stage(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    with pytest.raises(UsageError, match="names no matcher"):
        await net.daemon.matchmaker.open(sign_order(make_order(matcher=ZERO_ADDRESS)))
    assert (net.stage(1).proposals, net.chain.called) == (0, [])


async def test_an_order_with_the_nonce_of_another_reaches_no_stage(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    await net.daemon.matchmaker.open(sign_order(make_order(nonce=7)))
    with pytest.raises(UsageError, match="used already") as caught:
        await net.daemon.matchmaker.open(sign_order(make_order(nonce=7, window=61)))
    assert "nonce 7" in caught.value.why
    assert net.stage(1).proposals == 1


async def test_a_nonce_that_is_revoked_while_stages_are_asked_fails_the_job(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    signed = sign_order(make_order())
    taken = ContractRefused("TaskRegistry was refused", error="NonceUsedAlready")
    net.chain.refusals["openMatched"] = taken
    with pytest.raises(UsageError, match="used already"):
        await net.daemon.matchmaker.open(signed)
    job = net.daemon.store.job(signing.job_id(DOMAIN, signed.order))
    assert (job.state, net.daemon.world.reservations) == ("Failed", 0)


async def test_a_lost_answer_while_opening_is_found_again_on_chain(net: Net) -> None:
    """We die, or the node, between sending and hearing: the job is open once, and stored."""
    net.serve(*SPLIT)
    await net.tick()
    net.chain.lose_answers = 1
    signed = sign_order(make_order())
    with pytest.raises(ChainUnreachable):
        await net.daemon.matchmaker.open(signed)
    job_id = signing.job_id(DOMAIN, signed.order)
    assert net.daemon.store.job(job_id).state == "Opening"
    await net.tick(2)
    assert net.daemon.store.job(job_id).state == "Matched"
    assert net.daemon.store.job(job_id).open_tx
    assert net.chain.called == ["openMatched"]
    assert (await net.daemon.matchmaker.open(signed)).state == "Matched"


async def test_a_job_stored_before_the_chain_was_lost_is_opened_when_it_is_back(net: Net) -> None:
    net.serve(*SPLIT)
    await net.tick()
    transact, net.chain.transact = net.chain.transact, _unreachable  # type: ignore[method-assign]
    signed = sign_order(make_order())
    with pytest.raises(ChainUnreachable):
        await net.daemon.matchmaker.open(signed)
    net.chain.transact = transact  # type: ignore[method-assign]
    await net.pass_time(3)
    assert net.daemon.store.job(signing.job_id(DOMAIN, signed.order)).state == "Matched"


async def given_up(net: Net) -> Job:
    """A job whose acceptances lapsed while the chain was away, so that it was never sent again."""
    net.serve(*SPLIT)
    await net.tick()
    transact, net.chain.transact = net.chain.transact, _unreachable  # type: ignore[method-assign]
    signed = sign_order(make_order())
    with pytest.raises(ChainUnreachable):
        await net.daemon.matchmaker.open(signed)
    await net.clock.advance(400)
    net.chain.transact = transact  # type: ignore[method-assign]
    return net.daemon.store.job(signing.job_id(DOMAIN, signed.order))


async def test_acceptances_that_lapse_before_the_chain_is_back_fail_the_job(net: Net) -> None:
    stored = await given_up(net)
    await net.tick(2)
    job = net.daemon.store.job(stored.job_id)
    assert (job.state, net.chain.called) == ("Failed", [])
    assert net.daemon.world.reservations == 0


async def mined_late(net: Net, job: Job) -> None:
    """What was sent before the chain went away is mined now."""
    order = job.signed.order, job.signed.signature
    await net.chain.transact(MATCHER, "TaskRegistry", "openMatched", *order, list(job.plan))


async def test_no_job_is_opened_with_acceptances_that_have_lapsed(net: Net) -> None:
    job = await given_up(net)
    with pytest.raises(NoCapacity, match="lapsed"):
        await net.daemon.matchmaker.open(job.signed)
    assert net.chain.called == []
    assert net.daemon.store.job(job.job_id).state == "Failed"
    assert net.daemon.world.reservations == 0


async def test_an_order_whose_acceptances_lapsed_is_matched_anew_when_it_comes_again(
    net: Net,
) -> None:
    job = await given_up(net)
    await net.tick()
    assert net.daemon.store.job(job.job_id).state == "Failed"
    net.serve(*SPLIT)
    await net.tick()
    assert (await net.daemon.matchmaker.open(job.signed)).state == "Matched"
    assert net.stage(1).proposals == 2


async def test_a_job_that_was_opened_is_found_even_when_its_acceptances_have_lapsed(
    net: Net,
) -> None:
    net.serve(*SPLIT)
    await net.tick()
    net.chain.lose_answers = 1
    signed = sign_order(make_order())
    with pytest.raises(ChainUnreachable):
        await net.daemon.matchmaker.open(signed)
    await net.clock.advance(400)
    assert (await net.daemon.matchmaker.open(signed)).state == "Matched"
    assert net.chain.called == ["openMatched"]


async def test_a_job_that_was_given_up_and_is_mined_late_lives_again(net: Net) -> None:
    """No acceptance keeps a transaction from being mined: what it locked must come back."""
    job = await given_up(net)
    await net.tick()
    assert net.daemon.store.job(job.job_id).state == "Failed"
    await mined_late(net, job)
    await net.tick()
    found = net.daemon.store.job(job.job_id)
    assert (found.state, found.failure, found.plan) == ("Matched", "", job.plan)
    await net.pass_time(300, step=10)
    assert net.daemon.store.job(job.job_id).state == "Expired"


async def test_an_order_that_comes_again_is_answered_with_the_job_that_was_mined_late(
    net: Net,
) -> None:
    job = await given_up(net)
    await net.tick()
    await mined_late(net, job)
    found = await net.daemon.matchmaker.open(job.signed)
    assert (found.state, found.plan) == ("Matched", job.plan)
    assert net.stage(1).proposals == 1


async def test_of_two_plans_of_an_order_the_one_on_chain_is_kept(net: Net) -> None:
    first = await given_up(net)
    await net.tick()
    net.serve((1, 0, 15), (2, 15, 30))
    net.stage(3).is_gone = True
    await net.tick()
    transact, net.chain.transact = net.chain.transact, _unreachable  # type: ignore[method-assign]
    with pytest.raises(ChainUnreachable):
        await net.daemon.matchmaker.open(first.signed)
    net.chain.transact = transact  # type: ignore[method-assign]
    second = net.daemon.store.job(first.job_id)
    assert (second.state, second.plan != first.plan) == ("Opening", True)
    await mined_late(net, first)
    with pytest.raises(UsageError, match="used already"):
        await net.daemon.matchmaker.open(first.signed)
    await net.tick(2)
    found = net.daemon.store.job(first.job_id)
    assert (found.state, found.plan, found.acceptances) == ("Matched", first.plan, ())
    assert net.chain.called == ["openMatched"]


async def _unreachable(*_: object) -> None:
    raise ChainUnreachable("no answer from the test chain", "it is down")


async def test_after_the_lease_the_machines_own_word_counts(net: Net) -> None:
    """A job whose client vanished does not block machines that have dropped it."""
    net.serve((1, 0, 30), max_requests=1, memory_bytes=2**30)
    await net.tick()
    await net.daemon.matchmaker.open(sign_order(make_order(nonce=1)))
    await net.pass_time(4)
    with pytest.raises(NoCapacity):
        await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)))
    await net.pass_time(3)
    job = await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)))
    assert job.state == "Matched"


async def test_more_orders_at_once_than_it_can_hold_are_turned_away(net: Net) -> None:
    net.serve((1, 0, 30), max_requests=10_000, kv_free_tokens=10**6, memory_bytes=2**30)
    await net.tick()
    askers = [key(200 + number) for number in range(MAX_UNDER_WAY // MAX_OF_ONE + 1)]
    net.chain.prepaid |= {asker.address: 10**9 for asker in askers}
    orders = [
        sign_order(make_order(requester=asker.address, nonce=nonce), asker)
        for asker in askers
        for nonce in range(MAX_OF_ONE + 3)
    ]
    found = await asyncio.gather(
        *(net.daemon.matchmaker.open(signed) for signed in orders), return_exceptions=True
    )
    refused = [each for each in found if isinstance(each, NoCapacity)]
    assert net.chain.called == ["openMatched"] * MAX_UNDER_WAY
    assert len(refused) == len(orders) - MAX_UNDER_WAY
    # The last two find the matcher full.
    assert sum("of this requester" in each.why for each in refused) == 3 * (len(askers) - 2)


# --- in line ---


async def opened(net: Net, nonce: int, **changes: object) -> Job:
    return await net.daemon.matchmaker.open(sign_order(make_order(nonce=nonce, **changes)))


async def in_line(net: Net, nonce: int, **changes: object) -> asyncio.Task[Job]:
    """An order that has reached its place in the line."""
    before = net.daemon.world.waiting
    task = asyncio.create_task(opened(net, nonce, **changes))
    for _ in range(200):
        if net.daemon.world.waiting > before or task.done():
            return task
        await asyncio.sleep(0.01)
    raise AssertionError("it neither waits nor is answered")


@pytest.fixture
def patient(net: Net) -> Net:
    """A matcher whose orders wait for up to a minute, and one machine with room for two jobs."""
    net.daemon.matchmaker._queue_s = 60.0
    net.serve((1, 0, 30), max_requests=2, memory_bytes=2**30)
    return net


async def test_orders_that_find_every_slot_taken_are_matched_first_come_first_served(
    patient: Net,
) -> None:
    await patient.tick()
    running = [await opened(patient, nonce) for nonce in (1, 2)]
    waiting = [await in_line(patient, nonce) for nonce in (3, 4, 5)]
    assert patient.daemon.world.waiting == 3 and not any(task.done() for task in waiting)
    for number, job in enumerate(running):
        patient.daemon.world.release(job.job_id, int(patient.clock.now() * 1000))
        assert (await asyncio.wait_for(waiting[number], 30)).state == "Matched"
    assert not waiting[2].done() and patient.daemon.world.waiting == 1
    waiting[2].cancel()


async def test_whose_orders_fill_the_line_makes_a_newcomer_wait_for_one_of_them(
    patient: Net,
) -> None:
    await patient.tick()
    running = [await opened(patient, nonce) for nonce in (1, 2)]
    many = [await in_line(patient, nonce) for nonce in (3, 4, 5, 6)]
    newcomer = key(200)
    patient.chain.prepaid[newcomer.address] = 10**9
    order = sign_order(make_order(requester=newcomer.address), newcomer)
    asking = asyncio.create_task(patient.daemon.matchmaker.open(order))
    async with asyncio.timeout(30):
        while patient.daemon.world.waiting < 5:
            await asyncio.sleep(0.01)
    for number, job in enumerate(running):
        patient.daemon.world.release(job.job_id, int(patient.clock.now() * 1000))
        assert (await asyncio.wait_for((many[0], asking)[number], 30)).state == "Matched"
    assert not any(task.done() for task in many[1:])
    for task in many[1:]:
        task.cancel()


async def test_a_machine_that_joins_ends_the_wait(patient: Net) -> None:
    await patient.tick()
    for nonce in (1, 2):
        await opened(patient, nonce)
    waiting = [await in_line(patient, nonce) for nonce in (3, 4)]
    patient.serve((2, 0, 30), max_requests=2, memory_bytes=2**30)
    await patient.tick()
    jobs = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert {job.plan[0].operator for job in jobs} == {machine_key(2).address}


async def test_who_waits_too_long_is_refused_with_the_reason(patient: Net) -> None:
    await patient.tick()
    for nonce in (1, 2):
        await opened(patient, nonce)
    task = await in_line(patient, 3)
    await patient.clock.advance(59)
    assert not task.done()
    await patient.clock.advance(2)
    with pytest.raises(NoCapacity, match="every pipeline"):
        await asyncio.wait_for(task, 30)
    assert patient.daemon.world.waiting == 0


async def test_an_order_does_not_wait_for_what_it_could_never_have(patient: Net) -> None:
    await patient.tick()
    for nonce in (1, 2):
        await opened(patient, nonce)
    with pytest.raises(NoCapacity, match="pays"):
        await asyncio.wait_for(opened(patient, 3, price_in=1), 30)
    with pytest.raises(NoCapacity, match="stake"):
        await asyncio.wait_for(opened(patient, 4, min_stake=10**12), 30)


async def test_half_of_the_time_that_is_left_is_kept_for_the_work(patient: Net) -> None:
    await patient.tick()
    for nonce in (1, 2):
        await opened(patient, nonce)
    task = await in_line(patient, 3, deadline=NOW_S + 20)
    await patient.clock.advance(9)
    assert not task.done()
    await patient.clock.advance(2)
    with pytest.raises(NoCapacity):
        await asyncio.wait_for(task, 30)


async def test_whoever_waits_for_cheap_machines_holds_up_nobody_else(patient: Net) -> None:
    patient.serve((2, 0, 30), max_requests=2, memory_bytes=2**30, price_in=2 * PRICE_IN)
    await patient.tick()
    dear = {"price_in": 2 * PRICE_IN}
    for nonce in (1, 2):
        await opened(patient, nonce)
    cheap = await in_line(patient, 3)
    rich = await asyncio.wait_for(opened(patient, 4, **dear), 30)
    assert rich.plan[0].operator == machine_key(2).address
    assert not cheap.done()
    cheap.cancel()


# --- an order that goes on with another ---


def op(number: int) -> str:
    return machine_key(number).address


async def broken(net: Net, *spares: tuple[int, int, int]) -> Job:
    """A job of machines 1, 2 and 3, before these others came."""
    net.serve(*SPLIT)
    await net.tick()
    job = await net.daemon.matchmaker.open(sign_order(make_order(nonce=1)))
    net.serve(*spares)
    await net.tick()
    return job


async def confirmed(net: Net) -> frozenset[str]:
    """Whom the matcher passes over, once it has asked those who were called silent."""
    await asyncio.gather(*net.daemon.matchmaker._background)
    return net.daemon.world.avoided(int(net.clock.now() * 1000))


async def test_an_order_goes_on_with_who_is_left_and_a_stand_in(net: Net) -> None:
    job = await broken(net, (7, 10, 20))
    net.stage(2).is_gone = True
    goes_on = Continuation(job.job_id, frozenset({op(2)}))
    found = await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)), goes_on)
    assert [stage.operator for stage in found.plan] == [op(1), op(7), op(3)]
    assert {net.stage(n).continued for n in (1, 7, 3)} == {job.order_hash}
    assert op(2) in await confirmed(net)


async def test_who_is_called_silent_and_answers_is_kept_from_nobody_else(net: Net) -> None:
    job = await broken(net, (7, 10, 20))
    goes_on = Continuation(job.job_id, frozenset({op(2)}))
    found = await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)), goes_on)
    assert op(2) not in {stage.operator for stage in found.plan}, "a requester may do without it"
    assert op(2) not in await confirmed(net)


async def test_who_answers_while_its_step_hangs_is_as_good_as_silent(net: Net) -> None:
    job = await broken(net, (7, 10, 20))
    net.stage(2).pong = wire.Pong(step_ms=30_000, due_ms=100)
    goes_on = Continuation(job.job_id, frozenset({op(2)}))
    await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)), goes_on)
    assert op(2) in await confirmed(net)


async def test_only_stages_of_the_broken_job_can_be_called_silent(net: Net) -> None:
    job = await broken(net, (7, 10, 20), (8, 10, 20))
    net.stage(8).is_gone = True
    goes_on = Continuation(job.job_id, frozenset({op(8)}))
    found = await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)), goes_on)
    assert [stage.operator for stage in found.plan] == [op(1), op(2), op(3)]
    assert op(8) not in await confirmed(net)


async def test_nobody_goes_on_with_a_strangers_job(net: Net) -> None:
    job = await broken(net, (7, 10, 20))
    stranger = key(77)
    net.chain.prepaid[stranger.address] = net.chain.prepaid[REQUESTER.address]
    order = make_order(requester=stranger.address, nonce=2)
    goes_on = Continuation(job.job_id, frozenset({op(2)}))
    found = await net.daemon.matchmaker.open(sign_order(order, stranger), goes_on)
    assert [stage.operator for stage in found.plan] == [op(1), op(7), op(3)], "its own is without"
    assert net.stage(1).continued is None
    assert not await confirmed(net)


async def test_what_was_lost_in_another_matchers_job_is_avoided_by_this_order_alone(
    net: Net,
) -> None:
    net.serve(*SPLIT, (7, 10, 20))
    await net.tick()
    goes_on = Continuation("0x" + "ee" * 32, frozenset({op(2)}))
    found = await net.daemon.matchmaker.open(sign_order(make_order()), goes_on)
    assert [stage.operator for stage in found.plan] == [op(1), op(7), op(3)]
    assert net.stage(1).continued is None
    assert not await confirmed(net), "other orders go by what this matcher sees itself"


async def test_a_stand_in_that_is_gone_too_is_passed_over(net: Net) -> None:
    job = await broken(net, (7, 10, 20), (8, 10, 20))
    net.stage(2).is_gone = net.stage(7).is_gone = True
    goes_on = Continuation(job.job_id, frozenset({op(2)}))
    found = await net.daemon.matchmaker.open(sign_order(make_order(nonce=2)), goes_on)
    assert [stage.operator for stage in found.plan] == [op(1), op(8), op(3)]
