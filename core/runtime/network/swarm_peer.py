"""One peer of the swarm in a process of its own, and the keeper that starts another when it ends.

The program forks its keeper before it has threads or open databases; the keeper has none, ever, so
it may fork a peer at any later time. The program asks its peer over a Unix socket in a folder that
only we may enter. Keeper and peer end with the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from core.protocol.records import MAX_RECORD_BYTES
from core.protocol.whole_file import write_whole
from core.runtime.folders import SocketFolder
from core.runtime.logs import get_logger
from core.runtime.network.circuits import relayed_bytes
from core.runtime.network.replicas import Replicas
from core.runtime.retry import pause_s
from core.runtime.tasks import spawn

log = get_logger(__name__)
START_TIMEOUT_S = 60.0
START_ATTEMPTS = 3
END_TIMEOUT_S = 5.0
_POLL_S = 0.1
_STAY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_VERDICTS_KEPT = 8192
_MOST_ANCHORS = 8
#: Between two searches of the whole swarm by one that looks more often.
SEARCH_S = 10.0
_ANCHOR_WITHIN_S = 1.0
_ANCHOR_AWAY_S = 10.0
_RELAY_DATA_BYTES = 1 << 40  # in each direction of a circuit
#: Of relayed connections (`core.runtime.network.circuits`): hivemind's own suit its own use alone.
_RELAY_OPTIONS = {
    "relayMaxCircuits": 256,  # per machine, over all its users
    "relayTimeLimit": "24h",
    "relayDataLimit": _RELAY_DATA_BYTES,
    "relayBufferSize": 1 << 18,
}

Check = Callable[[str, bytes, float], str | None]
"""(key, record, expiry in seconds since 1970) → the topic where this record may stand under this
key until then; None: nowhere."""


@dataclass(frozen=True)
class PeerOptions:
    """How a peer joins the swarm: what `Swarm.start` was told."""

    host: str
    port: int
    bootstrap: tuple[str, ...]
    check: Check | None
    is_relay: bool
    only_dials: bool
    key: Path | None
    asks_anchors_every_s: float


def socket_of(sockets: SocketFolder) -> Path:
    """Where a peer is asked."""
    return sockets.path / "ask"


def _peers_file(sockets: SocketFolder) -> Path:
    """Multiaddresses to which the last peer was connected, one a line."""
    return sockets.path / "peers"


# --- the keeper ---


def keep(
    options: PeerOptions, sockets: SocketFolder, parent: int, heard: Connection, tell: Connection
) -> None:
    """Run a peer, and another one whenever it ends, until the program ends or says so (SIGTERM).

    Tells ("ready", addresses), or ("failed", why) up to `START_ATTEMPTS` times and ends. `heard` is
    the other end, which is the program's.
    """
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the program, which drains, and not its swarm
    heard.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ending = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)

    def is_wanted() -> bool:
        return not ending and os.getppid() == parent

    served, failures = False, 0
    while is_wanted():
        peer = os.fork()
        if peer == 0:
            _be_a_peer(options, sockets, tell, failures, again=served)
        while is_wanted() and not _has_ended(peer):
            time.sleep(_POLL_S)
        _end_group(peer)
        if socket_of(sockets).exists():
            socket_of(sockets).unlink()
            served, failures = True, 0
        else:
            failures += 1
        if not served and failures == START_ATTEMPTS:
            break
        if served and is_wanted():
            log.warning("our peer of the swarm has ended: another one is started")
            again_at = time.monotonic() + pause_s(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            while is_wanted() and time.monotonic() < again_at:
                time.sleep(_POLL_S)
    sockets.remove()
    os._exit(0)


def _has_ended(peer: int) -> bool:
    """It is not reaped yet: its number stays its own until its group is killed."""
    return os.waitid(os.P_PID, peer, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(peer: int) -> None:
    """Kill a peer and its daemon, and wait: a killed daemon holds its port a moment longer."""
    for kill in (os.kill, os.killpg):  # it may not lead its group yet
        with contextlib.suppress(ProcessLookupError):
            kill(peer, signal.SIGKILL)
    os.waitpid(peer, 0)
    deadline = time.monotonic() + END_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(peer, 0)
            time.sleep(_POLL_S / 10)


# --- the peer ---


def _be_a_peer(
    options: PeerOptions, sockets: SocketFolder, tell: Connection, failures: int, *, again: bool
) -> None:
    """Serve until killed; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=_end_with_keeper, args=(os.getppid(),), daemon=True).start()
        asyncio.run(_serve(options, sockets, tell, failures, again=again))
        code = 0
    except Exception as error:  # whatever hivemind and its daemon raise
        why = f"{type(error).__name__}: {error}"
        log.warning("swarm start failed", attempt=failures + 1, reason=why)
        with contextlib.suppress(OSError):
            tell.send(("failed", why))
    finally:
        os._exit(code)


