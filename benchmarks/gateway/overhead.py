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
QUICK = {"REQUESTS": 2, "WARM_UP": 1}


async def _measure() -> tuple[float, float]:
    """Median seconds to the first token, in turns: through the gateway, and without it."""
    toy, model = Toy(0.0), toy_model()
    through, alone = list[float](), list[float]()
    with toy_gateway() as gateway:
        async with httpx2.AsyncClient(timeout=30) as client:
            for _ in range(WARM_UP + REQUESTS):
                through.append((await stream(client, gateway, TOKENS)).first_s)
                alone.append((await direct(toy, model, TOKENS)).first_s)
    return median(through[WARM_UP:]), median(alone[WARM_UP:])


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
