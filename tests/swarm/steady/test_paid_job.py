"""Does a job pay exactly what was agreed, and can everybody see it afterwards?"""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from core.protocol.types import JobState
from devnet.ledger import changes
from tests.swarm.books import expected_changes
from tests.swarm.world import LAYERS, MARKS, World, answers_in, prompt

pytestmark = MARKS
TEXTS = ("Why is the sky blue?", "Count to ten.", "Name a river.", "Say hello.")


async def test_every_account_changes_by_the_contracts_arithmetic_to_the_unit(world: World) -> None:
    lines = [prompt(f"q{i}", text, 12 + i) for i, text in enumerate(TEXTS)]
    before = await world.holdings()
    done, out = await world.submit(world.requests("paid", lines))
    (job,) = await world.jobs_of(done.result)
    job = await world.ended(job.job_id, JobState.SETTLED)

    observed = changes(before, await world.holdings())
    assert observed == await expected_changes(world, [job])
    assert sum(observed.values()) == 0
    miners = [await world.party_of(stage.operator) for stage in job.plan]
    assert sorted(miners) == ["miner-1", "miner-2", "miner-3"]
    assert all(observed[miner] > 0 for miner in miners)
    assert (job.plan[0].layer_from, job.plan[-1].layer_to) == (0, LAYERS)

    answers = answers_in(out)
    assert sorted(answers) == ["q0", "q1", "q2", "q3"]
    usage = [
        json.loads(line)["response"]["body"]["usage"]
        for line in (out / "output.jsonl").read_text().splitlines()
    ]
    assert sum(u["prompt_tokens"] for u in usage) == job.tokens_in
    assert sum(u["completion_tokens"] for u in usage) == job.tokens_out

    name = done.result["jobs"][0]
    verified = await world.run("requester-1", "client", "receipts", "verify", name, "--json")
    assert verified.result["on_chain"] == "settled"
    listed = await world.run("requester-1", "client", "jobs", "ls", "--json")
    row = next(row for row in listed.result if row["job"] == name)
    assert (row["requests"], row["finished"]) == (4, 4)
    shown = await world.run("requester-1", "client", "jobs", "show", name, "--json")
    assert shown.result["on_chain"] == "settled"
    assert len(shown.result["plan"]) == 3


async def test_a_quote_signs_nothing_and_a_chat_is_a_small_paid_job(world: World) -> None:
    before = await world.holdings()
    file = world.requests("quoted", [prompt("q", "What would this cost?", 16)])
    quote = await world.run("requester-1", "client", "quote", str(file), "--json")
    assert quote.result["requests"] == "1 (0 lines rejected)"
    assert quote.result["route"].count("→") == 2
    assert changes(before, await world.holdings()) == {}

    known = {job.job_id for job in await world.jobs()}
    chat = await world.run("requester-1", "client", "chat", "hi", "--max-tokens", "8", "--json")
    assert 1 <= chat.result["tokens"] <= 8
    (job,) = [job for job in await world.jobs() if job.job_id not in known]
    assert job.order.is_open and job.order.requests == 1
    job = await world.session_closed(job.job_id)
    assert changes(before, await world.holdings()) == await expected_changes(world, [job])


async def test_a_miner_and_the_matcher_tell_what_they_do(world: World) -> None:
    status = (await world.run("miner-1", "miner", "status", "--json")).result
    assert status["state"] == "SERVING"
    assert status["chainReachable"] is True
    owner = await world.chain.read("MinerRegistry", "ownerOf", status["operator"])
    assert owner.lower() == world.net.addresses["miner-1"].lower()

    for url, expected in (
        (world.running("miner-1").url, "headrace_free_requests"),
        (world.net.matcher_url, "headrace_registry_peers"),
    ):
        families = {
            f.name: f for f in text_string_to_metric_families(await world.get(f"{url}/metrics"))
        }
        assert expected in families
        assert all(name.startswith("headrace_") for name in families)
        assert families[expected].samples