def _end_with_keeper(keeper: int) -> None:
    while os.getppid() == keeper:
        time.sleep(_POLL_S)
    os.killpg(0, signal.SIGKILL)


async def _serve(
    options: PeerOptions, sockets: SocketFolder, tell: Connection, failures: int, *, again: bool
) -> None:
    admitted: set[str] = set()
    through = _way_in(options, sockets, failures, again=again)
    node = await _join(replace(options, bootstrap=through), sockets, admitted)
    if options.is_relay and not await _is_ample(node):
        if failures + 1 < START_ATTEMPTS and not again:
            raise OSError("as a relay it keeps its first limits")
        log.warning("this peer of the swarm is of no use as a relay")
    tasks: set[asyncio.Task[Any]] = set()
    if options.only_dials:
        spawn(_stay(options.bootstrap, node), tasks)
    spawn(_remember_peers(node, _peers_file(sockets)), tasks)
    anchors = Anchors(node.protocol, options.bootstrap, options.asks_anchors_every_s)
    replicas = Replicas(node, keeps=not options.only_dials)
    asked = _Answers(node, anchors, replicas, admitted, open_to_all=options.check is None)
    async with await asyncio.start_unix_server(asked.hear, str(socket_of(sockets))) as server:
        addresses = await asked.addresses()
        with contextlib.suppress(OSError):  # the program has heard that before
            tell.send(("ready", addresses))
        await server.serve_forever()


def _way_in(
    options: PeerOptions, sockets: SocketFolder, failures: int, *, again: bool
) -> tuple[str, ...]:
    """Multiaddresses to join through: as told, and again also those that our last peer knew.

    Alone only at first, if told nothing, or where none of those has answered a few times.
    """
    known: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        known = _peers_file(sockets).read_text().split()
    if not again or (not options.bootstrap and failures >= START_ATTEMPTS):
        known = []
    return tuple(dict.fromkeys([*options.bootstrap, *known]))


async def _join(options: PeerOptions, sockets: SocketFolder, admitted: set[str]) -> Any:
    from hivemind.dht.node import DHTNode
    from hivemind.p2p import P2P

    # hivemind leaves two sockets in the open for every killed peer.
    P2P._UNIX_SOCKET_PREFIX = f"/unix{sockets.path}/"
    if options.is_relay:
        _set_relay_limits(P2P)
    kind = "ip6" if ":" in options.host else "ip4"
    node = await DHTNode.create(
        host_maddrs=[f"/{kind}/{options.host}/tcp/{options.port}"],
        initial_peers=list(options.bootstrap),
        record_validator=None if options.check is None else validator(options.check, admitted),
        use_ipfs=False,
        use_relay=options.is_relay,
        force_reachability="public" if options.is_relay else None,
        use_auto_relay=False,
        client_mode=options.only_dials,
        identity_path=None if options.key is None else str(options.key),
        check_if_identity_free=False,
        startup_timeout=START_TIMEOUT_S,
    )
    if options.check is not None:
        node.protocol._validate_dictionary = partial(_keep_valid, node.protocol)
    return node


def _keep_valid(protocol: Any, key: bytes, found: Any) -> bool:
    """Take what does not hold out of a topic, of which hivemind would believe nothing then.

    A peer may know more staked keys than we, or for a minute one that has lost its stake.
    """
    for subkey, (value, expiry_s) in list(found.items()):
        packed = protocol.serializer.dumps(subkey)
        if not protocol._validate_record(key, packed, value, expiry_s):
            del found[subkey]
    return True


def _set_relay_limits(p2p: Any) -> None:
    """For the one daemon that this process will start; hivemind names only some options.

    The daemon starts a relay twice, with these limits and with others that suit nothing but a
    greeting (128 KiB, two minutes), and the later one counts. With one thread that is nearly always
    ours, and a relay takes no more than one processor.
    """
    options = p2p._make_process_args
    p2p._make_process_args = staticmethod(lambda *a, **k: options(*a, **k, **_RELAY_OPTIONS))
    os.environ["GOMAXPROCS"] = "1"


async def _is_ample(node: Any) -> bool:
    """Whether it came up as a relay with our limits."""
    try:
        found = await relayed_bytes(str((await node.get_visible_maddrs())[0]))
    except OSError as error:
        log.warning("our relay could not be asked for its limits", why=str(error))
        return False
    return found >= _RELAY_DATA_BYTES


