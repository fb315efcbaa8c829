"""How fast another machine takes bytes is measured over a real authenticated stream, and is nothing where nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from core.protocol import signing, wire
from core.protocol.signer import Signer
from core.runtime.channel import Channel, Listener, Peers, StreamIdentity
from miner.bench import SENT_BYTES, sends_mbit_s

DOMAIN = signing.Domain(31337, "0x" + "11" * 20)
Start = Callable[..., Awaitable[str]]


def key(number: int) -> Signer:
    return Signer(number.to_bytes(32, "big"), chain_id=DOMAIN.chain_id)


MACHINE = key(7)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """A machine that answers pings, and takes so long to read those that carry something."""
    running: list[Listener] = []

    async def listen(reads_s: float = 0.0) -> str:
        async def handle(channel: Channel, frame: wire.Frame) -> Any:
            if len(frame.payload):
                assert len(frame.payload) == SENT_BYTES
                await asyncio.sleep(reads_s)
            return wire.Pong()

        listener = Listener(StreamIdentity(MACHINE, DOMAIN), handle)
        await listener.start("127.0.0.1", 0)
        running.append(listener)
        return f"127.0.0.1:{listener.port}"

    yield listen
    for listener in running:
        await listener.close()


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    peers = Peers(StreamIdentity(key(8), DOMAIN))
    yield peers
    await peers.close()


async def test_a_slow_machine_takes_bytes_at_the_rate_at_which_it_reads(
    start: Start, peers: Peers
) -> None:
    slow = await sends_mbit_s(peers, MACHINE.address, await start(reads_s=0.4))
    assert slow is not None
    assert 0 < slow < 8e-6 * SENT_BYTES / 0.2
    assert await sends_mbit_s(peers, MACHINE.address, await start()) is not None


async def test_nobody_and_somebody_else_have_no_rate(start: Start, peers: Peers) -> None:
    endpoint = await start()
    assert await sends_mbit_s(peers, key(9).address, endpoint) is None
    assert await sends_mbit_s(peers, MACHINE.address, "127.0.0.1:9") is None
