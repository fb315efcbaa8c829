"""The first matcher is killed, frozen or not spoken to: the second one serves, and all are paid."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from core.protocol.types import JobState
from devnet.accounts import environ_of
from devnet.network import program
from devnet.ports import free_ports
from tests.swarm.world import MARKS, WITHIN_S, Done, Ongoing, World, prompt, until

pytestmark = MARKS
FIRST, SECOND = "matcher-1", "matcher-2"


@pytest_asyncio.fixture(loop_scope="package")
async def second(world: World) -> AsyncIterator[str]:
    """A second matcher over the same machines: its URL."""
    (port,) = free_ports(1)
    url, net = f"http://127.0.0.1:{port}", world.net
    matcher = {"listen_port": port, "fee_bps": 200, "ack_grace": "3s", "queue": "5s"}
    net.write_home(SECOND, {"matcher": matcher})
    await net.processes.start(SECOND, program("matcher", "start"), environ_of(net.layout, SECOND))

    async def sees_them() -> bool:
        try:
            async with httpx2.AsyncClient(base_url=url) as http:
                models = (await http.get("/v1/models")).json()["models"]
        except httpx2.HTTPError:
            return False
        return any(model["covered"] for model in models if model["modelId"] == net.model_id)

    await until(sees_them, within_s=WITHIN_S, what="the second matcher sees the machines")
    yield url
    await net.processes.kill(SECOND)


async def begin(world: World, second: str, name: str, *options: str) -> Ongoing:
    """A requester that knows both submits three lines."""
    lines = [prompt(f"{name}-{i}", f"Tell me about {i}.", 40) for i in range(3)]
    out = world.folder / f"{name}-{len(world.begun)}"
    command = ("submit", str(world.requests(name, lines)), "--yes", "--json", "--out", str(out))
    environ = {"HEADRACE_NETWORK__MATCHERS": second}
    return await world.begin("requester-1", "client", *command, *options, environ=environ)


def finished(done: Done) -> Any:
    result = done.expect(0).result
    assert (result["finished"], result["failed"]) == (3, 0)
    return result


async def served_by(world: World, party: str, known: int) -> None:
    """The newest jobs name this matcher, and are paid."""
    jobs = (await world.jobs())[known:]
    assert jobs and jobs[-1].order.matcher == world.net.addresses[party]
    await world.ended(jobs[-1].job_id, JobState.SETTLED)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_batch_is_served_by_the_second_where_the_first_is_gone(
    world: World, second: str, how: str
) -> None:
    known = len(await world.jobs())
    pid = next(r.pid for r in world.net.processes.running if r.name == FIRST)
    if how == "killed":
        await world.net.processes.kill(FIRST)
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        finished(await (await begin(world, second, how)).done())
        await served_by(world, SECOND, known)
    finally:
        if how == "killed":
            await world.net.start_matcher()
        else:
            os.kill(pid, signal.SIGCONT)


async def test_answers_go_on_with_the_second_when_matcher_and_machine_die_together(
    world: World, second: str
) -> None:
    known = len(await world.jobs())
    ongoing = await begin(world, second, "both")
    job = await world.under_way(known, ongoing)
    assert job.order.matcher == world.net.addresses[FIRST]
    middle = await world.party_of(job.plan[1].operator)
    await world.net.processes.kill(FIRST)
    await world.net.processes.kill(middle)

    async def went_on() -> bool:
        return len(await world.jobs()) > known + 1

    await until(went_on, within_s=WITHIN_S, what="another order is matched", poll_s=0.02)
    try:
        finished(await ongoing.done())
        await served_by(world, SECOND, known)
        seen = (await world.jobs())[known:]
        assert len(seen) == 2
    finally:
        await world.net.start_matcher()


async def test_an_order_on_the_chain_is_matched_without_a_word(world: World, second: str) -> None:
    known = len(await world.jobs())
    finished(await (await begin(world, second, "chain", "--on-chain")).done())
    await served_by(world, FIRST, known)
