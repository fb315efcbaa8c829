"""Where may a gateway die, and what have its keys, its stages and the chain come to after that?"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from client.gateway.batches.batches import Batches
from client.gateway.batches.kept_answers import KeptAnswers
from client.gateway.batches.results import BatchResults
from client.gateway.money.ledger import Ledger
from client.jobs.job_run import JobRun
from client.records.store import ClientStore
from client.sessions.session import LiveSession
from core.engine.weights.tokenizer import Tokenizer
from core.money import pricing
from core.protocol.types import SamplingParams
from core.protocol.units import whole_units
from tests.client.gateway.mortal import PATIENCE_S, Mortal, Point
from tests.town.machines import reference
from tests.town.village import Village

OPENING_FEE = 5000
TOKENS, LINES = 24, 12
IN_CHAT = [
    Point(Ledger, "reserve", is_after=True, nth=2),
    Point(ClientStore, "add_order", is_after=True, nth=1),
    Point(ClientStore, "add_session"),
    Point(ClientStore, "add_session", is_after=True),
    Point(LiveSession, "_submit", nth=2),
    Point(LiveSession, "_submit", is_after=True, nth=2),
    Point(LiveSession, "_tell_turn", is_after=True, nth=TOKENS + 7),
    Point(LiveSession, "_record", nth=2),
    Point(LiveSession, "_record", is_after=True, nth=2),
    Point(LiveSession, "_acknowledge", nth=2),
    Point(Ledger, "end", nth=2),
    Point(Ledger, "end", is_after=True, nth=2),
]
WHILE_CANCELLING = [
    Point(Batches, "_ask_to_cancel", is_after=True),
    Point(JobRun, "cut"),
    Point(JobRun, "let_go", is_after=True),
    Point(JobRun, "acknowledge"),
    Point(ClientStore, "set_state", is_after=True),
    Point(Batches, "_end"),
]
IN_BATCH = [
    Point(Batches, "_hold", is_after=True),
    Point(ClientStore, "add_order", is_after=True),
    Point(ClientStore, "add_job"),
    Point(ClientStore, "add_job", is_after=True),
    Point(JobRun, "_submit", is_after=True, nth=3),
    Point(JobRun, "_take_token", is_after=True, nth=100),
    Point(JobRun, "_take_receipt", is_after=True, nth=9),
    Point(KeptAnswers, "keep", nth=4),
    Point(ClientStore, "finish_request", is_after=True, nth=5),
    Point(JobRun, "close_job"),
    Point(JobRun, "acknowledge"),
    Point(ClientStore, "set_state"),
    Point(ClientStore, "set_state", is_after=True, nth=2),
    Point(BatchResults, "outputs"),
    Point(Batches, "_end"),
    Point(Batches, "_end", is_after=True),
]


async def open_up(village: Village) -> None:
    """Two machines that serve its model, for orders that cost a fee to open."""
    village.opening_fee = OPENING_FEE
    await village.start((0, 3), (3, 6))
    village.tend()


def ids_of(number: int) -> list[int]:
    return [30 + (11 * number + 7 * j) % 200 for j in range(7)]


def body(number: int, tokens: int = TOKENS) -> dict[str, Any]:
    return {"model": "tiny", "prompt": ids_of(number), "max_tokens": tokens, "temperature": 0}


def jsonl(lines: int) -> bytes:
    entries = [
        {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions", "body": body(i)}
        for i in range(lines)
    ]
    return "".join(f"{json.dumps(entry)}\n" for entry in entries).encode()


async def accounts(village: Village, mortal: Mortal) -> tuple[int, int]:
    """What keys were charged, and what the chain took from the requester, fees of idle jobs apart.

    Also: each job was paid for just what each of its stages signed.
    """
    charged = (await mortal.run(mortal.gateway.ledger.totals()))["spent_units"]
    taken = 0
    for match in village.matches:
        job = village.chain.jobs[match.job_id]
        counts = job.tokens_in, job.tokens_out
        if any(counts):
            due = pricing.split(match.signed.order, match.plan, village.spec, *counts)
            taken += whole_units(due.paid)
        for stage in match.plan:
            known = [m for m in village.machines if m.signer.address == stage.operator]
            for machine in known:  # one that is lost signs no more
                leaves = machine.store.leaves(match.order_hash, match.plan_hash).values()
                signed_in = sum(kept.leaf.tokens_in for kept in leaves)
                assert (signed_in, sum(kept.leaf.tokens_out for kept in leaves)) == counts
    return charged, taken


async def is_quiet(village: Village, mortal: Mortal) -> bool:
    """Whether nothing is reserved, and every job has ended."""
    totals = await mortal.run(mortal.gateway.ledger.totals())
    left = [m for m in village.matches if village.chain.locked.get(m.job_id)]
    return not totals["reserved_units"] and not left


async def begin_batch(mortal: Mortal, secret: str, lines: int) -> str:
    """The id of a batch that was made."""
    files = {"file": ("in.jsonl", jsonl(lines))}
    uploaded = await mortal.post(secret, "/files", files=files, data={"purpose": "batch"})
    asked = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    made = await mortal.post(secret, "/batches", json=asked)
    return str(made.json()["id"])


async def ended(
    mortal: Mortal, secret: str, name: str, within_s: float = PATIENCE_S
) -> dict[str, Any]:
    """The batch, once it has ended."""
    found: dict[str, Any] = {}

    async def is_over() -> bool:
        found.update((await mortal.get(secret, f"/batches/{name}")).json())
        return found["status"] in ("completed", "failed", "expired", "cancelled")

    await mortal.until(is_over, within_s)
    return found


async def check_answers(mortal: Mortal, secret: str, batch: dict[str, Any], model_dir: Path) -> int:
    """Every line of the output once and whole; how many there are."""
    if batch["output_file_id"] is None:
        return 0
    output = (await mortal.get(secret, f"/files/{batch['output_file_id']}/content")).text
    answered = [json.loads(line) for line in output.splitlines()]
    assert len({entry["custom_id"] for entry in answered}) == len(answered)
    tokenizer = Tokenizer(model_dir)
    for entry in answered:
        number = int(entry["custom_id"].removeprefix("line-"))
        sampling = SamplingParams(max_new_tokens=TOKENS, key_index=0)
        whole = reference(model_dir, tuple(ids_of(number)), sampling, 0)
        told = entry["response"]["body"]
        assert told["usage"]["completion_tokens"] == len(whole)
        assert told["choices"][0]["text"] == tokenizer.answer_text(whole)
    return len(answered)


async def some_tokens(village: Village) -> bool:
    """Whether every request that runs at the last stage has some."""
    runs = [
        run
        for machine in village.machines
        for job in machine.table.jobs.values()
        if job.stored.is_last
        for run in job.runs.values()
    ]
    return bool(runs) and all(len(run.tokens) >= TOKENS // 2 - 1 for run in runs)


async def killed_in_a_chat(village: Village, point: Point) -> str:
    """A gateway that dies there while it answers two requests; their key."""
    gateway = await Mortal(village).begin(point)
    secret = await gateway.new_key()

    async def ask() -> None:
        for number in range(2):
            await gateway.post(secret, "/completions", json=body(number))

    asking = asyncio.create_task(ask())
    await gateway.dead()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return secret


async def killed_in_a_batch(village: Village, point: Point) -> tuple[str, str]:
    """A gateway that dies there while it runs a batch; its key and the batch."""
    gateway = await Mortal(village).begin(point)
    secret = await gateway.new_key()
    name = await begin_batch(gateway, secret, LINES)
    await gateway.dead()
    return secret, name


async def killed_while_cancelling(village: Village, point: Point) -> tuple[str, str]:
    """A gateway that dies there while a batch, half of whose tokens are there, is cancelled.

    The village is held: stages that end an answer by themselves sign for more than is cut.
    """
    gateway = await Mortal(village).begin(point)
    secret = await gateway.new_key()
    name = await begin_batch(gateway, secret, LINES)
    await gateway.until(lambda: some_tokens(village))
    with suppress(Exception):
        async with asyncio.timeout(5):
            await gateway.post(secret, f"/batches/{name}/cancel")
    await gateway.dead()
    return secret, name
