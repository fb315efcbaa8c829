"""Does each reader of an answer get all of it, in as few writes as it came in, and pings before?"""

from __future__ import annotations

import asyncio
from typing import Any

from client.gateway.answers.responses import FollowingResponse
from client.gateway.exchange import Exchange, Exchanges
from client.gateway.openai.shapes import PING

STREAM = {"content-type": "text/event-stream; charset=utf-8"}


class Reader:
    """A connection that writes down what is sent over it."""

    def __init__(self, exchanges: Exchanges, exchange: Exchange, ping_s: float = 60.0) -> None:
        self.sent: list[dict[str, Any]] = []
        following = FollowingResponse(exchanges, exchange, ping_s)
        self.task = asyncio.create_task(following({}, self._receive, self._send))

    async def _receive(self) -> Any:
        return await asyncio.Future()  # it stays

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def bodies(self) -> list[tuple[bytes, bool]]:
        return [(m["body"], m["more_body"]) for m in self.sent[1:]]

    async def until(self, count: int) -> None:
        while len(self.sent) < count:
            await asyncio.sleep(0)


def make() -> tuple[Exchanges, Exchange]:
    return Exchanges(), Exchange("req_1", "key_1", "hash", None)


async def test_what_is_there_at_once_is_sent_at_once_and_the_last_piece_ends_the_answer() -> None:
    exchanges, exchange = make()
    early = Reader(exchanges, exchange)
    exchange.open(200, STREAM)
    exchange.push(b"a")
    exchange.push(b"b")
    await early.until(2)
    exchange.push(b"c")
    exchange.end()
    await early.task
    late = Reader(exchanges, exchange)
    await late.task
    assert early.sent[0] == late.sent[0]
    assert (early.sent[0]["status"], dict(early.sent[0]["headers"])) == (
        200,
        {b"content-type": STREAM["content-type"].encode()},
    )
    assert early.bodies == [(b"ab", True), (b"c", False)]
    assert late.bodies == [(b"abc", False)]


async def test_an_answer_that_ends_without_another_piece_ends_for_its_readers() -> None:
    exchanges, exchange = make()
    reader = Reader(exchanges, exchange)
    exchange.open(200, STREAM)
    exchange.push(b"a")
    await reader.until(2)
    exchange.end()
    await reader.task
    assert reader.bodies == [(b"a", True), (b"", False)]


async def test_a_stream_that_is_silent_is_kept_open_by_pings_and_another_answer_is_not() -> None:
    for headers, silent in ((STREAM, PING), ({"content-type": "application/json"}, None)):
        exchanges, exchange = make()
        exchange.open(200, headers)
        reader = Reader(exchanges, exchange, ping_s=0.001)
        assert not await exchange._wait(0.02)
        exchange.push(b"all")
        exchange.end()
        await reader.task
        pings = [body for body, more in reader.bodies if more]
        assert set(pings) == ({silent} if silent else set())
        assert reader.bodies[-1] == (b"all", False)
        assert not exchange._waiting


async def test_several_readers_are_woken_by_the_same_piece() -> None:
    exchanges, exchange = make()
    exchange.open(200, STREAM)
    readers = [Reader(exchanges, exchange) for _ in range(5)]
    for reader in readers:
        await reader.until(1)
    exchange.push(b"x")
    exchange.end()
    await asyncio.gather(*(reader.task for reader in readers))
    assert all(reader.bodies == [(b"x", False)] for reader in readers)
