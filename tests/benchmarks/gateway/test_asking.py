"""Is the same asked of the gateway and of the toy behind it, and is all of the answer counted?"""

from __future__ import annotations

import httpx2

from benchmarks.gateway.asking import direct, stream
from benchmarks.gateway.toy_server import Toy, toy_gateway, toy_model

TOKENS = 6


async def test_a_stream_through_the_gateway_and_one_without_it_have_the_same_tokens() -> None:
    alone = await direct(Toy(0.0), toy_model(), TOKENS)
    with toy_gateway() as gateway:
        async with httpx2.AsyncClient(timeout=30) as client:
            through = await stream(client, gateway, TOKENS)
        assert gateway.cpu_s > 0 and gateway.rss_bytes > 2**20
    around = ("the role", "the end", "[DONE]")
    assert alone.events == TOKENS and through.events == TOKENS + len(around)
    assert through.is_whole and 0 < alone.first_s < through.first_s <= through.last_s
