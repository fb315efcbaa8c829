"""A request that waits for memory at one stage is given up by none, however long it waits."""

from __future__ import annotations

import asyncio

import pytest

from core.protocol import wire
from miner.stage import SILENT_REQUEST_S
from tests.miner.conftest import Start
from tests.miner.network import FakeChain, Machine, Requester, greedy, key, reference

PROMPT = [104, 101, 108, 108, 111]
CUTS = ((0, 1), (1, 3), (3, 4))


async def fill(machine: Machine) -> list[tuple[str, int]]:
    """Give all of a machine's memory to requests that never end."""
    compute, shard = machine.compute, machine.shard
    keys: list[tuple[str, int]] = []
    while compute.kv_free_tokens > 0:
        some = [("others", len(keys) + i) for i in range(32)]
        keys += some
        row = [1] if shard.is_first else bytes(4 * shard.hidden)
        run = compute.feed if shard.is_last else compute.rows
        steps = [run(each, row, most_rows=shard.context) for each in some]
        waiting = {asyncio.ensure_future(step) for step in steps}
        _, left = await asyncio.wait(waiting, timeout=1.0)
        if left:
            break
    return keys


@pytest.mark.parametrize("full", [0, 1, 2])
async def test_a_request_waits_for_memory_longer_than_any_silence(
    start: Start, chain: FakeChain, full: int
) -> None:
    machines = await start(*CUTS)
    keys = await fill(machines[full])
    requester = Requester(key(50), chain, machines)
    requester.order([(PROMPT, greedy(6))])
    heard: list[wire.Waiting] = []
    told = requester._handler_of

    def handler_of(stage: int):  # type: ignore[no-untyped-def]
        handle = told(stage)

        async def listen(channel, frame):  # type: ignore[no-untyped-def]
            if isinstance(frame.message, wire.Waiting):
                heard.append(frame.message)
            await handle(channel, frame)

        return listen

    requester._handler_of = handler_of  # type: ignore[method-assign]
    await requester.propose(key(40))
    requester.match()
    await requester.open()
    await requester.submit(0)
    this = (requester.order_hash, 0)
    await requester.until(lambda: machines[full].compute.is_waiting(this))
    for _ in range(4):
        for machine in machines:
            machine.offset_s += 0.4 * SILENT_REQUEST_S
        machines[full].stage.tick()
        known = len(heard)
        await requester.until(lambda known=known: len(heard) > known)
        await requester.until(lambda: all(_is_fresh(m, requester.order_hash) for m in machines))
        for machine in machines:
            machine.stage.tick()
    assert not requester.failures
    assert {message.stage for message in heard} == {full}
    await asyncio.gather(*(machines[full].compute.drop(each) for each in keys))
    await requester.finished([0])
    model = machines[0].model_dir
    assert requester.tokens[0] == reference(model, PROMPT, greedy(6), 0)
    await requester.close()


def _is_fresh(machine: Machine, order_hash: str) -> bool:
    run = machine.desk.jobs[order_hash].runs.get(0)
    return run is None or machine.now() - run.seen_at < 0.3 * SILENT_REQUEST_S
