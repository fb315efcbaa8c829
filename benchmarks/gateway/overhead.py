"""How much later does the first token come through the gateway?"""

from __future__ import annotations

import asyncio
from statistics import median

import httpx2

from benchmarks.gateway.asking import direct, stream
from benchmarks.gateway.toy_server import Toy, toy_gateway, toy_model
from benchmarks.table import Row

REQUESTS, WARM_UP, TOKENS = 200, 30, 8
REACH_S = 0.005


async def _measure() -> tuple[float, float]:
    """Median seconds to the first token: through the gateway, and without it."""
    with toy_gateway() as gateway:
        async with httpx2.AsyncClient(timeout=30) as client:
            seen = [await stream(client, gateway, TOKENS) for _ in range(WARM_UP + REQUESTS)]
    toy, model = Toy(0.0), toy_model()
    alone = [await direct(toy, model, TOKENS) for _ in range(REQUESTS)]
    return median(t.first_s for t in seen[WARM_UP:]), median(t.first_s for t in alone)


def rows() -> list[Row]:
    through_s, alone_s = asyncio.run(_measure())
    added_s = through_s - alone_s
    return [
        Row(
            "first token: what the gateway adds",
            f"<= {REACH_S * 1000:g} ms",
            f"{added_s * 1000:.2f} ms",
            f"{alone_s * 1000:.3f} ms without it",
            "0 ms",
            added_s <= REACH_S,
        )
    ]
