"""How fast another machine takes bytes is measured over a real authenticated stream, and is nothing
where nobody answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from core.keys.signer import Signer
from core.protocol import signing, wire
from core.runtime.network.channel import (
    STRANGER_FRAME_BYTES,
    Channel,
    Listener,
    Peers,
    StreamIdentity,
)
from miner.commands import bench
from miner.commands.bench import SENT_BYTES, sends_mbit_s

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
                assert len(frame.payload) < STRANGER_FRAME_BYTES
                await asyncio.sleep(reads_s * len(frame.payload) / SENT_BYTES)
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


async def test_other_machines_are_those_of_the_same_model_but_not_this_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, model = await start(), "0x" + "ab" * 32
    told = [
        {"operator": operator, "alive": alive, "modelId": of, "endpoint": endpoint}
        for operator, alive, of in (
            (MACHINE.address, True, model),
            (key(9).address, True, model),
            (key(10).address, False, model),
            (key(11).address, True, "0x" + "cd" * 32),
        )
    ]

    async def ask(settings: Any, path: str) -> Any:
        return {"miners": told}

    network = SimpleNamespace(
        matcher_places=[("http://matcher", None)],
        contract=lambda _: DOMAIN.verifying_contract,
        private_addresses=None,
    )
    settings: Any = SimpleNamespace(network=network, require_network=lambda: (DOMAIN.chain_id, ""))
    monkeypatch.setattr(bench, "ask", ask)
    monkeypatch.setattr(bench, "model_id_of", lambda _: model)
    monkeypatch.setattr(bench, "operator_address", lambda _: (key(9).address.lower(), ""))
    (other,), why = await bench._peers(settings)
    assert (other.endpoint, why) == (endpoint, "") and other.sends_mbit_s is not None
    monkeypatch.setattr(bench, "operator_address", lambda _: (None, "there is no wallet"))
    assert len((await bench._peers(settings))[0]) == 2, (
        "a machine without an operator is none of them"
    )
