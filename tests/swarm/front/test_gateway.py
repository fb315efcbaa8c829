"""The official client gets answers from three real miners, and the chain paid what was charged."""

from __future__ import annotations

import asyncio
import io
import json
import time
from typing import Any

import msgspec
import openai

from core.money import pricing
from core.protocol.types import JobState, ModelSpec
from core.protocol.units import whole_units
from devnet.ledger import changes
from tests.swarm.world import MARKS, WITHIN_S, World, until

pytestmark = MARKS
LONG_TOKENS = 400
HELLO: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]


def client_of(world: World, secret: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{world.net.gateway_url}/v1", api_key=secret, timeout=120, max_retries=0
    )


async def test_charged_is_receipts_is_chain_to_the_unit(world: World) -> None:
    before = await world.holdings()
    secret = await world.net.new_key("paid")
    receipts: list[str] = []
    async with client_of(world, secret) as client:
        asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "temperature": 0}
        raw = await client.chat.completions.with_raw_response.create(**asked, max_tokens=12)
        whole = raw.parse()
        receipts.append(raw.headers["x-receipt-id"])
        assert whole.usage is not None and 1 <= whole.usage.completion_tokens <= 12
        assert raw.headers["x-route"].count("mnr_") == 3

        async with client.chat.completions.with_streaming_response.create(
            **asked, max_tokens=12, stream=True
        ) as streamed:
            receipts.append(streamed.headers["x-receipt-id"])
            text = await streamed.text()
        assert text.endswith("data: [DONE]\n\n")
        chunks = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
        said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        assert said == whole.choices[0].message.content

        several = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=HELLO, max_tokens=8, n=3, seed=5, temperature=1.0
        )
        receipts.append(several.headers["x-receipt-id"])
        assert len(several.parse().choices) == 3

        parallel = await asyncio.gather(
            *(
                client.completions.with_raw_response.create(
                    model="tiny", prompt=f"Name a river, {i}.", max_tokens=6
                )
                for i in range(6)
            )
        )
        receipts += [answer.headers["x-receipt-id"] for answer in parallel]
        batch_units = await _batch(client)
        shown = [await _receipt(world, secret, name) for name in receipts]
    assert all(len(a["receipts"]) == 3 for r in shown for a in r["answers"])
    receipt_units = sum(r["cost_units"] for r in shown)

    await world.net.processes.stop("gateway", grace_s=90)
    jobs = await _all_ended(world)
    model_id = jobs[0].order.model_id
    spec = msgspec.convert(await world.chain.read("ModelRegistry", "specOf", model_id), ModelSpec)
    observed = changes(before, await world.holdings())
    (key,) = [k for k in await _keys(world) if k["name"] == "paid"]
    charged = world.settings_of("requester-1").token(key["spent"])
    assert charged == receipt_units + batch_units
    assert whole_units(-observed["requester-1"]) == charged
    on_chain = [
        pricing.split(job.order, job.plan, spec, job.tokens_in, job.tokens_out) for job in jobs
    ]
    assert sum(whole_units(split.paid) for split in on_chain) == charged
    assert sum(observed.values()) == 0
    await world.net.start_gateway()


async def test_a_client_that_leaves_pays_for_what_came(world: World) -> None:
    secret = await world.net.new_key("leaver")
    async with (
        client_of(world, secret) as client,
        client.chat.completions.with_streaming_response.create(
            model="tiny",
            messages=HELLO,
            max_tokens=LONG_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as streamed,
    ):
        name, count = streamed.headers["x-receipt-id"], 0
        async for line in streamed.iter_lines():
            count += line.startswith("data: ")
            if count == 5:
                break

    async def stopped() -> bool:
        states = [await world.status_of(party) for party in world.profiles]
        return not any(state["activeRequests"] for state in states)

    await until(stopped, within_s=WITHIN_S, what="the miners stop", poll_s=0.05)

    async def told() -> dict[str, Any] | None:
        found = await _receipt(world, secret, name)
        return found if found["state"] != "running" else None

    left = await until(told, within_s=WITHIN_S, what="it is charged")
    assert left["state"] == "cancelled"
    assert 1 <= left["tokens_out"] < LONG_TOKENS
    (key,) = [k for k in await _keys(world) if k["name"] == "leaver"]
    spent = world.settings_of("requester-1").token(key["spent"])
    assert (spent, key["reserved"]) == (left["cost_units"], "0usd")


async def _batch(client: openai.AsyncOpenAI) -> int:
    """Run a small batch; what it cost."""
    lines = [
        {
            "custom_id": f"b{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "tiny", "messages": HELLO, "max_tokens": 5 + i, "temperature": 0},
        }
        for i in range(5)
    ]
    data = io.BytesIO("".join(f"{json.dumps(one)}\n" for one in [*lines, {"bad": 1}]).encode())
    data.name = "batch.jsonl"
    file = await client.files.create(file=data, purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + WITHIN_S
    while batch.status not in ("completed", "failed") and time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        batch = await client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (5, 1)
    assert batch.output_file_id is not None and batch.model_extra is not None
    output = (await client.files.content(batch.output_file_id)).text
    assert len(output.splitlines()) == 5
    ours = batch.model_extra["headrace"]
    signed = (await client.files.content(ours["receipts_file_id"])).text
    assert all(
        len(answer["receipts"]) == 3
        for line in map(json.loads, signed.splitlines())
        for answer in line["answers"]
    )
    return int(ours["cost_units"])


async def _receipt(world: World, secret: str, name: str) -> dict[str, Any]:
    import httpx2

    async with httpx2.AsyncClient(timeout=30) as client:
        headers = {"authorization": f"Bearer {secret}"}
        answer = await client.get(f"{world.net.gateway_url}/v1/receipts/{name}", headers=headers)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


async def _keys(world: World) -> list[dict[str, Any]]:
    done = await world.run("requester-1", "client", "keys", "ls", "--json")
    found: list[dict[str, Any]] = done.result
    return found


async def _all_ended(world: World) -> list[Any]:
    """Every job, once each has ended; sessions end a while after they are closed."""

    async def ended() -> list[Any] | None:
        jobs = await world.jobs()
        if all(job.state in (JobState.SETTLED, JobState.EXPIRED) for job in jobs):
            return jobs
        await world.pass_time(30)
        return None

    found: list[Any] = await until(ended, within_s=WITHIN_S, what="jobs end", poll_s=1.0)
    return found
