"""A machine that says no more without dying: frozen, or with a compute thread that hangs.

Answers go on, and it comes back.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from client.jobs.batch import BatchResult
from client.orders.orders import Prompt
from miner.serving.job_table import Refused
from tests.failover.books import check_money, check_receipts
from tests.failover.test_killed import CUTS, TOKENS, carried, check_answers
from tests.town.machines import Machine
from tests.town.orders import REQUESTER
from tests.town.town import Town, Watch, prompts

#: Noticing takes a second where nobody else computes; a client alone would wait for twenty.
NOTICED_S = 15.0


async def begin(
    town: Town, watch: Watch, done: int = 6, requests: int = 3
) -> tuple[list[Prompt], asyncio.Task[BatchResult]]:
    batch = prompts(requests, tokens=TOKENS)
    return batch, await town.under_way(batch, watch, done)


@pytest.mark.parametrize("stage", [0, 2])
async def test_a_stage_freezes_in_mid_answer_and_comes_back(town: Town, stage: int) -> None:
    await town.start(*CUTS, CUTS[stage])
    watch = Watch()
    batch, running = await begin(town, watch)
    frozen = town.machine(town.matches[0].plan[stage].operator)
    await frozen.freeze()
    at = time.monotonic()
    await watch.until(lambda: bool(watch.lost))
    assert time.monotonic() - at < NOTICED_S
    assert "sign of life" in str(watch.lost[0])
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    assert carried(town) == 3 * 2
    check_money(town, result, watch)
    check_receipts(town, {frozen.signer.address})
    await comes_back(town, frozen, stage)


async def comes_back(town: Town, frozen: Machine, stage: int) -> None:
    """Its late frames change nothing, and the next order is answered with it."""
    seen = sum(m.stage.counts["request_failed_E-CHECK-01"] for m in town.machines)
    frozen.thaw()
    frozen.offset_s += 2.0
    frozen.stage.tick()
    stand_in = town.machine(town.matches[-1].plan[stage].operator)
    await stand_in.kill()
    town.machines.remove(stand_in)
    paid_before, locked = dict(town.acks), dict(town.chain.locked)
    watch = Watch()
    batch = prompts(2, tokens=TOKENS)
    result = await town.begin(batch, watch)
    assert not result.unfinished
    check_answers(town, watch, batch)
    assert frozen.signer.address in {s.operator for s in town.matches[-1].plan}
    assert not watch.lost
    assert len(town.acks) == len(paid_before) + 1
    assert dict(town.chain.locked) == locked
    assert sum(m.stage.counts["request_failed_E-CHECK-01"] for m in town.machines) == seen
    town.machines.append(stand_in)


async def test_a_stage_thaws_while_answers_go_on_without_it(town: Town) -> None:
    await town.start(*CUTS, CUTS[1])
    watch = Watch()
    batch, running = await begin(town, watch)
    frozen = town.machine(town.matches[0].plan[1].operator)
    await frozen.freeze()
    await watch.until(lambda: len(town.matches) > 1)
    frozen.thaw()
    result = await running
    assert not result.unfinished
    assert len(town.matches) == 2
    check_answers(town, watch, batch)
    check_money(town, result, watch)
    check_receipts(town, {frozen.signer.address})
    await asyncio.gather(*(town.machine(m.signer.address).stage.flush(2.0) for m in town.machines))


async def test_a_thawed_stage_ends_no_answer_that_goes_on_elsewhere(town: Town) -> None:
    """Only the client missed it: the old pipeline could go on to the end, and would sign for more
    than the client has of it.
    """
    machines = await town.start(*CUTS, CUTS[1])
    for machine in machines:
        assert machine.stage._neighbours is not None
        machine.stage._neighbours.on_lost = lambda *_: None
    watch = Watch()
    batch, running = await begin(town, watch)
    frozen = town.machine(town.matches[0].plan[1].operator)

    async def thaw(_: object) -> None:
        frozen.thaw()
        old = [m for m in machines[:3] if m is not frozen]
        await watch.until(
            lambda: any(m.stage.counts["rows_late"] or m.stage.requests_done for m in old)
        )

    town.while_matching = thaw
    await frozen.freeze()
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    check_money(town, result, watch)
    check_receipts(town, {frozen.signer.address})


async def test_a_stage_freezes_too_shortly_to_be_missed(town: Town) -> None:
    await town.start(*CUTS)
    watch = Watch()
    batch, running = await begin(town, watch)
    machine = town.machine(town.matches[0].plan[1].operator)
    await machine.freeze()
    await asyncio.sleep(0.3)
    machine.thaw()
    result = await running
    assert not result.unfinished
    assert len(town.matches) == 1
    check_answers(town, watch, batch)
    check_money(town, result, watch)


async def test_two_stages_freeze_at_once(town: Town) -> None:
    await town.start(*CUTS, CUTS[0], CUTS[1])
    watch = Watch()
    batch, running = await begin(town, watch)
    dead = {town.matches[0].plan[stage].operator for stage in (0, 1)}
    await asyncio.gather(*(town.machine(one).freeze() for one in dead))
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    check_money(town, result, watch)
    check_receipts(town, dead)


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_stage_that_answers_but_hangs_in_a_step_is_left(town: Town, stage: int) -> None:
    await town.start(*CUTS, CUTS[stage])
    watch = Watch()
    batch, running = await begin(town, watch)
    hung = town.machine(town.matches[0].plan[stage].operator)
    hung.hang()
    at = time.monotonic()
    await watch.until(lambda: bool(watch.lost))
    assert time.monotonic() - at < NOTICED_S
    assert "its step of" in str(watch.lost[0])
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    assert town.matches[1].plan[stage].operator != hung.signer.address
    check_money(town, result, watch)


async def test_slow_steps_are_no_hang(town: Town) -> None:
    """Every step takes five times what it took until now, which is still less than anybody may be
    silent.
    """
    machines = await town.start(*CUTS)
    watch = Watch()
    batch, running = await begin(town, watch)
    for machine in machines:
        machine.slow_down(0.05)
    result = await running
    assert not watch.lost
    assert len(town.matches) == 1
    assert not result.unfinished
    check_answers(town, watch, batch)


# --- only the connection is lost ---


async def test_a_client_that_loses_its_stream_goes_on_in_the_same_job(town: Town) -> None:
    await town.start(*CUTS)
    for stage in range(3):
        town.forget()
        watch = Watch()
        batch, running = await begin(town, watch)
        victim = town.machine(town.matches[0].plan[stage].operator)
        assert victim.reset(REQUESTER.address) == 1
        result = await running
        assert not result.unfinished
        assert len(town.matches) == 1, "nothing was ordered anew"
        assert not watch.lost
        check_answers(town, watch, batch)
        check_money(town, result, watch)
        check_receipts(town)


async def test_stages_lose_their_streams_to_each_other(town: Town) -> None:
    """What was on the way is lost with the stream.

    Nobody is called a liar or a dead machine for it.
    """
    await town.start(*CUTS)
    for stage in range(3):
        town.forget()
        watch = Watch()
        batch, running = await begin(town, watch)
        victim = town.machine(town.matches[0].plan[stage].operator)
        for machine in town.machines:
            victim.reset(machine.signer.address)
        result = await running
        assert not result.unfinished
        assert all(not goes.lost for goes in town.goes if goes)
        check_answers(town, watch, batch)
        check_money(town, result, watch)
        check_receipts(town)


async def test_a_stage_that_comes_back_empty_is_as_good_as_lost(town: Town) -> None:
    """Killed and started again at once: it accepts streams, and knows nothing of what it did."""
    await town.start(*CUTS, CUTS[1])
    watch = Watch()
    batch, running = await begin(town, watch)
    victim = town.machine(town.matches[0].plan[1].operator)
    for job in victim.table.jobs.values():
        for run in list(job.runs.values()):
            run._task.cancel()
    victim.table.jobs.clear()
    victim.reset()
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    check_money(town, result, watch)


async def test_a_stage_that_comes_back_with_a_backup_signs_nothing_more_for_its_orders(
    town: Town,
) -> None:
    """What it signed after the backup is not known to it, and may be in its requester's hands."""
    await town.start(*CUTS, CUTS[1])
    watch = Watch()
    batch, running = await begin(town, watch)
    match = town.matches[0]
    victim = town.machine(match.plan[1].operator)
    (order_hash,) = victim.table.jobs
    for job in victim.table.jobs.values():
        for run in list(job.runs.values()):
            run._task.cancel()
    victim.table.jobs.clear()
    assert victim.store.heed_restoring("the only time") == 1
    victim.reset()
    result = await running
    assert not result.unfinished
    with pytest.raises(Refused, match="put back from a backup"):
        await victim.table.prove(order_hash)
    assert (await victim.table.find(order_hash)).is_complete, "it has no slot of its own"
    check_answers(town, watch, batch)
    check_money(town, result, watch)
