"""A swarm of several processes: records spread, expire and replace; strangers spoil nothing."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from core.keys.signer import Signer
from core.protocol import records
from core.protocol.errors import PeerUnreachable
from core.protocol.records import SwarmCheck
from core.protocol.signing import Domain
from core.runtime.network.transport import Swarm
from tests.core.protocol.test_records import miner_record

pytestmark = pytest.mark.swarm

DEADLINE_S = 30.0
NETWORK = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")
DEAD = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWPvbPU6DLkFaYUHpv4nJTtXQwJWwuEQyTTBoisjGgN1y8"


def author_of(name: str) -> Signer:
    """Another key for each test: the swarm is shared."""
    return Signer(name.encode().ljust(32, b"*")[-32:], chain_id=31337)


def staked() -> list[str]:
    """Every test's author."""
    names = [name for name in globals() if name.startswith("test_")]
    return [author_of(name).address.lower() for name in names]


def obey(orders: Connection, bootstrap: list[str], domain: Domain | None, only_dials: bool) -> None:
    """A program with one peer: carries out (command, arguments…) until the pipe closes."""
    check = SwarmCheck(domain) if domain else None
    swarm = Swarm.start("127.0.0.1", 0, bootstrap, check=check, only_dials=only_dials)
    strangers: list[Any] = []

    async def store_as_a_stranger(topic: str, key: str | None, value: bytes, until_s: float) -> Any:
        # With hivemind itself, as somebody who does not run our program would.
        from hivemind.dht.node import DHTNode

        if not strangers:
            strangers.append(await DHTNode.create(initial_peers=bootstrap))
        return await strangers[0].store(topic, value, until_s, subkey=key)

    async def leave() -> None:
        swarm.close()

    async def addresses() -> list[str]:
        return swarm.addresses()

    commands: dict[str, Callable[..., Awaitable[Any]]] = {
        "addresses": addresses,
        "admit": swarm.admit,
        "publish": swarm.publish,
        "lookup": swarm.lookup,
        "stranger": store_as_a_stranger,
        "close": leave,
    }

    async def run() -> None:
        await swarm.admit(staked())
        while True:
            command, *arguments = await asyncio.to_thread(orders.recv)
            orders.send(await commands[command](*arguments))

    with contextlib.suppress(EOFError):
        asyncio.run(run())


class RemotePeer:
    """A peer in a process of its own; forked, because importing hivemind anew takes seconds."""

    def __init__(
        self, bootstrap: list[str], domain: Domain | None, *, only_dials: bool = False
    ) -> None:
        self._orders, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=obey, args=(theirs, bootstrap, domain, only_dials))
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def ask(self, *command: Any) -> Any:
        self._orders.send(command)
        assert self._orders.poll(DEADLINE_S), f"no answer to {command[0]}"
        return self._orders.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def end(self) -> None:
        children = swarm_processes(self.pid)
        self.kill()
        wait_until(lambda: not any(alive(pid) for pid in children))


def stat_of(pid: int) -> list[str]:
    """State, parent and so on of a process, from the field after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    try:
        return stat_of(pid)[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = stat_of(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] not in "ZX":
                parents[int(entry.name)] = int(fields[1])
    found, grew = {pid}, True
    while grew:
        below = {child for child, parent in parents.items() if parent in found} - found
        found |= below
        grew = bool(below)
    return sorted(found - {pid})


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def swarm_processes(pid: int) -> set[int]:
    """Processes below `pid`, but for torch's shared-memory helper, which ends seconds later."""
    return {child for child in descendants(pid) if "torch_shm" not in command_of(child)}


def ours() -> set[int]:
    return swarm_processes(os.getpid())


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def imported_once() -> None:
    """Before any fork."""
    import hivemind.dht  # noqa: F401


@pytest.fixture(scope="module")
def network() -> Domain:
    return NETWORK


@pytest.fixture(scope="module")
def swarm(network: Domain) -> Iterator[list[RemotePeer]]:
    """Three peers that check what they store, and a stranger that checks nothing."""
    with contextlib.ExitStack() as running:

        def start(bootstrap: list[str], domain: Domain | None) -> RemotePeer:
            peer = RemotePeer(bootstrap, domain)
            running.callback(peer.end)
            return peer

        first = start([], network)
        addresses = first.ask("addresses")
        others = [start(addresses, network), start(addresses, network), start(addresses, None)]
        for peer in others:
            peer.ask("addresses")
        yield [first, *others]


@pytest.fixture
def author(signers: list[Signer], request: pytest.FixtureRequest) -> Signer:
    return author_of(request.node.name)


def sealed(author: Signer, domain: Domain, sequence: int = 1, **changes: Any) -> bytes:
    changes.setdefault("sent_at_ms", int(time.time() * 1000))
    record = miner_record(author.address, **changes)
    return records.seal(record, sequence, author, domain)


def topic_of(key: str) -> str:
    return records.miners_topic(NETWORK, key)


