"""What do others notice of bodies of 30 MiB, and of prompts just below the limit, with a key?"""

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
from client.gateway.app import MAX_BODY_BYTES
from tests.swarm.world import CONTEXT_TOKENS, MODEL

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("bodies", "long prompts and bodies of 30 MiB", (GATEWAY,))
AT_ONCE = 8
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    bodies = _bodies()
    headers = {"authorization": f"Bearer {target.key}", "content-type": "application/json"}
    base = target.gateway_url
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60) as http:
        await begin()
        await asyncio.gather(
            *(post_on(http, *bodies[number % len(bodies)], done) for number in range(AT_ONCE))
        )


def _bodies() -> list[tuple[str, bytes]]:
    """(path, body): of many messages, of one text, of ids, of words, and what no limit allows."""
    room = MAX_BODY_BYTES - 4096
    empty = {"role": "user", "content": ""}
    many = [empty] * (room // (len(json.dumps(empty)) + 2))
    asked: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [{"role": "user", "content": "a" * room}]}),
        (CHAT, {"messages": many}),
        (COMPLETIONS, {"prompt": [1] * (room // 3)}),
        (COMPLETIONS, {"prompt": "a" * (4 * CONTEXT_TOKENS), "max_tokens": 1}),
    ]
    found = [(path, json.dumps({"model": MODEL, **body}).encode()) for path, body in asked]
    return [*found, (CHAT, b'{"messages": "' + b"a" * (30 * 2**20) + b'"}')]


async def post_on(http: httpx2.AsyncClient, path: str, body: bytes, done: Counter[str]) -> None:
    """Post a body without end; counts answers by their status, and what broke."""
    while True:
        try:
            answer = await http.post(path, content=body)
            done[f"answers {answer.status_code}"] += 1
        except httpx2.HTTPError as error:
            done[type(error).__name__] += 1


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
