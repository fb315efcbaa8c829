"""What do others notice of a key with a small rate that hands in batches without end?"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx2

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import GATEWAY
from benchmarks.siege.measuring import Attack
from benchmarks.table import Row
from tests.swarm.world import MODEL

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("batches", "batches without an end", (GATEWAY,), ("--rate", "4/m"))
AT_ONCE, LINES = 4, 10_000


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    lines = _lines()
    await begin()
    headers = {"authorization": f"Bearer {target.key}"}
    base = f"{target.gateway_url}/v1"
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60) as http:
        await asyncio.gather(*(_hand_in(http, lines, done) for _ in range(AT_ONCE)))


def _lines() -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What?"}], "max_tokens": 8}
    lines = (
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
        for number in range(LINES)
    )
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


async def _hand_in(http: httpx2.AsyncClient, lines: bytes, done: Counter[str]) -> None:
    while True:
        try:
            await _batch(http, lines, done)
        except httpx2.HTTPError as error:
            done[type(error).__name__] += 1


async def _batch(http: httpx2.AsyncClient, lines: bytes, done: Counter[str]) -> None:
    """One file and the batch of its lines."""
    sent = await http.post("/files", files={"file": ("a.jsonl", lines)}, data={"purpose": "batch"})
    done[f"files {sent.status_code}"] += 1
    if not sent.is_success:
        await asyncio.sleep(0.2)
        return
    asked: dict[str, Any] = {
        "input_file_id": sent.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    made = await http.post("/batches", json=asked)
    done[f"batches {made.status_code}"] += 1


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
