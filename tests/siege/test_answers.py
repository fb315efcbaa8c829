"""Matchers and nodes that answer with bombs, without end, drop by drop, or a stack full of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
from collections.abc import AsyncIterator, Callable, Iterator

import httpx2
import pytest

from client.orders.matcher_api import MatcherApi
from core.chain import provider
from core.chain.rpc import RpcChain
from core.protocol.errors import ChainUnreachable, HeadraceError, MatcherUnreachable
from core.runtime import http_client
from core.runtime.http_client import NoAnswer, ask
from core.runtime.settings import load
from matcher import cli
from miner.commands import market

Sends = Callable[[], Iterator[bytes]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def bomb() -> Iterator[bytes]:
    packed = gzip.compress(b"[" + b"0," * 2**25 + b"0]")  # 64 MiB
    yield OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed


def endless() -> Iterator[bytes]:
    yield OK + b"\r\n"
    while True:
        yield b" " * 65536


def deep() -> Iterator[bytes]:
    body = b'{"result": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"
    yield OK + b"content-length: %d\r\n\r\n" % len(body) + body


def no_json() -> Iterator[bytes]:
    yield OK + b"content-length: 3\r\n\r\n\xff\xfe{"


class Stranger:
    """A server that sends the same to whoever asks; `sent` counts its bytes."""

    def __init__(self, sends: Sends, pause_s: float = 0.0) -> None:
        self.sends, self.pause_s = sends, pause_s
        self.sent, self.asked = 0, b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.asked = await reader.readuntil(b"\r\n\r\n")
            for piece in self.sends():
                writer.write(piece)
                self.sent += len(piece)
                await writer.drain()
                await asyncio.sleep(self.pause_s)
        writer.close()


@contextlib.asynccontextmanager
async def serving(stranger: Stranger) -> AsyncIterator[str]:
    server = await asyncio.start_server(stranger.answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


async def by_client(url: str) -> None:
    api = MatcherApi(url)
    try:
        await api.miners()
    finally:
        await api.close()


async def by_miner(url: str) -> None:
    await market.ask(load(flags={"network.matcher_url": url}, environ={}), "/v1/status")


async def by_matcher(url: str) -> None:
    await cli._ask(load(environ={}), "/v1/miners", at=url)


async def by_chain(url: str) -> None:
    chain = RpcChain(url, 1, {})
    try:
        await chain.nonce("0x" + "11" * 20)
    finally:
        await chain.close()


@pytest.mark.parametrize("reads", [by_client, by_miner, by_matcher, by_chain])
@pytest.mark.parametrize("sends", [bomb, endless, deep, no_json])
async def test_what_no_honest_peer_sends_is_a_typed_error_and_no_memory(
    monkeypatch: pytest.MonkeyPatch, reads: Callable, sends: Sends
) -> None:
    most = 2**20
    monkeypatch.setattr(provider, "MAX_ANSWER_BYTES", most)
    monkeypatch.setitem(ask.__kwdefaults__, "most_bytes", most)
    stranger = Stranger(sends)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving(stranger) as url:
        with pytest.raises((MatcherUnreachable, ChainUnreachable)) as caught:
            await reads(url)
    assert isinstance(caught.value, HeadraceError) and len(caught.value.why) < 400
    assert b"gzip" not in stranger.asked.lower()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 200 * 2**20
    assert stranger.sent < 16 * 2**20  # sockets' buffers among them


async def test_an_answer_that_drips_ends_in_time() -> None:
    stranger = Stranger(endless, pause_s=0.02)
    async with serving(stranger) as url, httpx2.AsyncClient() as client:
        with pytest.raises(NoAnswer, match="not whole within"):
            await ask(client, "GET", url, within_s=0.3)


async def test_an_honest_answer_is_read_whole() -> None:
    def honest() -> Iterator[bytes]:
        yield OK + b"transfer-encoding: chunked\r\n\r\n"
        yield b'4\r\n{"a"\r\n3\r\n: 1\r\n1\r\n}\r\n0\r\n\r\n'

    async with serving(Stranger(honest)) as url, httpx2.AsyncClient() as client:
        assert await http_client.ask_json(client, "GET", url, within_s=5) == (200, {"a": 1})
