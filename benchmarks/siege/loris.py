"""What do others notice of hundreds of connections that send their requests a byte at a time?"""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx2

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import GATEWAY, MATCHER
from benchmarks.siege.measuring import Attack
from benchmarks.table import Row

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("loris", "slow connections to the gateway and the matcher", (GATEWAY, MATCHER))
CONNECTIONS, BYTE_S = 700, 1.0
STARTS = (
    b"GET /v1/models HTTP/1.1\r\nhost: somebody\r\nx-slow: ",
    b"POST /v1/plan HTTP/1.1\r\nhost: somebody\r\ncontent-length: 60000\r\n\r\n",
)


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    await begin()
    await asyncio.gather(
        *(
            _hold_on(httpx2.URL(url), STARTS[number % len(STARTS)], done)
            for number in range(CONNECTIONS)
            for url in (target.gateway_url, target.matcher_url)
        )
    )


async def _hold_on(url: httpx2.URL, start: bytes, done: Counter[str]) -> None:
    """A connection that is never done with its request, and another when that is ended."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(url.host, url.port)
        except OSError as error:
            done[type(error).__name__] += 1
            await asyncio.sleep(BYTE_S)
            continue
        done["connections"] += 1
        try:
            writer.write(start)
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                await _heard_within(reader, BYTE_S)
        except OSError:
            pass
        finally:
            writer.transport.abort()


async def _heard_within(reader: asyncio.StreamReader, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await reader.read(4096)
    except TimeoutError:
        pass


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
