"""Single requests over sessions between real processes: order, receipts and the chain agree."""

from __future__ import annotations

import json
from typing import Any

from client.context import open_store
from core.protocol.types import JobState
from core.protocol.units import whole_units
from devnet.ledger import changes
from tests.swarm.books import expected_changes
from tests.swarm.world import MARKS, WITHIN_S, Ongoing, World, until

pytestmark = MARKS
ASKER = "tests.swarm.asker"


async def ask(world: World, *arguments: object) -> Ongoing:
    return await world.begin("requester-1", ASKER, *map(str, arguments))


def heard(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def kept(world: World, job_id: str) -> tuple[str, int, int]:
    """State of a session in the requester's records, and tokens in and out that are due by them:
    those of receipts, or what was paid on the way where that is more.
    """
    store = open_store(world.settings_of("requester-1"))
    try:
        row = next(row for row in store.jobs() if row.job_id == job_id)
        signed = [s.receipt for _, s in store.receipts(job_id) if s.receipt.stage == 0]
        tokens_in, tokens_out = store.paid(job_id)
        told = sum(r.tokens_in for r in signed), sum(r.tokens_out for r in signed)
        return row.state, max(tokens_in, told[0]), max(tokens_out, told[1])
    finally:
        store.close()


async def test_twenty_requests_take_one_order_and_everybody_counts_the_same(world: World) -> None:
    before, known = await world.holdings(), len(await world.jobs())
    done = (await (await ask(world, 20, 4, 6)).done()).expect(0)
    answers = [line for line in heard(done.out) if "answered" in line]
    assert len(answers) == 20 and not any(line["partial"] for line in answers)
    (job,) = (await world.jobs())[known:]
    assert job.order.is_open and {line["job"] for line in answers} == {job.job_id}
    job = await world.session_closed(job.job_id)
    produced = sum(len(line["tokens"]) for line in answers)
    asked = sum(line["tokens_in"] for line in answers)
    assert (job.tokens_in, job.tokens_out) == (asked, produced)
    assert kept(world, job.job_id) == ("acknowledged", asked, produced)
    observed = changes(before, await world.holdings())
    assert observed == await expected_changes(world, [job])
    assert whole_units(-observed["requester-1"]) == sum(line["cost"] for line in answers)


async def test_a_stage_killed_in_mid_answer_is_a_pause_and_both_sessions_are_paid(
    world: World,
) -> None:
    calm = (await (await ask(world, 3, 3, 60)).done()).expect(0)
    expected = {line["answered"]: line["tokens"] for line in heard(calm.out) if "answered" in line}
    await world.session_closed((await world.jobs())[-1].job_id)
    before, known = await world.holdings(), len(await world.jobs())
    ongoing = await ask(world, 3, 3, 60)
    job = await world.matched(known, ongoing)

    async def all_answer() -> bool:
        return sum(b'"began"' in line for line in ongoing.lines) == 3

    await until(all_answer, within_s=WITHIN_S, what="three answers have begun", poll_s=0.01)
    await world.net.processes.kill(await world.party_of(job.plan[1].operator))
    done = (await ongoing.done()).expect(0)
    answers = [line for line in heard(done.out) if "answered" in line]
    assert {line["answered"]: line["tokens"] for line in answers} == expected
    cut, rest = (await world.jobs())[known:]
    assert rest.plan[1].operator != cut.plan[1].operator
    ended = [
        await world.session_closed(rest.job_id),
        await world.ended(cut.job_id, JobState.SETTLED),
    ]
    produced = sum(len(line["tokens"]) for line in answers)
    assert sum(one.tokens_out for one in ended) == produced, "every token is paid once"
    observed = changes(before, await world.holdings())
    assert observed == await expected_changes(world, ended)
    assert whole_units(-observed["requester-1"]) == sum(line["cost"] for line in answers)


async def test_a_killed_clients_session_is_settled_by_the_next_and_nothing_is_paid_twice(
    world: World,
) -> None:
    before, known = await world.holdings(), len(await world.jobs())
    ongoing = await ask(world, 40, 2, 20)
    job = await world.matched(known, ongoing)

    async def some_answered() -> bool:
        return world.answered(job.job_id) >= 5

    await until(some_answered, within_s=WITHIN_S, what="some requests are answered", poll_s=0.05)
    ongoing.kill()
    await ongoing.ended
    state, asked, produced = kept(world, job.job_id)
    assert state == "open" and produced
    done = (await (await ask(world, 1, 1, 4)).done()).expect(0)
    assert [line["answered"] for line in heard(done.out) if "answered" in line] == [0]
    first, second = (await world.jobs())[known:]
    assert first.job_id == job.job_id
    ended = [
        await world.session_closed(second.job_id),
        await world.ended(first.job_id, JobState.SETTLED),
    ]
    state, asked_then, produced_then = kept(world, job.job_id)
    assert state == "acknowledged"
    assert asked_then >= asked and produced_then >= produced, "its stages said what had come since"
    assert (ended[1].tokens_in, ended[1].tokens_out) == (asked_then, produced_then)
    assert changes(before, await world.holdings()) == await expected_changes(world, ended)
