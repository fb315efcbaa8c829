"""Does a submission go on without the program that began it, and who may serve it?"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from core.protocol.types import JobState
from tests.swarm.world import MARKS, WITHIN_S, Done, World, answers_in, prompt, until

pytestmark = MARKS
#: Tokens of an answer that has not ended when its first line is shown.
LONG = 400
#: Such answers, most of which wait for the others' slots while another program starts.
MANY = 64


async def test_a_detached_submission_is_followed_and_fetched_by_its_job(world: World) -> None:
    lines = [prompt(f"d{i}", f"River number {i}?", 12) for i in range(2)]
    done, out = await world.submit(
        world.requests("detached", lines), "--detach", "--name", "rivers", "--verify", "full"
    )
    (job,) = done.result["jobs"]
    waited = await world.run("requester-1", "client", "jobs", "wait", job, "--json")
    assert waited.result["on_chain"] == "settled"
    (seen,) = await world.jobs_of(done.result)
    assert seen.order.terms_hash != "0x" + "00" * 32, "what is to be audited is signed"
    fetched = await world.run(
        "requester-1", "client", "jobs", "fetch", job, "--out", str(out), "--json"
    )
    assert fetched.result["missing"] == []
    assert sorted(answers_in(out)) == ["d0", "d1"]


async def test_a_detached_submission_is_ended_by_cancelling_its_job_and_pays_for_what_came(
    world: World,
) -> None:
    done, job, _ = await _begun(world, "endless", "e", MANY)
    await world.run("requester-1", "client", "jobs", "cancel", job, "--yes", "--json")
    (seen,) = await world.jobs_of(done.result)
    seen = await world.ended(seen.job_id, JobState.SETTLED)
    assert 0 < seen.tokens_out < MANY * LONG
    said = (await world.run("requester-1", "client", "jobs", "show", job, "--json")).result
    assert (said["running"], said["tokens"]) == (False, seen.tokens_out)


async def test_what_a_killed_submission_left_is_paid_by_cancelling_its_job(
    world: World,
) -> None:
    done, job, _ = await _begun(world, "killed", "k")
    os.killpg(os.getpgid(done.result["pid"]), signal.SIGKILL)
    await world.run("requester-1", "client", "jobs", "cancel", job, "--yes", "--json")
    (seen,) = await world.jobs_of(done.result)
    seen = await world.ended(seen.job_id, JobState.SETTLED)
    assert 0 < seen.tokens_out < LONG
    shown = await world.run("requester-1", "client", "jobs", "show", job, "--json")
    assert (shown.result["running"], shown.result["tokens"]) == (False, seen.tokens_out)


async def test_a_killed_submissions_lines_are_paid_for_before_they_are_asked_again(
    world: World,
) -> None:
    done, job, file = await _begun(world, "again", "r")
    os.killpg(os.getpgid(done.result["pid"]), signal.SIGKILL)
    out = world.folder / "asked-again"
    said = ("requester-1", "client", "jobs", "retry-failed", job, str(file), "--yes", "--json")
    again = await world.run(*said, "--out", str(out))
    assert again.result["finished"] == len(answers_in(out)) == 1
    (seen,) = await world.jobs_of(done.result)
    await world.ended(seen.job_id, JobState.SETTLED)


async def _begun(world: World, folder: str, name: str, answers: int = 1) -> tuple[Done, str, Path]:
    """A detached submission of whose answers one is shown, its job and its file.

    One answer alone is shown as it comes, of several the first that is complete.
    """
    names = [name, *(f"{name}{number}" for number in range(1, answers))]
    file = world.requests(folder, [prompt(n, "Tell me everything.", LONG) for n in names])
    done, _ = await world.submit(file, "--detach")
    (job,) = done.result["jobs"]
    log = Path(done.result["log"])

    def said_so_far() -> list[str]:
        return log.read_text().splitlines()

    async def has_text() -> bool:
        return any(line.startswith(f"  {name}") for line in said_so_far())

    await until(has_text, within_s=WITHIN_S, what="an answer has begun")
    return done, job, file


async def test_replicas_that_would_share_a_machine_are_refused(world: World) -> None:
    file = world.requests("twice", [prompt("q", "Who serves?", 4)])
    refused, _ = await world.submit(file, "--replicas", "2", expect=7)
    assert "machines for 1 of 2 replicas" in refused.error["what"]
