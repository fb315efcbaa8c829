"""A miner dies between acceptance and receipt: who finishes the job, and who pays for what?"""

from __future__ import annotations

from core.protocol.types import JobState
from devnet.ledger import changes
from tests.swarm.books import expected_changes
from tests.swarm.world import MARKS, WITHIN_S, World, answers_in, prompt, tokens_in, until

pytestmark = MARKS
MIDDLE = ("miner-2", "miner-4")
SHORT, LONG = 3, 90
LINES = [
    *(prompt(f"short-{i}", f"Say {i}.", SHORT) for i in range(2)),
    *(prompt(f"long-{i}", f"Tell me about {i}.", LONG) for i in range(4)),
]


async def test_a_replica_finishes_the_job_with_equal_output_and_finished_work_is_paid(
    world: World,
) -> None:
    file = world.requests("replaced", LINES)
    done, undisturbed = await world.submit(file)
    (first,) = await world.jobs_of(done.result)
    await world.ended(first.job_id, JobState.SETTLED)
    before, known = await world.holdings(), len(await world.jobs())

    ongoing, out = await world.begin_submit(file)
    opened = await world.matched(known, ongoing)
    victim = await world.party_of(opened.plan[1].operator)

    async def two_answered() -> bool:
        return world.answered(opened.job_id) >= 2

    await until(
        two_answered, within_s=WITHIN_S, what="the short requests are answered", poll_s=0.02
    )
    assert ongoing.is_running
    await world.net.processes.kill(victim)
    done = (await ongoing.done()).expect(0)

    assert answers_in(out) == answers_in(undisturbed)
    cut, rest = await world.jobs_of(done.result)
    assert rest.plan[1].operator != cut.plan[1].operator
    assert await world.party_of(rest.plan[1].operator) in MIDDLE
    assert (cut.order.requests, rest.order.requests) == (6, 4)
    jobs = [await world.ended(job.job_id, JobState.SETTLED) for job in (cut, rest)]
    produced = sum(tokens_in(out).values())
    assert jobs[0].tokens_out + jobs[1].tokens_out == produced, "every token is paid once"
    assert jobs[0].tokens_out > 2 * SHORT, "what was cut in mid-answer is paid for what it gave"
    observed = changes(before, await world.holdings())
    assert observed == await expected_changes(world, jobs)
    assert sum(observed.values()) == 0
    assert observed[victim] > 0


async def test_without_a_replica_the_client_says_so_and_pays_for_what_came(
    world: World,
) -> None:
    before, known = await world.holdings(), len(await world.jobs())
    await world.net.processes.kill("miner-4")
    lines = [prompt(f"lost-{i}", f"Tell me about {i}.", 3 * LONG) for i in range(4)]
    ongoing, _ = await world.begin_submit(world.requests("lost", lines), "--deadline", "5m")
    job = await world.under_way(known, ongoing)
    assert await world.party_of(job.plan[1].operator) == "miner-2"
    await world.net.processes.kill("miner-2")
    failed = (await ongoing.done()).expect(7)
    assert failed.error["code"] == "E-MATCH-01"
    assert failed.result["finished"] == 0
    ended = await world.ended(job.job_id, JobState.SETTLED)
    assert 0 < ended.tokens_out < 12 * LONG
    assert changes(before, await world.holdings()) == await expected_changes(world, [ended])
