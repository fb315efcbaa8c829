"""Does a server end connections that keep it waiting, and answer others meanwhile?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from core.runtime import http_server
from core.runtime.http_server import MAX_HEAD_BYTES, HttpServer, PeerLimits, while_asked

QUICK = PeerLimits(head_s=0.3, body_s=0.3, taking_s=0.3, most_connections=20, of_address=5)
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"


class Peer:
    """A connection of a stranger's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def drip(self, piece: bytes) -> None:
        """Send until the other side ends it."""
        while not self.writer.transport.is_closing():
            await self.send(piece)
            await asyncio.sleep(0.01)

    async def rest(self) -> bytes:
        """All that comes until the other side ends it; "" where it was cut off."""
        try:
            return await asyncio.wait_for(self.reader.read(), 5)
        except ConnectionError:
            return b""

    async def answer(self) -> bytes:
        """The status line of an answer without a body."""
        found = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        return found.partition(b"\r\n")[0]


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    app = FastAPI()

    @app.get("/")
    @app.post("/")
    async def root(request: Request) -> Response:
        with contextlib.suppress(Exception):
            await request.body()
        return Response(status_code=204)

    @app.get("/slow")
    async def slow() -> Response:
        await asyncio.sleep(1.0)  # longer than any limit on the peer
        return Response(status_code=204)

    @app.get("/large")
    async def large() -> Response:
        return Response(b" " * 2**25)

    async with HttpServer(app, limits=QUICK) as started:
        yield started


@pytest.fixture
async def dial(server: HttpServer) -> AsyncIterator:
    peers = []

    async def new() -> Peer:
        peers.append(Peer(*await asyncio.open_connection(server.host, server.port)))
        return peers[-1]

    yield new
    for peer in peers:
        peer.writer.close()


@pytest.mark.parametrize("begin", [b"", b"\r\n", b"GET / HTTP/1.1\r\nx: ", POST + b"abc"])
async def test_a_request_that_does_not_arrive_is_ended(dial, begin: bytes) -> None:
    peer = await dial()
    await peer.send(begin)
    assert (await peer.rest()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("begin", "piece"), [(b"GET / HTTP/1.1\r\n", b"x: y\r\n"), (b"", b"\r\n"), (POST, b"z")]
)
async def test_drops_do_not_buy_time(dial, begin: bytes, piece: bytes) -> None:
    peer = await dial()
    await peer.send(begin)
    await asyncio.wait_for(peer.drip(piece), 5)


async def test_a_second_request_is_waited_for_no_longer_than_the_first(dial) -> None:
    peer = await dial()
    await peer.send(GET)
    assert await peer.answer() == b"HTTP/1.1 204 No Content"
    await asyncio.wait_for(peer.drip(b"\r\n"), 5)


async def test_a_head_without_end_is_cut_off(dial) -> None:
    peer = await dial()
    await peer.send(b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES)
    assert (await peer.rest())[:12] in (b"HTTP/1.1 431", b"")  # "" where it was reset


async def test_an_answer_that_nobody_takes_is_ended(dial, server: HttpServer) -> None:
    peer = await dial()
    peer.writer.transport.pause_reading()
    await peer.send(GET.replace(b"/ ", b"/large "))
    async with asyncio.timeout(5):
        while not (held := server._server.server_state.connections):
            await asyncio.sleep(0.01)
        while held:
            await asyncio.sleep(0.01)


async def test_work_of_ours_is_waited_for(dial) -> None:
    one, two = await dial(), await dial()
    await one.send(GET.replace(b"/ ", b"/slow "))
    await two.send(GET.replace(b"/ ", b"/slow ") + GET)  # the second waits behind the first
    for peer in (one, two, two):
        assert await peer.answer() == b"HTTP/1.1 204 No Content"


async def test_others_are_answered_while_strangers_take_all_connections(dial) -> None:
    working = await dial()
    await working.send(GET.replace(b"/ ", b"/slow "))
    await asyncio.sleep(0.05)
    held = [await dial() for _ in range(3 * QUICK.most_connections)]
    for peer in held:
        await peer.send(b"GET / HTTP/1.1\r\n")
    honest = await dial()
    await honest.send(GET)
    assert await honest.answer() == b"HTTP/1.1 204 No Content"
    assert await working.answer() == b"HTTP/1.1 204 No Content"


async def test_an_address_has_its_share_of_the_connections(
    dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "address_of", lambda _: "7.7.7.7")
    working = [await dial() for _ in range(QUICK.of_address - 1)]
    for peer in working:
        await peer.send(GET.replace(b"/ ", b"/slow "))
    late = await dial()
    newer = await dial()
    assert await late.rest() == b"", "who waits longest makes room"
    await newer.send(GET.replace(b"/ ", b"/slow "))
    await asyncio.sleep(0.05)
    assert await (await dial()).rest() == b"", "nobody waits: no further one"
    monkeypatch.setattr(http_server, "address_of", lambda _: "8.8.8.8")
    other = await dial()
    await other.send(GET)
    for peer in (other, *working, newer):
        assert await peer.answer() == b"HTTP/1.1 204 No Content"


async def test_work_ends_when_its_asker_leaves() -> None:
    ended, told = asyncio.Event(), iter(["http.request", "http.disconnect"])

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def receive() -> dict[str, str]:
        return {"type": next(told)}

    with pytest.raises(ClientDisconnect):
        await while_asked(receive, work())
    assert ended.is_set()
    assert next(told, "") == "", "only that it left is a reason"


async def test_work_that_ends_is_answered_while_its_asker_is_there() -> None:
    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    async def work() -> int:
        return 7

    assert await while_asked(receive, work()) == 7
