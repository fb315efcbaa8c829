"""A request that waits for memory at one stage is given up by none, however long it waits.

Who brings too much waits as well.
"""

from __future__ import annotations

import asyncio

import pytest

from core.protocol import wire
from miner.compute import compute as compute_module
from miner.compute.compute import Compute, Key, RequestSpec
from miner.serving.stage import SILENT_REQUEST_S
from tests.miner.conftest import Start
from tests.town.chain import FakeChain
from tests.town.machines import Machine, greedy, reference
from tests.town.orders import key
from tests.town.requester import Requester

PROMPT = [104, 101, 108, 108, 111]
CUTS = ((0, 1), (1, 3), (3, 4))
KV_BYTES = 2**18


async def step(machine: Machine, key: Key, most_rows: int) -> None:
    """One row of a request that goes on for ever."""
    compute, shard = machine.compute, machine.shard
    row = [1] if shard.is_first else bytes(4 * shard.hidden)
    put = compute.feed if shard.is_last else compute.rows
    await put(RequestSpec(key, most_rows=most_rows), row)


async def fill(machine: Machine) -> list[Key]:
    """Have all of a machine's memory promised to requests of others."""
    keys: list[Key] = []
    while (left := machine.compute.kv_free_tokens) > 0:
        keys.append(("others", len(keys)))
        await step(machine, keys[-1], machine.compute.longest_request(left))
    return keys


class Listener(Requester):
    """A requester that remembers who asked it to wait."""

    def __init__(self, chain: FakeChain, machines: list[Machine]) -> None:
        super().__init__(key(50), chain, machines)
        self.waits: list[wire.Waiting] = []

    def _handler_of(self, stage: int):  # type: ignore[no-untyped-def]
        handle = super()._handler_of(stage)

        async def listen(channel, frame):  # type: ignore[no-untyped-def]
            if isinstance(frame.message, wire.Waiting):
                self.waits.append(frame.message)
            await handle(channel, frame)

        return listen


async def test_a_request_waits_for_memory_longer_than_any_silence(
    start: Start, chain: FakeChain
) -> None:
    machines = await start(*CUTS, kv_bytes=KV_BYTES)
    for full, machine in enumerate(machines):
        squatters = await fill(machine)
        requester = Listener(chain, machines)
        requester.order([(PROMPT, greedy(6))], nonce=1 + full)
        await requester.propose(key(40))
        requester.match()
        await requester.open()
        await requester.submit(0)
        this = (requester.order_hash, 0)
        await requester.until(lambda: machine.compute.is_waiting(this))  # noqa: B023
        for told in range(1, 4):
            for each in machines:
                each.offset_s += 0.4 * SILENT_REQUEST_S
            machine.stage.tick()
            await requester.until(lambda: len(requester.waits) >= told)  # noqa: B023
            order = requester.order_hash
            await requester.until(lambda: all(is_fresh(m, order) for m in machines))  # noqa: B023
            for each in machines:
                each.stage.tick()
        assert not requester.failures
        assert {message.stage for message in requester.waits} == {full}
        assert not requester.tokens
        await asyncio.gather(*(machine.compute.drop(each) for each in squatters))
        await requester.finished([0])
        assert requester.tokens[0] == reference(machine.model_dir, PROMPT, greedy(6), 0)
        await requester.until(lambda: not any(m.compute.kv_tokens for m in machines))
        await requester.close()


def is_fresh(machine: Machine, order_hash: str) -> bool:
    run = machine.table.jobs[order_hash].runs.get(0)
    return run is None or machine.now() - run.seen_at < 0.3 * SILENT_REQUEST_S


async def test_who_brings_more_rows_than_soon_can_run_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is held up; the stream of the sender is read no further until it goes on."""
    monkeypatch.setattr(compute_module, "MAX_WAITING_ROWS", 8)
    (machine,) = await start((0, 4))
    compute, jobs = machine.compute, [("job", i) for i in range(10)]
    await asyncio.gather(*(compute.feed(RequestSpec(job, most_rows=4), [1]) for job in jobs))
    holds, goes_on = await hold(compute)
    await compute.wait_for_room()
    steps = [asyncio.ensure_future(compute.feed(RequestSpec(job), [2])) for job in jobs]
    for _ in range(3):  # they are submitted together, in the loop's next turn
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await compute.wait_for_room()
    goes_on()
    await holds
    async with asyncio.timeout(20):
        await asyncio.gather(*steps)
        await compute.wait_for_room()


async def hold(compute: Compute):  # type: ignore[no-untyped-def]
    """Keep the compute thread busy; returns what ends when it is let go, and how to."""
    import threading

    began, until = threading.Event(), threading.Event()

    def errand() -> None:
        began.set()
        until.wait(30)

    task = asyncio.ensure_future(compute._run(errand))
    async with asyncio.timeout(20):
        while not began.is_set():
            await asyncio.sleep(0.001)
    return task, until.set


async def test_a_storm_of_cancellations_leaves_nothing_behind(
    start: Start, chain: FakeChain
) -> None:
    """Requests are given up at every moment, some twice, some before they came.

    What had begun is signed for, as far as it came. The others are answered as ever.
    """
    machines = await start(*CUTS, max_requests=64)
    requester = Requester(key(50), chain, machines)
    prompts = [
        ([30 + (7 * i + 3 * j) % 200 for j in range(5 + i % 7)], greedy(8)) for i in range(48)
    ]
    requester.order(prompts)
    await requester.propose(key(40))
    requester.match()
    await requester.open()
    kept = set(range(0, 48, 6))

    async def ask(index: int) -> None:
        if index % 6 == 1:  # before anybody has heard of it
            await cancel(index)
            return
        await asyncio.gather(*(submit_at(stage, index) for stage in (2, 0)))
        if index in kept:
            return
        if index % 6 > 2:
            tokens = 1 + index % 5
            await requester.until(lambda: len(requester.tokens.get(index, ())) >= tokens)
        await cancel(index)
        if index % 6 == 5:
            await cancel(index)

    async def submit_at(stage: int, index: int) -> None:
        answer = (await requester.channels[stage].call(*requester.submission(index))).message
        assert isinstance(answer, wire.Submitted), answer

    async def cancel(index: int) -> None:
        for channel in requester.channels:
            await channel.send(wire.Cancel(order_hash=requester.order_hash, request=index))

    await asyncio.gather(*map(ask, range(48)))
    await requester.finished(kept)
    for index in kept:
        ids, sampling = prompts[index]
        assert requester.tokens[index] == reference(machines[0].model_dir, ids, sampling, index)
    for machine in machines:
        job = machine.table.jobs[requester.order_hash]
        await requester.until(lambda: not job.runs)  # noqa: B023
        await requester.until(lambda: machine.compute.kv_tokens == 0)  # noqa: B023
        assert machine.compute.kv_free_tokens == machine.compute.kv_capacity_tokens
        assert machine.compute.waiting_requests == 0
        assert kept <= job.finished and job.finished | job.over.keys() == set(range(48))
        assert (job.tokens_in, job.tokens_out) == job.done, "promises are taken back"
        machine.stage.tick()
        assert machine.table.free_requests == 64
    assert {failure.code for failure in requester.failures} <= {"E-JOB-REQUEST-OVER"}
    begun = [m.table.jobs[requester.order_hash].finished for m in machines]
    assert begun[0] == begun[1] == begun[2] > kept
    cut = begun[0] - kept
    await requester.until(lambda: all(len(requester.receipts.get(i, {})) == 3 for i in cut))
    for index in cut:
        assert requester.finish[index] in ("cancelled", "length"), "all stages signed for it"
    await requester.close()
