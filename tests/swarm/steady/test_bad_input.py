"""What does a person who made a mistake get: which exit code, and does it say what to do?"""

from __future__ import annotations

import json
import re

from core.protocol.network_file import USD
from core.protocol.types import JobState
from devnet.ledger import changes
from tests.swarm.books import expected_changes
from tests.swarm.world import CONTEXT_TOKENS, MARKS, World, prompt

pytestmark = MARKS


async def test_a_bad_line_fails_with_a_reason_and_the_others_run(world: World) -> None:
    lines = [
        prompt("first", "Say something.", 6),
        '{"custom_id": "broken", "body": {"prompt": "unclosed',
        prompt("too-long", "x" * 600, 6),
        prompt("last", "Say something else.", 6),
    ]
    before = await world.holdings()
    done, out = await world.submit(world.requests("mixed", lines))
    assert (done.result["finished"], done.result["failed"]) == (2, 2)
    answered = [json.loads(t)["custom_id"] for t in (out / "output.jsonl").read_text().splitlines()]
    assert sorted(answered) == ["first", "last"]

    errors = {
        line["custom_id"]: line["error"]
        for line in map(json.loads, (out / "errors.jsonl").read_text().splitlines())
    }
    assert sorted(errors) == ["line-2", "too-long"]
    assert "not JSON" in errors["line-2"]["why"]
    assert errors["line-2"]["details"]["line_number"] == 2
    numbers = errors["too-long"]["details"]
    assert numbers["prompt_tokens"] > 600
    assert (numbers["max_new_tokens"], numbers["context_tokens"]) == (6, CONTEXT_TOKENS)

    jobs = [
        await world.ended(job.job_id, JobState.SETTLED) for job in await world.jobs_of(done.result)
    ]
    assert changes(before, await world.holdings()) == await expected_changes(world, jobs)


async def test_an_unknown_model_is_named_with_the_known_ones(world: World) -> None:
    file = world.requests("unknown", [prompt("q", "hi", 4)])
    failed = await world.run(
        "requester-1",
        "client",
        "submit",
        str(file),
        "--model",
        "gpt-17",
        "--yes",
        "--json",
        expect=2,
    )
    assert "gpt-17" in failed.error["what"]
    assert "tiny" in failed.error["why"]


async def test_an_amount_without_a_unit_is_refused(world: World) -> None:
    failed = await world.run(
        "requester-1", "client", "wallet", "deposit", "5", "--yes", "--json", expect=2
    )
    assert "5usd" in json.dumps(failed.error)


async def test_a_wrong_password_opens_no_wallet(world: World) -> None:
    wrong = world.folder / "wrong-password"
    wrong.write_text("not it\n")
    wrong.chmod(0o600)
    failed = await world.run(
        "requester-1",
        "client",
        "wallet",
        "deposit",
        "1usd",
        "--yes",
        "--json",
        expect=4,
        environ={"HEADRACE_PASSWORD_FILE": str(wrong)},
    )
    assert failed.error["code"] == "E-WALLET-02"


async def test_an_empty_wallet_hears_have_need_short_by_and_fix(world: World) -> None:
    made = await world.run("requester-1", "client", "wallet", "new", "poor", "--json")
    file = world.requests("poor", [prompt("q", "hi", 4)])
    failed = await world.run(
        "requester-1",
        "client",
        "submit",
        str(file),
        "--wallet",
        "poor",
        "--yes",
        "--json",
        expect=5,
    )
    details = failed.error["details"]
    assert details["address"] == made.result["address"]
    assert details["have"] == "0"
    assert int(details["need"]) == int(details["short_by"]) > 0
    assert made.result["address"] in details["fix"]


async def test_a_stake_below_the_minimum_is_refused_with_the_minimum(world: World) -> None:
    failed = await world.run(
        "juror-1",
        "miner",
        "register",
        "--stake",
        "50usd",
        "--operator",
        "new",
        "--yes",
        "--json",
        expect=5,
    )
    details = failed.error["details"]
    assert (details["have"], details["need"]) == (str(50 * USD), str(100 * USD))
    assert "100usd" in details["fix"]
    miner = await world.chain.read("MinerRegistry", "minerOf", world.net.addresses["juror-1"])
    assert miner["stake"] == 0


async def test_stake_cannot_be_taken_before_unbonding_and_it_says_when(world: World) -> None:
    await world.net.register_miner("juror-2", "100usd")
    asked = await world.run("juror-2", "miner", "withdraw", "--yes", "--json")
    assert asked.result["leaving"] == "100usd"
    refused = await world.run("juror-2", "miner", "withdraw", "--yes", "--json", expect=6)
    miner = await world.chain.read("MinerRegistry", "minerOf", world.net.addresses["juror-2"])
    assert refused.error["details"]["error"] == "ExitNotReady"
    assert str(miner["leaveAt"]) in refused.error["why"]
    seconds = re.search(r"in (\d+) s", refused.error["next"])
    assert seconds is not None
    assert 0 < int(seconds[1]) <= world.net.parameters.unbond_s
    assert miner["leaving"] == 100 * USD
