"""How much of a pipeline's throughput is left behind the gateway, at the speed of a real one?"""

from __future__ import annotations

import asyncio
import time

import httpx2

from benchmarks.gateway.asking import direct, stream
from benchmarks.gateway.toy_server import Toy, toy_gateway, toy_model
from benchmarks.table import Row

STREAMS, TOKENS, TOKEN_S = 16, 200, 0.02
REACH = 0.02
QUICK = {"STREAMS": 2, "TOKENS": 3}


async def _through() -> float:
    """Tokens per second of all streams together, through the gateway."""
    with toy_gateway(TOKEN_S) as gateway:
        async with httpx2.AsyncClient(timeout=120) as client:
            await asyncio.gather(*(stream(client, gateway, 2) for _ in range(STREAMS)))
            began = time.perf_counter()
            done = await asyncio.gather(*(stream(client, gateway, TOKENS) for _ in range(STREAMS)))
            took_s = time.perf_counter() - began
    assert all(one.is_whole for one in done)
    return STREAMS * TOKENS / took_s


async def _alone() -> float:
    toy, model = Toy(TOKEN_S), toy_model()
    began = time.perf_counter()
    await asyncio.gather(*(direct(toy, model, TOKENS) for _ in range(STREAMS)))
    return STREAMS * TOKENS / (time.perf_counter() - began)


def rows() -> list[Row]:
    through, alone = asyncio.run(_through()), asyncio.run(_alone())
    lost = max(0.0, 1 - through / alone)
    return [
        Row(
            f"throughput lost, {STREAMS} streams",
            f"<= {REACH:.0%}",
            f"{lost:.2%} ({through:.0f} tokens/s)",
            f"{alone:.0f} tokens/s without it",
            "0 %",
            lost <= REACH,
        )
    ]
