"""Strangers flood the swarm with records of throwaway keys: a newcomer finds everybody at once."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from core.keys.signer import Signer
from core.protocol import records
from tests.core.runtime.network.test_transport import NETWORK, RemotePeer, sealed, wait_until

pytestmark = pytest.mark.swarm

HONEST = [Signer(bytes([number]) * 32, chain_id=31337) for number in range(1, 7)]
STAKED = [signer.address.lower() for signer in HONEST]
TOPICS = records.miners_topics(NETWORK)
FORGED_A_SECOND = 10_000 / 60
FLOOD_S = 4.0
FOUND_WITHIN_S = 3.0


def flood(bootstrap: list[str], told: Connection) -> None:
    """A stranger with hivemind alone: signed records of keys without stake, dated a year ahead."""
    from hivemind.dht.node import DHTNode

    def forged(number: int) -> tuple[str, str, bytes]:
        signer = Signer(number.to_bytes(4, "big") * 8, chain_id=31337)
        ahead_ms = int(time.time() * 1000) + 347 * 86_400_000
        key = signer.address.lower()
        data = sealed(signer, NETWORK, sent_at_ms=ahead_ms, ttl_ms=records.MOST_TTL_MS)
        return records.miners_topic(NETWORK, key), key, data

    async def run() -> None:
        node = await DHTNode.create(initial_peers=bootstrap)
        batch = [forged(number) for number in range(1000, 1100)]
        expiry_s, sent, began = time.time() + 347 * 86_400, 0, None
        while True:
            expiry_s += 1.0
            said = list(zip(*batch, strict=True))
            await node.store_many(said[0], said[2], expiry_s, subkeys=said[1])
            if began is None:
                began = time.monotonic()
                told.send("began")
            sent += len(batch)
            await asyncio.sleep(max(0.0, began + sent / FORGED_A_SECOND - time.monotonic()))

    os.setpgid(0, 0)
    asyncio.run(run())


@pytest.fixture
def town() -> Iterator[list[RemotePeer]]:
    import hivemind.dht  # noqa: F401  (before any fork)

    with contextlib.ExitStack() as running:
        peers: list[RemotePeer] = []
        for _ in range(3):
            known = peers[0].ask("addresses") if peers else []
            peers.append(RemotePeer(known, NETWORK))
            running.callback(peers[-1].end)
            peers[-1].ask("admit", STAKED)
        yield peers


def test_a_newcomer_finds_everybody_while_strangers_forge_ten_thousand_records_a_minute(
    town: list[RemotePeer],
) -> None:
    for index, signer in enumerate(HONEST):
        key = signer.address.lower()
        data = sealed(signer, NETWORK, ttl_ms=60_000)
        assert town[index % 3].ask("publish", records.miners_topic(NETWORK, key), key, data, 60.0)
    heard, told = multiprocessing.Pipe(duplex=False)
    fork = multiprocessing.get_context("fork")
    stranger = fork.Process(target=flood, args=(town[0].ask("addresses"), told))
    stranger.start()
    try:
        assert heard.poll(60) and heard.recv() == "began"
        newcomer = RemotePeer(town[1].ask("addresses"), NETWORK)
        newcomer.ask("admit", STAKED)
        began, looked = time.monotonic(), []
        while time.monotonic() - began < FLOOD_S:
            asked = time.monotonic()
            found = newcomer.ask("lookup", *TOPICS)
            looked.append(time.monotonic() - asked)
            assert set(found) <= set(STAKED), "nobody without stake is believed"
            if len(looked) == 1:
                assert set(found) == set(STAKED)
        assert sorted(looked)[len(looked) // 2] < FOUND_WITHIN_S
        newcomer.end()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stranger.pid, 9)
        stranger.join()
    wait_until(lambda: set(town[2].ask("lookup", *TOPICS)) == set(STAKED))
