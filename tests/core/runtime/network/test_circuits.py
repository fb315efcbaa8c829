"""Streams through a relay, over real libp2p daemons: what passes, what is refused, how they end."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import base58
import pytest

from core.keys.signer import Signer
from core.protocol import wire
from core.protocol.errors import AuthenticationFailed, PeerUnreachable
from core.protocol.signing import Domain
from core.runtime.network import circuits
from core.runtime.network.channel import Answer, Channel, Listener, StreamIdentity, connect
from core.runtime.network.circuits import CIRCUIT, CircuitAddress, Circuits, relayed_bytes
from core.runtime.network.transport import Swarm

DEADLINE_S = 30.0
RELAY = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWPvbPU6DLkFaYUHpv4nJTtXQwJWwuEQyTTBoisjGgN1y8"
PEER = "QmbvkvDa21E9HVwLLQsM3jk1vP2sXSH8pptTCDhkTMfh9s"
NOWHERE = "127.0.0.1:1"


def be_a_relay(said: Connection, host: str) -> None:
    """A peer of the swarm that says its address and lives until its process ends."""
    swarm = Swarm.start(host, 0, [], is_relay=True)
    said.send(swarm.addresses()[0])
    signal.pause()


@pytest.fixture(scope="module")
def relays() -> Iterator[dict[str, Callable[[], None]]]:
    """Two on loopback: address → what ends it. Forked: importing hivemind anew takes seconds."""
    fork, started = multiprocessing.get_context("fork"), []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        process = fork.Process(target=be_a_relay, args=(theirs, "127.0.0.1"))
        process.start()
        started.append((ours, process))

    def end(process: BaseProcess) -> None:
        process.kill()  # its swarm's child notices, and ends with its daemon
        process.join()

    ends = {}
    for ours, process in started:
        assert ours.poll(DEADLINE_S)
        ends[ours.recv()] = partial(end, process)
    yield ends
    for _, process in started:
        end(process)


@pytest.fixture
def identities(signers: list[Signer], domain: Domain) -> list[StreamIdentity]:
    return [StreamIdentity(signer, domain) for signer in signers]


async def answer(channel: Channel, frame: wire.Frame) -> Answer:
    """A pong, with the payload of the ping turned round."""
    return wire.Pong(step_ms=1), bytes(frame.payload)[::-1]


@asynccontextmanager
async def hidden(identity: StreamIdentity, key: Path, *relays: str) -> AsyncIterator[Circuits]:
    """A party with no port that others could dial: its listener is never started."""
    listener = Listener(identity, answer)
    ours = Circuits(relays, key, listener.accept)
    await ours.start()
    try:
        yield ours
    finally:
        await ours.close()
        await listener.close()


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.mark.swarm
async def test_the_same_stream_runs_through_a_relay(
    relays: dict[str, Callable[[], None]],
    identities: list[StreamIdentity],
    tmp_path: Path,
    opened: AsyncExitStack,
) -> None:
    relay = next(iter(relays))
    one, two, other = identities[:3]
    assert await relayed_bytes(relay) == 1 << 40  # its own limit would be 128 KiB
    async with hidden(one, tmp_path / "key", relay) as ours:
        assert ours.address.startswith(relay + CIRCUIT)
        stream = await connect(ours.address, two, expected=one.signer.address)
        opened.push_async_callback(stream.close)
        assert stream.peer == one.signer.address
        sent = os.urandom(2_000_000)  # more than a libp2p relay passes on by itself
        got = await stream.call(wire.Ping(), sent, timeout_s=DEADLINE_S)
        assert got.message == wire.Pong(step_ms=1)
        assert bytes(got.payload) == sent[::-1]

        # Who is at the other end is proven as ever: a relay that leads elsewhere is found out.
        with pytest.raises(AuthenticationFailed):
            await connect(ours.address, two, expected=other.signer.address)

        # A direct route that leads nowhere is no loss, and where both do, both are named.
        both = await connect(f"{NOWHERE},{ours.address}", two, expected=one.signer.address)
        await both.close()
        nobody = relay + CIRCUIT + PEER
        with pytest.raises(PeerUnreachable) as failed:
            await connect(f"{NOWHERE},{nobody}", two, expected=one.signer.address)
        assert f"{NOWHERE}: " in failed.value.why and "NO_RESERVATION" in failed.value.why

        # The peer id, and so the address, outlives the process.
        was, key = ours.address, (tmp_path / "key").read_bytes()
        await ours.close()
        async with hidden(one, tmp_path / "key", relay) as again:
            assert again.address == was
            assert (tmp_path / "key").read_bytes() == key


@pytest.mark.swarm
async def test_another_relay_takes_over(
    relays: dict[str, Callable[[], None]],
    identities: list[StreamIdentity],
    tmp_path: Path,
    opened: AsyncExitStack,
) -> None:
    one, two = identities[:2]
    async with hidden(one, tmp_path / "key", *relays) as ours:
        used = ours.address.partition(CIRCUIT)[0]
        (other,) = relays.keys() - {used}
        stream = await connect(ours.address, two, expected=one.signer.address)
        opened.push_async_callback(stream.close)
        relays[used]()
        async with asyncio.timeout(DEADLINE_S):
            await stream.wait_closed()
            while not ours.address.startswith(other):
                await asyncio.sleep(0.05)
        stream = await connect(ours.address, two, expected=one.signer.address)
        await stream.close()


@pytest.mark.swarm
async def test_without_a_relay_it_says_so(
    identities: list[StreamIdentity], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuits, "_CONNECT_S", 1.0)
    nobody = "/ip4/127.0.0.1/tcp/1/p2p/" + PEER
    unusable = ("/ip4/127.0.0.1/tcp/1", f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{PEER}", "relay.example")
    for none in ((), unusable):
        with pytest.raises(PeerUnreachable, match="a relay"):
            async with hidden(identities[0], tmp_path / "key", *none):
                pass
    with pytest.raises(PeerUnreachable) as failed:
        async with hidden(identities[0], tmp_path / "key", nobody):
            pass
    assert nobody in failed.value.what
    with pytest.raises(OSError, match="refused"):
        await relayed_bytes(nobody)
    (tmp_path / "broken").write_bytes(b"no key")
    with pytest.raises(PeerUnreachable, match="did not start"):
        async with hidden(identities[0], tmp_path / "broken", nobody):
            pass


@pytest.mark.swarm
async def test_the_daemon_ends_with_its_program(tmp_path: Path) -> None:
    program = (
        "from core.runtime.network.circuits import _Daemon; import signal; d = _Daemon(); "
        "print(d._process.pid, flush=True); signal.pause()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    os.kill(pid, 0)
    process.kill()
    await process.wait()
    async with asyncio.timeout(DEADLINE_S):
        while state_of(pid) != "Z":
            await asyncio.sleep(0.02)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_addresses_as_the_daemon_reads_them() -> None:
    found = CircuitAddress.parse(RELAY + CIRCUIT + PEER)
    assert found.relay.hex() == (
        "04cb007107060fa1"  # ip4, tcp
        "a50326002408011220d19c0c8c10066633668449e74111e57fc1ce303272ad563002c0288a70f7b44f"
        "a202"  # p2p-circuit
    )
    assert (
        found.peer.hex() == "1220c9e4b2a7d10c5e48c58a5d9ef5daea4265453f6ce467650df668c65c6728b3d2"
    )
    assert base58.b58encode(found.peer).decode() == PEER
    named = CircuitAddress.parse("/dns4/relay.example/tcp/1/p2p/" + PEER + CIRCUIT + PEER)
    assert named.relay.startswith(b"\x36\x0drelay.example\x06\x00\x01")


async def test_an_endpoint_has_a_few_routes_at_most(identities: list[StreamIdentity]) -> None:
    with pytest.raises(PeerUnreachable) as failed:
        await connect(",".join([NOWHERE] * 4), identities[0], expected=None)
    assert "4 routes" in failed.value.why


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:7001",
        RELAY,
        RELAY + CIRCUIT,
        RELAY + CIRCUIT + "0" + PEER,
        CIRCUIT + PEER.replace("Q", "l"),
        "/ip4/203.0.113.300/tcp/1/p2p/" + PEER + CIRCUIT + PEER,
        "/ip4/203.0.113.7/tcp/66000/p2p/" + PEER + CIRCUIT + PEER,
        "/ip4/203.0.113.7/tcp" + CIRCUIT + PEER,
        "/onion/203.0.113.7/tcp/1" + CIRCUIT + PEER,
        RELAY + CIRCUIT + PEER + "/tcp/1",
    ],
)
async def test_a_strangers_address_is_refused(
    address: str, identities: list[StreamIdentity]
) -> None:
    """Before anything is started or dialled for it."""
    with pytest.raises(ValueError):
        CircuitAddress.parse(address)
    if CIRCUIT in address:
        with pytest.raises(PeerUnreachable):
            await connect(address, identities[0], expected=None)
    assert circuits._shared is None or circuits._shared.is_alive
