"""Two machines without a route to each other, in network namespaces, and a third that both dial."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from core.keys.signer import Signer
from core.protocol import wire
from core.protocol.errors import PeerUnreachable
from core.protocol.signing import Domain
from core.runtime.network import circuits
from core.runtime.network.channel import Listener, Peers, StreamIdentity, connect
from core.runtime.network.circuits import Circuits
from core.runtime.network.transport import Swarm
from tests import netns
from tests.core.runtime.network.test_circuits import answer

pytestmark = pytest.mark.swarm
DEADLINE_S = 30.0
TOPIC = "headrace/test"
PAYLOAD = bytes(range(256)) * 160


@pytest.fixture
def apart() -> Iterator[netns.Network]:
    try:
        with netns.network("client", "miner") as made:
            yield made
    except netns.Unavailable as error:
        pytest.skip(str(error))


def relay(said: Connection, orders: Connection, key: Path) -> None:
    """The public peer, which tells the client's user where the miner is, as a matcher does."""
    swarm = Swarm.start(netns.HUB_ADDRESS, 4001, [], is_relay=True, key=key)
    said.send(swarm.addresses())
    orders.recv()

    async def find() -> dict[str, bytes]:
        while not (found := await swarm.lookup(TOPIC)):
            await asyncio.sleep(0.1)
        return found

    said.send(asyncio.run(find()))
    orders.recv()


def miner(
    said: Connection,
    orders: Connection,
    identity: StreamIdentity,
    relays: list[str],
    host: str,
    key: Path,
) -> None:
    """Listens where nobody comes, and says so in the swarm, which it only dials."""

    async def run() -> None:
        circuits._CONNECT_S = 1.0  # nobody is far away here
        swarm = Swarm.start("127.0.0.1", 0, relays, only_dials=True)
        listener = Listener(identity, answer)
        await listener.start(host, 0)
        ours = Circuits(relays, key, listener.accept)
        await ours.start()
        endpoint = f"{host}:{listener.port},{ours.address}"
        said.send(endpoint)
        while not await asyncio.to_thread(orders.poll, 0.2):
            await swarm.publish(TOPIC, "miner", endpoint.encode(), 60)
        await ours.close()
        await listener.close()
        swarm.close()

    asyncio.run(run())


def client(
    said: Connection, orders: Connection, identity: StreamIdentity, operator: str, endpoint: str
) -> None:
    async def run() -> None:
        direct, _, through = endpoint.partition(",")
        peers = Peers(identity)
        stream = await peers.get(operator, endpoint, timeout_s=DEADLINE_S)
        got = await stream.call(wire.Ping(), PAYLOAD, timeout_s=DEADLINE_S)
        said.send((got.message, bytes(got.payload)))
        for route in (direct, f"{direct},{through[:-4]}AAAA"):
            try:
                await connect(route, identity, expected=operator)
                said.send("it led somewhere")
            except PeerUnreachable as error:
                said.send(error.why)
        await stream.wait_closed()
        said.send("closed")
        orders.recv()
        while True:
            try:
                again = await peers.get(operator, endpoint, timeout_s=DEADLINE_S)
                break
            except PeerUnreachable:  # the miner has still to find that the relay forgot it
                await asyncio.sleep(0.2)
        got = await again.call(wire.Ping(), PAYLOAD, timeout_s=DEADLINE_S)
        said.send((got.message, bytes(got.payload)))
        orders.recv()
        await again.wait_closed()
        said.send("closed")
        await peers.close()

    asyncio.run(run())


def test_two_that_cannot_reach_each_other_talk(
    apart: netns.Network, signers: list[Signer], domain: Domain, tmp_path: Path
) -> None:
    fork = multiprocessing.get_context("fork")
    running: list[BaseProcess] = []

    def start(
        where: str, run: Callable[..., None], *given: Any
    ) -> tuple[Callable[[], Any], Connection]:
        said, says = multiprocessing.Pipe()
        ordered, orders = multiprocessing.Pipe()

        def inside() -> None:
            tempfile.tempdir = str(tmp_path)  # of daemons that end by force
            netns.enter(apart.namespaces[where])
            run(says, ordered, *given)

        process = fork.Process(target=inside)
        process.start()
        running.append(process)

        def hear() -> Any:
            assert said.poll(DEADLINE_S), f"nothing from {where}"
            return said.recv()

        return hear, orders

    one, two = (StreamIdentity(signer, domain) for signer in signers[:2])
    try:
        hear_relay, ask_relay = start(netns.HUB, relay, tmp_path / "relay")
        relays = hear_relay()
        where = apart.address("miner")
        hear_miner, end_miner = start("miner", miner, one, relays, where, tmp_path / "key")
        endpoint = hear_miner()
        ask_relay.send(None)
        assert hear_relay() == {"miner": endpoint.encode()}
        hear_client, end_client = start("client", client, two, one.signer.address, endpoint)
        assert hear_client() == (wire.Pong(step_ms=1), PAYLOAD[::-1])
        assert "unreachable" in hear_client()
        why = hear_client()
        assert "unreachable" in why and "relay" in why

        # The relay ends with its streams and comes back: the miner returns to it, and to the swarm.
        running[0].kill()
        running[0].join()
        assert hear_client() == "closed"
        hear_relay, ask_relay = start(netns.HUB, relay, tmp_path / "relay")
        assert hear_relay() == relays
        ask_relay.send(None)
        assert hear_relay() == {"miner": endpoint.encode()}
        end_client.send(None)
        assert hear_client() == (wire.Pong(step_ms=1), PAYLOAD[::-1])
        end_miner.send(None)
        end_client.send(None)
        assert hear_client() == "closed"
        for process in running[1:3]:
            process.join(DEADLINE_S)
            assert process.exitcode == 0
    finally:
        for process in running:
            process.kill()
            process.join()
