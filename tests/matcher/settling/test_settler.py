"""A job's end: acknowledged, delivered for a silent requester, finalized, expired; done once."""

from __future__ import annotations

import pytest

from core.money import pricing
from core.protocol.errors import CheckFailed, IdInvalid
from core.protocol.types import JobState
from core.protocol.units import whole_units
from matcher.records.jobs import Job
from tests.town.chain import CLOSE_DELAY_S
from tests.town.fleet import SPEC, machine_key, make_ack, make_order, make_receipt
from tests.town.matcher import Net
from tests.town.orders import REQUESTER, key, sign_order

SPLIT = ((1, 0, 10), (2, 10, 20), (3, 20, 30))


async def opened(net: Net, **changes: object) -> Job:
    net.serve(*SPLIT)
    await net.tick()
    return await net.daemon.matchmaker.open(sign_order(make_order(**changes)))


def finish(net: Net, *requests: int) -> None:
    for number in (1, 2, 3):
        net.stage(number).finished |= set(requests)


def result_root(job: Job, requests: tuple[int, ...] = (0, 1)) -> str:
    last = make_receipt(job.signed.order, job.plan, 2, requests, machine_key(3))
    return last.receipt.output_root


def state(net: Net, job: Job) -> str:
    found = net.daemon.store.job(job.job_id)
    assert found is not None
    return found.state


async def test_an_acknowledgement_settles_at_once_and_the_rest_returns(net: Net) -> None:
    before = net.chain.balance_nano(REQUESTER.address)
    job = await opened(net)
    finish(net, 0, 1)
    done = await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
    split = pricing.split(job.signed.order, job.plan, SPEC, 20, 60)
    assert done.state == "Settled"
    assert done.end_tx
    assert (done.tokens_in, done.tokens_out) == (20, 60)
    spent = split.locked - split.refund
    assert done.refunded_units == whole_units(split.refund)
    assert done.paid_units == whole_units(spent)
    assert net.chain.balance_nano(REQUESTER.address) == before - spent
    assert net.daemon.world.reservations == 0


async def test_the_same_acknowledgement_twice_settles_once(net: Net) -> None:
    job = await opened(net)
    finish(net, 0, 1)
    ack = make_ack(job, 20, 60, result_root(job))
    first = await net.daemon.settler.receive_ack(job.job_id, ack)
    again = await net.daemon.settler.receive_ack(job.job_id, ack)
    assert again.state == first.state == "Settled"
    assert net.chain.called.count("settleAck") == 1


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out", "signer", "why"),
    [
        (21, 60, REQUESTER, "exceed the order's caps"),
        (20, 65, REQUESTER, "exceed the order's caps"),
        (20, 60, key(9), "not signed by"),
        (10, 30, REQUESTER, "show 20 and 60"),
        (0, 0, REQUESTER, "show 20 and 60"),
    ],
)
async def test_an_acknowledgement_that_is_forged_or_underpays_is_refused(
    net: Net, tokens_in: int, tokens_out: int, signer: object, why: str
) -> None:
    job = await opened(net)
    finish(net, 0, 1)
    ack = make_ack(job, tokens_in, tokens_out, result_root(job), signer)  # type: ignore[arg-type]
    with pytest.raises(CheckFailed) as caught:
        await net.daemon.settler.receive_ack(job.job_id, ack)
    assert why in caught.value.why
    assert "settleAck" not in net.chain.called


async def test_a_partial_acknowledgement_counts_when_a_stage_is_dead(net: Net) -> None:
    """The requester pays for what is finished; the rest of the lock comes back now."""
    job = await opened(net)
    net.stage(1).finished = {0}
    net.stage(3).finished = {0}
    net.stage(2).is_gone = True
    done = await net.daemon.settler.receive_ack(
        job.job_id, make_ack(job, 10, 30, result_root(job, (0,)))
    )
    split = pricing.split(job.signed.order, job.plan, SPEC, 10, 30)
    assert (done.state, done.refunded_units) == ("Settled", whole_units(split.refund))


async def test_an_acknowledgement_of_an_unknown_job_is_not_found(net: Net) -> None:
    job = await opened(net)
    with pytest.raises(IdInvalid):
        await net.daemon.settler.receive_ack(
            "0x" + "12" * 32, make_ack(job, 1, 1, result_root(job))
        )


async def test_an_acknowledgement_received_while_the_chain_is_away_is_used_later(net: Net) -> None:
    job = await opened(net)
    finish(net, 0, 1)
    net.chain.is_down = True
    waiting = await net.daemon.settler.receive_ack(
        job.job_id, make_ack(job, 20, 60, result_root(job))
    )
    assert waiting.state == "Matched"
    net.chain.is_down = False
    await net.pass_time(5)
    assert state(net, job) == "Settled"


