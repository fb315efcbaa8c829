"""Do five hundred streams at once all end well, and how much processor does a token take?"""

from __future__ import annotations

import asyncio
import time

import httpx2

from benchmarks.gateway.asking import stream
from benchmarks.gateway.toy_server import toy_gateway
from benchmarks.table import Row

STREAMS, TOKENS, TOKEN_S = 500, 40, 0.1
QUICK = {"STREAMS": 3, "TOKENS": 2, "TOKEN_S": 0.01}


async def _measure() -> tuple[int, float, float]:
    """Whole streams, seconds in all, processor seconds of the gateway per token."""
    with toy_gateway(TOKEN_S) as gateway:
        limits = httpx2.Limits(max_connections=STREAMS, max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=300, limits=limits) as client:
            await stream(client, gateway, 2)
            before_s, began = gateway.cpu_s, time.perf_counter()
            done = await asyncio.gather(
                *(stream(client, gateway, TOKENS) for _ in range(STREAMS)), return_exceptions=True
            )
            took_s, cpu_s = time.perf_counter() - began, gateway.cpu_s - before_s
    whole = sum(not isinstance(one, BaseException) and one.is_whole for one in done)
    return whole, took_s, cpu_s / (STREAMS * TOKENS)


def rows() -> list[Row]:
    whole, took_s, cpu_s = asyncio.run(_measure())
    return [
        Row(
            f"{STREAMS} streams at once without an error",
            f"{STREAMS}",
            f"{whole} in {took_s:.1f} s, {cpu_s * 1e6:.0f} µs of processor per token",
            "",
            f"{TOKENS * TOKEN_S:.1f} s",
            whole == STREAMS,
        )
    ]