async def _connected(node: Any) -> list[str]:
    """libp2p dials out from the port it listens on, so callers can be called."""
    found = await node.protocol.p2p.list_peers()
    return sorted(f"{address}/p2p/{peer.peer_id}" for peer in found for address in peer.addrs)


async def _remember_peers(node: Any, file: Path) -> None:
    known: list[str] = []
    while True:
        await asyncio.sleep(_STAY_S)
        with contextlib.suppress(Exception):  # as in `_stay`
            peers = await _connected(node)
            if peers and peers != known:
                _write_lines(file, peers)
                known = peers


def _write_lines(file: Path, lines: list[str]) -> None:
    """As a whole or not at all: half of an address would keep the next peer from starting."""
    write_whole(file, "\n".join(lines).encode())


async def _stay(bootstrap: tuple[str, ...], node: Any) -> None:
    """Join again through peers that hivemind dropped while they were away: they cannot call us."""
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    while True:
        await asyncio.sleep(_STAY_S)
        for address in bootstrap:
            where, _, name = address.rpartition("/p2p/")
            peer = PeerID.from_base58(name)
            if node.protocol.routing_table.get(peer_id=peer) is not None:
                continue
            try:
                await node.p2p._client.connect(peer, [Multiaddr(where)])
                await node.protocol.call_ping(peer)
            except Exception as error:  # whatever hivemind and its daemon raise: tried again soon
                log.debug("still away", peer=address, error=f"{type(error).__name__}: {error}")


