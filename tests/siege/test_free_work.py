"""What can a requester have without paying, alone or with a stage of its own?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from core.protocol import wire
from core.runtime.network.channel import Channel, StreamIdentity, connect
from miner.serving.job_table import CAPS
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import Machine, greedy
from tests.town.orders import DOMAIN, key
from tests.town.requester import Requester

CUTS = ((0, 1), (1, 3), (3, 4))
PROMPT = [5, 6, 7]


async def opened(
    start: Start, chain: FakeChain, new: int, requests: int = 1
) -> tuple[list[Machine], Requester]:
    """Three stages with a job of equal requests, nothing of which was submitted."""
    machines = await start(*CUTS)
    requester = Requester(key(50), chain, machines)
    requester.order([(PROMPT, greedy(new))] * requests)
    await requester.propose(key(40))
    requester.match()
    await requester.open()
    return machines, requester


async def feed(
    channel: Channel, requester: Requester, request: int, starts: Sequence[int], hidden: int
) -> None:
    """Push one row at each of these places."""
    row = np.ones(hidden, "<f4").tobytes()
    for start in starts:
        message = wire.Activations(requester.order_hash, request, start, 1, most_rows=10)
        await channel.send(message, row)


async def as_stage(number: int, machines: Sequence[Machine]) -> Channel:
    """A stream to the stage behind, in the name of this one, the requester's accomplice."""
    after = machines[number + 1]
    identity = StreamIdentity(machines[number].signer, DOMAIN)
    return await connect(after.endpoint, identity, expected=after.signer.address)


@pytest.mark.parametrize("victim", [1, 2], ids=["middle", "last, before Submit"])
async def test_no_stage_takes_more_rows_than_the_order_pays(
    start: Start, chain: FakeChain, victim: int
) -> None:
    machines, requester = await opened(start, chain, 4, requests=3)
    order, machine = requester.signed.order, machines[victim]
    paid = order.max_tokens_in + order.max_tokens_out
    channel = await as_stage(victim - 1, machines)
    for request in range(3):
        rows = range(paid) if request == 0 else range(10)
        await feed(channel, requester, request, rows, machine.shard.hidden)
    job = machine.table.jobs[requester.order_hash]
    await requester.until(lambda: machine.stage.counts[CAPS] > 0)
    assert job.rows_seen <= paid
    machine.offset_s = 120.0
    machine.stage.tick()
    machine.offset_s = 240.0
    machine.stage.tick()
    await requester.until(lambda: machine.compute.kv_tokens == 0)
    before = job.rows_seen
    await feed(channel, requester, 2, range(paid), machine.shard.hidden)
    counts = machine.stage.counts
    await requester.until(lambda: counts[CAPS] + counts["rows_late"] > 1)
    assert job.rows_seen == before, "what was done is done, whatever became of the request"
    await channel.close()
    await requester.close()


async def test_no_stage_runs_more_requests_than_a_job_has_slots(
    start: Start, chain: FakeChain
) -> None:
    machines, requester = await opened(start, chain, 4, requests=64)
    channel = await as_stage(0, machines)
    for request in range(64):
        await feed(channel, requester, request, [0], machines[1].shard.hidden)
    job = machines[1].table.jobs[requester.order_hash]
    await requester.until(lambda: machines[1].stage.counts["E-JOB-BUSY"] >= 48)
    assert len(job.runs) == 16
    await channel.close()
    await requester.close()


@pytest.mark.parametrize("how", ["cancelled", "streams dropped"])
async def test_requests_that_are_given_up_just_before_their_end_are_signed_for(
    start: Start, chain: FakeChain, how: str
) -> None:
    """All stages have all receipts over what was done, so they are paid without the requester."""
    machines, requester = await opened(start, chain, 12, requests=4)
    for request in range(4):
        await requester.submit(request)
    await requester.until(lambda: all(len(requester.tokens.get(i, ())) > 8 for i in range(4)))
    if how == "cancelled":
        for channel in requester.channels:
            for request in range(4):
                await channel.send(wire.Cancel(requester.order_hash, request))
    else:
        await requester.close()
        for machine in machines:
            machine.stage.tick()
            machine.offset_s += 16.0
            machine.stage.tick()
    jobs = [machine.table.jobs[requester.order_hash] for machine in machines]
    await requester.until(lambda: all(len(job.finished) == 4 for job in jobs))
    counts = set()
    for machine, job in zip(machines, jobs, strict=True):
        signed = await machine.book.sign_over(job.stored, range(4))
        counts.add((signed.receipt.tokens_in, signed.receipt.tokens_out))
    assert len(counts) == 1
    assert counts.pop()[1] >= 4 * 9
    await requester.close()


async def test_a_cancel_that_one_stage_alone_hears_keeps_nobody_from_being_paid(
    start: Start, chain: FakeChain
) -> None:
    machines, requester = await opened(start, chain, 12)
    for stage in (1, 2):  # before anything has begun
        await requester.channels[stage].send(wire.Cancel(requester.order_hash, 0))
    await requester.submit(0)
    await requester.until(lambda: len(requester.tokens.get(0, ())) > 2)
    for stage in (0, 1):
        await requester.channels[stage].send(wire.Cancel(requester.order_hash, 0))
    await requester.finished([0])
    assert requester.finish[0] == "length"
    assert [m.table.jobs[requester.order_hash].done for m in machines] == [(3, 12)] * 3
    await requester.close()


async def test_a_request_that_was_not_begun_is_forgotten_by_all(
    start: Start, chain: FakeChain
) -> None:
    machines, requester = await opened(start, chain, 400, requests=9)
    for request in range(9):
        await requester.submit(request)
    first = machines[0].table.jobs[requester.order_hash]
    await requester.until(lambda: first.running == 8)
    assert list(first.waiting) == [8]
    await requester.channels[0].send(wire.Cancel(requester.order_hash, 8))
    jobs = [machine.table.jobs[requester.order_hash] for machine in machines]
    await requester.until(lambda: all(job.over == {8: "cancelled"} for job in jobs))
    assert [failure.request for failure in requester.failures] == [8]
    for request in range(8):
        await requester.channels[2].send(wire.Cancel(requester.order_hash, request))
    await asyncio.wait_for(requester.finished(range(8)), 60)
    assert all(job.is_over for job in jobs)
    await requester.close()
