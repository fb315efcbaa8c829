"""Matcher or chain goes away during a job and comes back: the job still ends as agreed."""

from __future__ import annotations

import pytest

from core.protocol.errors import HeadraceError
from core.protocol.types import JobState
from devnet.ledger import changes
from tests.swarm.books import expected_changes
from tests.swarm.world import MARKS, WITHIN_S, World, prompt, until

pytestmark = MARKS


@pytest.mark.parametrize("moment", ["opened", "under way"])
async def test_a_matcher_killed_in_mid_job_settles_it_after_its_restart(
    world: World, moment: str
) -> None:
    before, known = await world.holdings(), len(await world.jobs())
    lines = [prompt(f"m-{i}", f"Tell me about {i}.", 60) for i in range(3)]
    ongoing, _ = await world.begin_submit(world.requests("matcher", lines))
    look = world.matched if moment == "opened" else world.under_way
    job = await look(known, ongoing)
    address = world.net.matcher_url
    await world.net.processes.kill("matcher-1")
    assert ongoing.is_running
    await world.net.start_matcher()
    assert world.net.matcher_url == address

    done = (await ongoing.done()).expect(0)
    assert done.result["finished"] == 3
    job = await world.ended(job.job_id, JobState.SETTLED)
    assert changes(before, await world.holdings()) == await expected_changes(world, [job])


async def test_daemons_outlive_their_chain_and_are_paid_when_it_is_back(world: World) -> None:
    before, known = await world.holdings(), len(await world.jobs())
    lines = [prompt(f"c-{i}", f"Tell me about {i}.", 60) for i in range(3)]
    ongoing, _ = await world.begin_submit(world.requests("chain", lines))
    cut = await world.under_way(known, ongoing)
    pids = {r.name: r.pid for r in world.net.processes.running if r.name != "anvil"}
    block = await world.chain.block_number()
    await world.net.processes.stop("anvil")

    async def noticed() -> bool:
        try:
            matcher = await world.net.ask_matcher("/v1/status")
        except HeadraceError:
            return False
        miners = [await world.status_of(party) for party in world.profiles]
        return not matcher["chain"]["ok"] and not any(m["chainReachable"] for m in miners)

    await until(noticed, within_s=WITHIN_S, what="everybody has noticed that the chain is gone")
    await world.net.start_chain(keep=True)
    assert await world.chain.block_number() >= block

    async def answers() -> bool:
        matcher = await world.net.ask_matcher("/v1/status")
        miners = [await world.status_of(party) for party in world.profiles]
        return bool(matcher["chain"]["ok"]) and all(m["chainReachable"] for m in miners)

    await until(answers, within_s=WITHIN_S, what="everybody follows the chain again")
    now = {r.name: r.pid for r in world.net.processes.running if r.name != "anvil" and r.is_alive}
    assert now == pids

    assert (await ongoing.done()).expect(0).result["finished"] == 3
    again, _ = await world.submit(world.requests("chain-again", [prompt("q", "Hello.", 4)]))
    (new,) = await world.jobs_of(again.result)
    jobs = [await world.ended(j.job_id, JobState.SETTLED) for j in (cut, new)]
    assert changes(before, await world.holdings()) == await expected_changes(world, jobs)