def seen_by_all(swarm: list[RemotePeer], key: str, record: bytes | None) -> None:
    for peer in swarm[:3]:
        wait_until(lambda peer=peer: peer.ask("lookup", topic_of(key)).get(key) == record)


# --- records ---


def test_a_record_is_found_by_every_peer_and_a_later_one_replaces_it(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key = author.address.lower()
    first = sealed(author, network, 1)
    assert swarm[1].ask("publish", topic_of(key), key, first, 10.0)
    seen_by_all(swarm, key, first)
    second = sealed(author, network, 2, active_requests=5)
    assert swarm[1].ask("publish", topic_of(key), key, second, 10.0)
    seen_by_all(swarm, key, second)
    found = records.unseal(second, network)
    assert found is not None
    assert found[1] == 2


def test_a_silent_miner_s_record_disappears_by_itself(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key = author.address.lower()
    assert swarm[2].ask("publish", topic_of(key), key, sealed(author, network), 2.0)
    assert key in swarm[0].ask("lookup", topic_of(key))
    seen_by_all(swarm, key, None)


def test_a_topic_nobody_wrote_is_empty(swarm: list[RemotePeer]) -> None:
    assert swarm[1].ask("lookup", "headrace/test/nothing") == {}


# --- strangers ---
# Whether `publish` says True is not asserted here: the stranger is one of the peers that are asked.


def test_a_stranger_cannot_overwrite_a_record(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key, later = author.address.lower(), time.time() + 3600
    good = sealed(author, network)
    swarm[1].ask("publish", topic_of(key), key, good, 10.0)
    other = Signer(b"\x77" * 32, chain_id=31337)
    stranger = swarm[3]
    stranger.ask("stranger", topic_of(key), key, b"garbage", later)
    stranger.ask("stranger", topic_of(key), key, sealed(other, network), later)
    stranger.ask("stranger", topic_of(key), key, good, later)  # a replay, to outlive what follows
    newer = sealed(author, network, 2)
    swarm[1].ask("publish", topic_of(key), key, newer, 10.0)
    seen_by_all(swarm, key, newer)


def test_a_stranger_cannot_replace_a_whole_topic(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key, good = author.address.lower(), sealed(author, network)
    swarm[2].ask("publish", topic_of(key), key, good, 10.0)
    swarm[3].ask("stranger", topic_of(key), None, b"nothing here", time.time() + 3600)
    seen_by_all(swarm, key, good)
    newer = sealed(author, network, 2)
    swarm[0].ask("publish", topic_of(key), key, newer, 10.0)
    seen_by_all(swarm, key, newer)


def test_a_stranger_s_garbage_beside_good_records_hides_nothing(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key, good = author.address.lower(), sealed(author, network)
    for i in range(5):
        swarm[3].ask("stranger", topic_of(key), f"0x{i:040x}", b"garbage", time.time() + 3600)
    swarm[1].ask("publish", topic_of(key), key, good, 10.0)
    seen_by_all(swarm, key, good)
    for peer in swarm[:3]:
        assert not [k for k in peer.ask("lookup", topic_of(key)) if k.startswith("0x00000000")]


def test_a_stranger_cannot_replay_a_record_under_another_topic(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key, good = author.address.lower(), sealed(author, network)
    other = next(topic for topic in records.miners_topics(network) if topic != topic_of(key))
    swarm[3].ask("stranger", other, key, good, time.time() + 8)
    swarm[1].ask("publish", topic_of(key), key, good, 10.0)
    seen_by_all(swarm, key, good)
    for peer in swarm[:3]:
        assert key not in peer.ask("lookup", other)


def test_keys_without_stake_are_not_kept_and_those_that_lose_it_no_longer(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    poor = Signer(b"\x66" * 32, chain_id=31337)
    key, poors = author.address.lower(), poor.address.lower()
    swarm[3].ask("stranger", topic_of(poors), poors, sealed(poor, network), time.time() + 8)
    swarm[1].ask("publish", topic_of(key), key, sealed(author, network), 10.0)
    for peer in swarm[:3]:
        wait_until(lambda peer=peer: key in peer.ask("lookup", *records.miners_topics(network)))
        assert poors not in peer.ask("lookup", topic_of(poors))
    swarm[2].ask("admit", [other for other in staked() if other != key])
    assert key not in swarm[2].ask("lookup", topic_of(key))
    swarm[2].ask("admit", staked())
    seen_by_all(swarm, key, swarm[0].ask("lookup", topic_of(key))[key])


# --- life and death ---


def test_a_dead_bootstrap_is_unreachable_with_a_reason_and_leaves_no_process() -> None:
    before = ours()
    with pytest.raises(PeerUnreachable) as refused:
        Swarm.start("127.0.0.1", 0, [DEAD])
    assert DEAD in refused.value.why
    assert "bootstrap" in refused.value.why
    assert ours() <= before


async def test_one_peer_alone_keeps_what_passes_and_close_ends_all_its_processes(
    author: Signer, network: Domain
) -> None:
    before = ours()
    swarm = Swarm.start("127.0.0.1", 0, [], check=SwarmCheck(network))
    started, sockets = ours() - before, swarm._sockets.path
    assert any(sockets.iterdir()), "the daemon is asked elsewhere"
    assert any("p2pd" in command_of(pid) for pid in started)
    key, record = author.address.lower(), sealed(author, network)
    assert not await swarm.publish(topic_of(key), key, record, 10.0), "nobody has stake"
    await swarm.admit([key])
    assert await swarm.publish(topic_of(key), key, record, 10.0)
    assert await swarm.lookup(topic_of(key)) == {key: record}
    # Our own mistakes are refused as a stranger's are: garbage, another key, a later expiry.
    assert not await swarm.publish(topic_of(key), key, b"garbage", 20.0)
    assert not await swarm.publish(topic_of(key), author.address, record, 10.0)
    assert not await swarm.publish(topic_of(key), key, record, 60.0)
    assert not await swarm.publish("another topic", key, record, 10.0)
    assert await swarm.lookup(topic_of(key)) == {key: record}
    swarm.close()
    swarm.close()
    assert not sockets.exists()
    assert ours() <= before
    assert not any(alive(pid) for pid in started)
    for ask in (swarm.lookup(topic_of(key)), swarm.publish(topic_of(key), key, record, 10.0)):
        with pytest.raises(PeerUnreachable):
            await ask


def peer_of(swarm: Swarm) -> int:
    """The process that our keeper has forked."""
    (peer,) = (pid for pid in descendants(swarm._keeper.pid) if "p2pd" not in command_of(pid))
    return peer


async def answer(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Of a peer that is being started anew."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await ask()
            except PeerUnreachable:
                await asyncio.sleep(0.05)


async def test_a_peer_that_dies_is_started_anew_and_finds_the_others(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    key = author.address.lower()
    ours_too = Swarm.start("127.0.0.1", 0, swarm[0].ask("addresses"), check=SwarmCheck(network))
    await ours_too.admit([key])
    first = peer_of(ours_too)
    wait_until(lambda: (ours_too._sockets.path / "peers").exists())
    for sequence in (1, 2):
        os.kill(peer_of(ours_too), signal.SIGKILL)
        with pytest.raises(PeerUnreachable):
            while True:
                await ours_too.lookup(topic_of(key))
        assert not ours_too.is_lost
        await answer(ours_too.peers)
        record = sealed(author, network, sequence)
        assert await ours_too.publish(topic_of(key), key, record, 10.0)
        seen_by_all(swarm, key, record)
    assert peer_of(ours_too) != first
    started = swarm_processes(ours_too._keeper.pid)
    ours_too.close()
    assert not any(alive(pid) for pid in started)
    assert not ours_too._sockets.path.exists()


async def test_a_killed_keeper_takes_its_peer_along_and_is_told() -> None:
    swarm = Swarm.start("127.0.0.1", 0, [])
    started = {swarm._keeper.pid, *swarm_processes(swarm._keeper.pid)}
    os.kill(swarm._keeper.pid, signal.SIGKILL)
    wait_until(lambda: swarm.is_lost and not any(alive(pid) for pid in started))
    with pytest.raises(PeerUnreachable):
        await swarm.lookup("any")
    swarm.close()
    assert not swarm._sockets.path.exists()


async def test_a_frozen_peer_does_not_keep_close_waiting() -> None:
    before = ours()
    swarm = Swarm.start("127.0.0.1", 0, [])
    started = ours() - before
    await swarm.peers()
    os.kill(peer_of(swarm), signal.SIGSTOP)
    waiting = asyncio.create_task(swarm.peers())
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.to_thread(swarm.close)
        with pytest.raises(PeerUnreachable):
            await waiting
    assert not any(alive(pid) for pid in started)


def test_a_killed_program_leaves_no_swarm_behind(
    network: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        monkeypatch.setattr(tempfile, "tempdir", root)
        peer = RemotePeer([], network)
        peer.ask("addresses")
        children = swarm_processes(peer.pid)
        assert len(children) >= 2
        (sockets,) = Path(root).glob("headrace-swarm-*")
        peer.kill()
        wait_until(lambda: not any(alive(pid) for pid in children), 5.0)
        assert not sockets.exists()


def test_ctrl_c_reaches_the_program_and_not_its_swarm(network: Domain) -> None:
    peer = RemotePeer([], network)
    peer.ask("addresses")
    groups = {os.getpgid(pid) for pid in swarm_processes(peer.pid) if alive(pid)}
    assert os.getpgid(peer.pid) not in groups
    peer.end()


def test_a_closed_peer_s_records_stay_with_the_others(
    swarm: list[RemotePeer], author: Signer, network: Domain
) -> None:
    leaver = RemotePeer(swarm[0].ask("addresses"), network)
    leaver.ask("addresses")
    key, record = author.address.lower(), sealed(author, network)
    assert leaver.ask("publish", topic_of(key), key, record, 10.0)
    children = swarm_processes(leaver.pid)
    leaver.ask("close")
    assert not any(alive(pid) for pid in children)
    assert swarm[1].ask("lookup", topic_of(key)).get(key) == record
    leaver.end()
