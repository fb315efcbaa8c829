"""Strangers flood the swarm with records of throwaway keys: a newcomer finds everybody at once."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from core.keys.signer import Signer
from core.protocol import records
from tests.core.runtime.network.test_transport import NETWORK, RemotePeer, sealed, wait_until
from tests.siege.forging import forge_records

pytestmark = pytest.mark.swarm

HONEST = [Signer(bytes([number]) * 32, chain_id=31337) for number in range(1, 7)]
STAKED = [signer.address.lower() for signer in HONEST]
TOPICS = records.miners_topics(NETWORK)
FLOOD_S = 4.0
FOUND_WITHIN_S = 3.0
#: A record is stored by five peers, and a look-up visits twenty, those that are nearest.
NODES, NAMED = 6, 40
Join = Callable[..., RemotePeer]


def flood(bootstrap: list[str], told: Connection) -> None:
    os.setpgid(0, 0)
    asyncio.run(forge_records(bootstrap, NETWORK, lambda: told.send("began")))


def surround(bootstrap: list[str], topics: list[str], told: Connection) -> None:
    """A stranger with nodes right beside topics, which keep nothing and name only each other."""
    from hivemind.dht.node import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID
    from hivemind.proto import dht_pb2

    def beside(key: int) -> list[DHTID]:
        return [DHTID(key ^ number) for number in range(1, NAMED + 1)]

    async def forget(self: Any, request: Any, context: Any) -> Any:
        return dht_pb2.StoreResponse(store_ok=[True] * len(request.keys), peer=self.node_info)

    async def hide(self: Any, request: Any, context: Any) -> Any:
        answer = dht_pb2.FindResponse(results=[], peer=self.node_info)
        for key in request.keys:
            found = dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)
            for node_id in beside(int(DHTID.from_bytes(key))):
                found.nearest_node_ids.append(node_id.to_bytes())
                found.nearest_peer_ids.append(self.p2p.peer_id.to_bytes())
            answer.results.append(found)
        return answer

    async def run() -> None:
        for name, does in {"Store": forget, "Find": hide}.items():
            asked, answered = (getattr(dht_pb2, name + of) for of in ("Request", "Response"))
            does.__annotations__ = {"request": asked, "return": answered}  # hivemind decodes by it
            setattr(DHTProtocol, f"rpc_{name.lower()}", does)
        nodes = [
            await DHTNode.create(node_id=node_id, initial_peers=bootstrap)
            for topic in topics
            for node_id in beside(int(DHTID.generate(source=topic)))[:NODES]
        ]
        told.send("began")
        await asyncio.Event().wait()
        assert nodes

    os.setpgid(0, 0)
    asyncio.run(run())


@contextlib.contextmanager
def stranger(does: Callable[..., None], *asked: Any) -> Iterator[None]:
    """A process that has begun to do something, until the block ends."""
    heard, told = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=does, args=(*asked, told))
    process.start()
    try:
        assert heard.poll(60) and heard.recv() == "began"
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.join()


@pytest.fixture
def join() -> Iterator[Join]:
    """Peers that join through others; all end with the test."""
    import hivemind.dht  # noqa: F401  (before any fork)

    with contextlib.ExitStack() as running:

        def new(bootstrap: list[str], *, only_dials: bool = False) -> RemotePeer:
            peer = RemotePeer(bootstrap, NETWORK, only_dials=only_dials)
            running.callback(peer.end)
            return peer

        yield new


@pytest.fixture
def town(join: Join) -> list[RemotePeer]:
    peers: list[RemotePeer] = []
    for _ in range(3):
        peers.append(join(peers[0].ask("addresses") if peers else []))
        peers[-1].ask("admit", STAKED)
    return peers


def test_a_newcomer_finds_everybody_while_strangers_forge_ten_thousand_records_a_minute(
    town: list[RemotePeer], join: Join
) -> None:
    for index, signer in enumerate(HONEST):
        key = signer.address.lower()
        data = sealed(signer, NETWORK, ttl_ms=60_000)
        assert town[index % 3].ask("publish", records.miners_topic(NETWORK, key), key, data, 60.0)
    with stranger(flood, town[0].ask("addresses")):
        newcomer = join(town[1].ask("addresses"))
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
    wait_until(lambda: set(town[2].ask("lookup", *TOPICS)) == set(STAKED))


def publish(peer: RemotePeer, signer: Signer) -> str:
    """The topic under which it stands."""
    key = signer.address.lower()
    topic = records.miners_topic(NETWORK, key)
    data = sealed(signer, NETWORK, ttl_ms=60_000)
    assert peer.ask("publish", topic, key, data, 60.0)
    return topic


def test_strangers_beside_a_topic_hide_nobody_from_those_who_joined_through_others(
    town: list[RemotePeer], join: Join
) -> None:
    signer = HONEST[0]
    key = signer.address.lower()
    topic = records.miners_topic(NETWORK, key)
    anchor = town[0].ask("addresses")
    with stranger(surround, anchor, [topic]):
        machine = join(anchor, only_dials=True)  # nobody asks it for what it says of itself
        machine.ask("admit", STAKED)
        publish(machine, signer)
        newcomer = join(anchor)
        newcomer.ask("admit", STAKED)
        assert set(newcomer.ask("lookup", topic)) == {key}


def test_a_key_that_lost_its_stake_hides_nobody_who_stands_beside_it(
    town: list[RemotePeer], join: Join
) -> None:
    by_topic: dict[str, list[Signer]] = {}
    for number in range(1, 200):
        signer = Signer(bytes([number]) * 32, chain_id=31337)
        by_topic.setdefault(records.miners_topic(NETWORK, signer.address.lower()), []).append(
            signer
        )
    gone, stays = next(signers for signers in by_topic.values() if len(signers) > 1)[:2]
    names = [gone.address.lower(), stays.address.lower()]
    for peer in town:
        peer.ask("admit", names)
    topic = publish(town[1], gone)
    assert publish(town[1], stays) == topic
    for peer in town:
        wait_until(lambda peer=peer: set(peer.ask("lookup", topic)) == set(names))
    newcomer = join(town[0].ask("addresses"))
    newcomer.ask("admit", names[1:])
    assert set(newcomer.ask("lookup", topic)) == {names[1]}