async def test_finished_work_of_a_silent_requester_is_delivered_and_finalized(net: Net) -> None:
    job = await opened(net)
    await net.pass_time(5)
    assert state(net, job) == "Matched"
    finish(net, 0, 1)
    await net.pass_time(10)
    assert state(net, job) == "Matched"  # its requester may still acknowledge
    assert net.daemon.world.reservations == 0  # but the machines are free again
    await net.pass_time(20)
    assert state(net, job) == "Delivered"
    await net.pass_time(45)
    assert "finalize" not in net.chain.called
    await net.pass_time(20)
    assert state(net, job) == "Settled"
    assert net.chain.called == ["openMatched", "deliver", "finalize"]
    done = net.daemon.store.job(job.job_id)
    split = pricing.split(job.signed.order, job.plan, SPEC, 20, 60)
    assert done.paid_units == whole_units(split.locked - split.refund)
    assert done.refunded_units == whole_units(split.refund)


async def test_near_the_deadline_finished_work_is_delivered_without_waiting(net: Net) -> None:
    job = await opened(net, deadline=int(net.clock.now()) + 60)
    await net.pass_time(25)
    finish(net, 0, 1)
    await net.pass_time(9)
    assert state(net, job) == "Delivered"


async def test_an_acknowledgement_ends_the_window_early(net: Net) -> None:
    job = await opened(net)
    finish(net, 0, 1)
    await net.pass_time(30)
    assert state(net, job) == "Delivered"
    done = await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
    assert done.state == "Settled"
    assert net.chain.called[-1] == "settleAck"


async def test_a_disputed_job_waits_for_the_ruling(net: Net) -> None:
    job = await opened(net)
    finish(net, 0, 1)
    await net.pass_time(30)
    on_chain = net.chain.jobs[job.job_id]
    on_chain.state, on_chain.open_disputes = JobState.DISPUTED, 1
    await net.pass_time(120)
    assert state(net, job) == "Disputed"
    on_chain.state, on_chain.open_disputes = JobState.DELIVERED, 0
    await net.pass_time(20)
    assert state(net, job) == "Settled"


async def test_work_that_never_finished_expires_and_the_lock_returns(net: Net) -> None:
    before = net.chain.prepaid[REQUESTER.address]
    job = await opened(net, deadline=int(net.clock.now()) + 30)
    net.stage(1).finished = {0, 1}
    await net.pass_time(29 + CLOSE_DELAY_S)
    assert state(net, job) == "Matched"
    await net.pass_time(20)
    assert state(net, job) == "Expired"
    assert net.chain.prepaid[REQUESTER.address] == before
    assert net.chain.called == ["openMatched", "expire"]


async def test_receipts_that_do_not_chain_are_not_delivered(net: Net) -> None:
    job = await opened(net, deadline=int(net.clock.now()) + 60)
    finish(net, 0, 1)
    order, plan, _ = net.stage(2).orders[job.order_hash]
    net.stage(2).orders[job.order_hash] = (order, plan, 0)  # signs for a place that is not its own
    await net.pass_time(70 + CLOSE_DELAY_S)
    assert "deliver" not in net.chain.called
    assert state(net, job) == "Expired"


@pytest.mark.parametrize("function", ["settleAck", "deliver", "finalize", "expire"])
async def test_a_step_whose_answer_is_lost_is_not_done_twice(net: Net, function: str) -> None:
    job = await opened(net, deadline=int(net.clock.now()) + 120)
    if function != "expire":
        finish(net, 0, 1)
    if function == "settleAck":
        net.chain.lose_answers = 1
        await net.daemon.settler.receive_ack(job.job_id, make_ack(job, 20, 60, result_root(job)))
    elif function == "finalize":
        await net.pass_time(40)
        assert state(net, job) == "Delivered"
        net.chain.lose_answers = 1
    else:
        net.chain.lose_answers = 1
    await net.pass_time(200)
    assert net.chain.lose_answers == 0
    assert net.chain.called.count(function) == 1
    done = net.daemon.store.job(job.job_id)
    assert done.state == ("Expired" if function == "expire" else "Settled")
    assert done.end_tx
    assert done.refunded_units is not None


async def test_somebody_elses_step_is_recorded_not_repeated(net: Net) -> None:
    job = await opened(net, deadline=int(net.clock.now()) + 30)
    await net.clock.advance(31 + CLOSE_DELAY_S)
    await net.chain.transact(key(9), "TaskRegistry", "expire", job.signed.order, list(job.plan))
    await net.pass_time(3)
    assert state(net, job) == "Expired"
    assert net.chain.called.count("expire") == 1
