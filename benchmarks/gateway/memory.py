"""Does the gateway's memory grow from request to request?"""

from __future__ import annotations

import asyncio

import httpx2

from benchmarks.gateway.asking import body
from benchmarks.gateway.toy_server import Running, toy_gateway
from benchmarks.table import Row

REQUESTS, AT_ONCE, TOKENS = 10_000, 20, 4
#: Half of the requests come before the first look, which fills caches and the allocator's pools.
REACH_BYTES = 2 * 2**20
QUICK = {"REQUESTS": 8, "AT_ONCE": 2}


async def _ask(client: httpx2.AsyncClient, gateway: Running, count: int) -> None:
    left = iter(range(count))
    url = f"{gateway.url}/v1/chat/completions"

    async def worker() -> None:
        for number in left:
            asked = body(TOKENS, is_stream=number % 2 == 0)
            (await client.post(url, json=asked, headers=gateway.headers)).raise_for_status()

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _measure() -> tuple[int, int]:
    with toy_gateway() as gateway:
        async with httpx2.AsyncClient(timeout=60) as client:
            await _ask(client, gateway, REQUESTS // 2)
            before = gateway.rss_bytes
            await _ask(client, gateway, REQUESTS - REQUESTS // 2)
            return before, gateway.rss_bytes


def rows() -> list[Row]:
    before, after = asyncio.run(_measure())
    grown = after - before
    return [
        Row(
            f"memory after {REQUESTS} requests",
            f"<= {REACH_BYTES / 2**20:g} MiB more than half-way",
            f"{grown / 2**20:+.2f} MiB ({after / 2**20:.0f} MiB)",
            "",
            "0 MiB",
            grown <= REACH_BYTES,
        )
    ]
