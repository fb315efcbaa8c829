"""What do others notice of deep and of huge JSON at the matcher's `/v1/plan`?"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx2

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import GATEWAY, MATCHER
from benchmarks.siege.bodies import post_on
from benchmarks.siege.measuring import Attack
from benchmarks.table import Row
from matcher.planning.planning import MAX_LIMIT_S, MAX_MACHINES, MAX_PLAN_BODY_BYTES
from scheduler.methods.methods import METHODS

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("plans", "deep and huge JSON at /v1/plan", (MATCHER, GATEWAY))
AT_ONCE, PLAN = 8, "/v1/plan"


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    async with httpx2.AsyncClient(base_url=target.matcher_url, timeout=120) as http:
        fleet = await http.get("/v1/fleet", params={"model": target.model_id})
        bodies = _bodies(fleet.raise_for_status().json()["document"])
        await begin()
        await asyncio.gather(
            *(post_on(http, PLAN, bodies[number % len(bodies)], done) for number in range(AT_ONCE))
        )


def _bodies(document: dict[str, Any]) -> list[bytes]:
    """Deep, wide, long, and a fleet as large as may be asked about, by every method."""
    room = MAX_PLAN_BODY_BYTES - 4096
    head, tail = b'{"methods": ["a"], "document": {"a": ', b"}}"
    deep = head + b"[" * (room // 2) + b"]" * (room // 2) + tail
    wide = head + b"[" + b"[]," * (room // 3 - 1) + b"[]]" + tail
    names = (
        head + json.dumps({f"n{number}": number for number in range(room // 20)}).encode() + tail
    )
    machines = [
        {**document["machines"][number % len(document["machines"])], "id": f"m{number}"}
        for number in range(MAX_MACHINES)
    ]
    large = {
        "document": {**document, "machines": machines, "links": {"default_ms": 1.0}},
        "methods": list(METHODS)[:16],
        "limit_s": MAX_LIMIT_S,
    }
    return [deep, wide, names, json.dumps(large).encode()]


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