class Anchors:
    """The peers that we joined through: each is told and asked itself, whoever is near a topic.

    Where a record is stored follows from names that any stranger may choose for itself; these peers
    are of the network's file, or an operator's own choice. All of a large swarm has the same few,
    so each peer asks them no more often than `asks_every_s`.
    """

    def __init__(self, protocol: Any, addresses: Sequence[str], asks_every_s: float) -> None:
        from hivemind.p2p import PeerID

        names = dict.fromkeys(address.rpartition("/p2p/")[2] for address in addresses)
        self._protocol, self._asks_every_s = protocol, asks_every_s
        self._asked_s = float("-inf")
        self._away_until_s = {PeerID.from_base58(name): 0.0 for name in [*names][:_MOST_ANCHORS]}

    async def store(self, topic: str, key: str, record: bytes, expires_at_s: float) -> bool:
        """Whether one of them has it."""
        from hivemind.dht.routing import DHTID

        at, value = [DHTID.generate(source=topic)], [self._protocol.serializer.dumps(record)]
        answers = await self._ask(
            lambda peer: self._protocol.call_store(peer, at, value, expires_at_s, [key])
        )
        return any(stored for answer in answers for stored in answer)

    async def find(self, topics: Sequence[str]) -> list[Any]:
        """What they have of these topics: dictionaries of values with their expiry.

        Nothing where they were asked a moment ago.
        """
        from hivemind.dht.routing import DHTID

        now_s = time.monotonic()
        if now_s - self._asked_s < self._asks_every_s:
            return []
        self._asked_s = now_s
        keys = [DHTID.generate(source=topic) for topic in topics]
        answers = await self._ask(lambda peer: self._protocol.call_find(peer, keys))
        return [found.value for answer in answers for found, _ in answer.values() if found]

    async def _ask(self, call: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """Those answers that come at once; who gives none is not asked for a while."""
        now_s = time.monotonic()
        peers = [peer for peer, until_s in self._away_until_s.items() if until_s <= now_s]
        answers = await asyncio.gather(*(self._of_one(peer, call(peer)) for peer in peers))
        return [answer for answer in answers if answer]

    async def _of_one(self, peer: Any, answer: Awaitable[Any]) -> Any:
        found = None
        with contextlib.suppress(TimeoutError):
            found = await asyncio.wait_for(answer, _ANCHOR_WITHIN_S)
        if found is None:
            self._away_until_s[peer] = time.monotonic() + _ANCHOR_AWAY_S
        return found


class _Answers:
    """What the program may ask its peer: each public method by its name."""

    def __init__(
        self,
        node: Any,
        anchors: Anchors,
        replicas: Replicas,
        admitted: set[str],
        *,
        open_to_all: bool,
    ) -> None:
        self._node, self._anchors, self._replicas = node, anchors, replicas
        self._searched_s = float("-inf")
        self._admitted, self._open_to_all = admitted, open_to_all
        self._tasks: set[asyncio.Task[Any]] = set()

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's calls, several at a time, until it ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, name, arguments = await read_message(reader)
                spawn(self._answer(writer, number, name, arguments), self._tasks)

    async def _answer(
        self, writer: asyncio.StreamWriter, number: int, name: str, arguments: list[Any]
    ) -> None:
        value, why = None, ""
        try:
            value = await getattr(self, name)(*arguments)
        except Exception as error:  # whatever hivemind and its daemon raise
            why = f"{type(error).__name__}: {error}"
        with contextlib.suppress(ConnectionError):
            write_message(writer, (number, value, why))
            await writer.drain()

    async def addresses(self) -> list[str]:
        return [str(address) for address in await self._node.get_visible_maddrs()]

    async def peers(self) -> list[str]:
        return await _connected(self._node)

    async def admit(self, added: list[str], removed: list[str]) -> None:
        self._admitted.difference_update(removed)
        self._admitted.update(added)

    async def publish(self, topic: str, key: str, record: bytes, expires_at_s: float) -> bool:
        stored = await asyncio.gather(
            self._replicas.store(topic, key, record, expires_at_s),
            self._anchors.store(topic, key, record, expires_at_s),
        )
        return any(stored)

    async def lookup(self, topics: list[str]) -> dict[str, bytes]:
        if not (self._admitted or self._open_to_all):
            return {}
        near, told = await asyncio.gather(self._near(topics), self._anchors.find(topics))
        found: dict[str, tuple[float, bytes]] = {}
        for key, item, record in (*near, *_packed(told)):
            # What was stored before its key lost its stake is still here.
            if isinstance(record, bytes) and (self._open_to_all or key in self._admitted):
                found[key] = max(found.get(key, (0.0, b"")), (item.expiration_time, record))
        return {key: record for key, (_, record) in found.items()}

    async def _near(self, topics: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
        """What is kept near the topics: by a search once in a while, else by some who keep them."""
        now_s = time.monotonic()
        if now_s - self._searched_s < SEARCH_S:
            return _packed(await self._replicas.find(topics))
        self._searched_s = now_s
        return _unpacked(await self._node.get_many(topics, sufficient_expiration_time=float("inf")))


def _unpacked(answers: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Key, value with expiry, and record of all that hivemind found and unpacked."""
    for answer in answers.values():
        if answer is not None and isinstance(answer.value, dict):
            for key, item in answer.value.items():
                yield str(key), item, item.value


def _packed(dictionaries: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    """The same of what single nodes told, which is packed."""
    for dictionary in dictionaries:
        if hasattr(dictionary, "items"):
            for key, item in dictionary.items():
                with contextlib.suppress(msgspec.MsgspecError):
                    yield str(key), item, msgspec.msgpack.decode(item.value)


# --- between program and peer ---


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises IncompleteReadError at the end."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return msgspec.msgpack.decode(await reader.readexactly(size))


def write_message(writer: asyncio.StreamWriter, message: tuple[Any, ...]) -> None:
    """Have a message sent."""
    data = msgspec.msgpack.encode(message)
    writer.write(len(data).to_bytes(4, "big") + data)


# --- what is stored ---


def validator(check: Check, admitted: set[str]) -> Any:
    """`check` as hivemind wants it, for records under keys that are admitted now, of legal size.

    Verdicts are kept, for answers repeat a topic's records.
    """
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase

    class Checked(RecordValidatorBase):  # type: ignore[misc]
        def __init__(self) -> None:
            self._verdicts: dict[bytes, bool] = {}

        def validate(self, record: DHTRecord) -> bool:
            key = _key_of(record)
            if key not in admitted or len(record.value) > MAX_RECORD_BYTES:
                return False
            expiry = struct.pack(">d", record.expiration_time)
            size = len(record.subkey).to_bytes(4, "big")
            digest = sha256(record.key + expiry + size + record.subkey + record.value).digest()
            if digest not in self._verdicts:
                if len(self._verdicts) >= _VERDICTS_KEPT:
                    self._verdicts.pop(next(iter(self._verdicts)))
                self._verdicts[digest] = _holds(check, key, record)
            return self._verdicts[digest]

    return Checked()


def _key_of(record: Any) -> str:
    """hivemind packs it; a value without a subkey has nil here and would replace the topic."""
    try:
        return msgspec.msgpack.decode(record.subkey, type=str)
    except (msgspec.MsgspecError, ValueError):
        return ""


def _holds(check: Check, key: str, record: Any) -> bool:
    from hivemind.dht.routing import DHTID

    try:
        value = msgspec.msgpack.decode(record.value, type=bytes)
    except (msgspec.MsgspecError, ValueError):
        return False
    topic = check(key, value, float(record.expiration_time))
    return topic is not None and DHTID.generate(source=topic).to_bytes() == record.key
