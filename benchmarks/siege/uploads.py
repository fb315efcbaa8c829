"""What do others notice of a key's uploads that never end?"""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx2

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import GATEWAY
from benchmarks.siege.measuring import Attack
from benchmarks.table import Row
from tests.siege.test_uploads import START, chunk_of, head_of

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("uploads", "uploads without an end", (GATEWAY,))
AT_ONCE, PIECE = 4, b"x" * 2**16


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    await begin()
    await asyncio.gather(*(_upload_on(target, done) for _ in range(AT_ONCE)))


async def _upload_on(target: Target, done: Counter[str]) -> None:
    url = httpx2.URL(target.gateway_url)
    while True:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        answered = asyncio.create_task(reader.readline())
        try:
            writer.write(head_of(target.key) + chunk_of(START))
            while not answered.done():
                writer.write(chunk_of(PIECE))
                await writer.drain()
                done["pieces of 64 KiB"] += 1
            done[f"answers {answered.result()[9:12].decode()}"] += 1
        except OSError as error:
            done[type(error).__name__] += 1
        finally:
            answered.cancel()
            writer.transport.abort()


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
