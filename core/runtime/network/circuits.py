"""How is a machine reached that cannot be dialled? By a libp2p circuit through a relay.

Both sides dial the relay, any peer of the swarm that others reach, which passes their bytes on. The
machine keeps a reservation with it and says so in its endpoint, a multiaddress
`RELAY/p2p-circuit/p2p/SELF`. Over the circuit run the handshake and the frames of
`core.runtime.network.channel`: a relay sees ciphertext, and can only delay or end it.

The daemon that hivemind brings does the work, in a process of its own beside the swarm's:
activations do not wait behind look-ups, and a program that only dials needs no swarm. It is spoken
to directly, because importing hivemind imports torch, which takes seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from core.protocol.errors import PeerUnreachable
from core.runtime.folders import SocketFolder
from core.runtime.logs import get_logger

PROTOCOL = "/headrace/stream/1"
_RESERVING = "/libp2p/circuit/relay/0.2.0/hop"
CIRCUIT = "/p2p-circuit/p2p/"
_READ_BYTES = 1 << 18
_MAX_ANSWER_BYTES = 1 << 20
_START_TIMEOUT_S = 15.0
_ASK_TIMEOUT_S = 5.0
_LOOK_S = 0.5
_POLL_S = 0.02
_END_TIMEOUT_S = 2.0
#: The daemon asks a relay for a reservation as it starts, and after a failure not for an hour: a
#: new one is started where no relay is reached after `_CONNECT_S`, or none leads back to us.
_CONNECT_S, _RESERVE_S = 4.0, 20.0
#: A circuit to ourselves is opened this often, and a relay left when this many of them failed. A
#: daemon that failed to dial does not try again for some seconds.
_CHECK_S, _CHECKS = 10.0, 2
#: Options of every daemon, and of one that holds reservations.
_OPTIONS = {
    "relay": 1,
    "relayService": 0,
    "noListenAddrs": 1,
    "idleTimeout": f"{_START_TIMEOUT_S:g}s",
}
_RESERVES = {"autoRelay": 1, "relayDiscovery": 0, "forceReachabilityPrivate": 1, "dhtClient": 1}
_ED25519 = b"\x08\x01\x12\x40"  # how libp2p begins the file of such a key: its type, then 64 bytes
_P2P, _P2P_CIRCUIT, _UNIX = 0x01A5, 0x0122, 0x0190
_NAMES = {"dns": 0x35, "dns4": 0x36, "dns6": 0x37}
log = get_logger(__name__)

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def is_circuit(route: str) -> bool:
    """Whether a route of an endpoint is a circuit's multiaddress; else it is host:port."""
    return CIRCUIT in route


class CircuitAddress(NamedTuple):
    """Who is reached through which relay, as the daemon takes them."""

    relay: bytes  # multiaddress up to and with /p2p-circuit
    peer: bytes  # peer id

    @classmethod
    def parse(cls, text: str) -> CircuitAddress:
        """From `/ip4/HOST/tcp/PORT/p2p/RELAY/p2p-circuit/p2p/PEER`. Raises ValueError."""
        relay, _, peer = text.partition(CIRCUIT)
        return cls(_encode(relay) + _varint(_P2P_CIRCUIT), _peer_id(peer))


async def open_circuit(address: str) -> Stream:
    """A stream to the peer that a circuit's multiaddress names; set a deadline.

    The first one starts this process's daemon. Raises OSError, in the daemon's own words (no relay
    there, no reservation), or ValueError for what is no such address.
    """
    to = CircuitAddress.parse(address)
    daemon = await asyncio.to_thread(_dialer)
    await daemon.connect(to.peer, to.relay)
    return await daemon.open_stream(to.peer, PROTOCOL)


async def relayed_bytes(relay: str) -> int:
    """How many bytes a relay passes on, in each direction of one circuit. Raises OSError."""
    where, _, name = relay.rpartition("/p2p/")
    peer = _peer_id(name)
    daemon = await asyncio.to_thread(_Daemon)
    try:
        await daemon.connect(peer, _encode(where))
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            reader, writer = await daemon.open_stream(peer, _RESERVING)
            writer.write(_sized(b"\x08\x00"))  # type: reserve
            answer = await _read(reader)
        writer.close()
        passed: int = _field(_field(answer, 4), 2)
        return passed
    except (asyncio.IncompleteReadError, ValueError, TypeError) as error:
        raise ConnectionError(f"{relay} is no relay: {error}") from None
    finally:
        await asyncio.to_thread(daemon.end)


class Circuits:
    """Our side of circuits that others open to us: a daemon with reservations, kept or replaced."""

    def __init__(self, relays: Sequence[str], key: Path, accept: Accept) -> None:
        """`key`: the file of our libp2p key, made when missing; it keeps our address the same."""
        self._relays = tuple(relay for relay in relays if _can_be_relay(relay))
        self._key, self._accept = key, accept
        self._daemon: _Daemon | None = None
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Task[None]] = set()
        self._address = ""

    @property
    def address(self) -> str:
        """Where we can be reached, the last known; it changes when another relay has to do."""
        return self._address

    async def start(self) -> None:
        """Return once a circuit to us was opened. Raises PeerUnreachable."""
        if not self._relays:
            raise PeerUnreachable("a relay", "no peer of the swarm is known that could be one")
        if not self._key.exists():
            write_key(self._key)
        try:
            await self._renew()
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._tend(), name="circuits")

    async def close(self) -> None:
        """End the daemon and every stream through it."""
        ending = [self._task, *self._streams] if self._task else [*self._streams]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._end()

    async def _renew(self) -> None:
        await self._end()
        try:
            options = {**_RESERVES, "trustedRelays": ",".join(self._relays), "id": self._key}
            daemon = self._daemon = await asyncio.to_thread(_Daemon, **options)
            self._server = await asyncio.start_unix_server(
                self._take, daemon.streams, limit=_READ_BYTES
            )
            here = _varint(_UNIX) + _sized(str(daemon.streams).encode())
            handler = {"addr": here, "proto": [PROTOCOL], "balanced": False}
            await daemon.tell(_request("STREAM_HANDLER", streamHandler=handler))
            address = await self._reserve()
        except OSError as error:
            why = str(error) or type(error).__name__
            raise PeerUnreachable(f"any relay of {', '.join(self._relays)}", why) from None
        if address != self._address:
            log.info("reached through a relay", address=address)
        self._address = address

    async def _reserve(self) -> str:
        """The address by which the new daemon is reached, once it is. Raises OSError."""
        started = time.monotonic()
        while True:
            candidates = await self._candidates()
            if address := await self._first_reached(candidates):
                return address
            waited_s = time.monotonic() - started
            if not candidates and waited_s > _CONNECT_S:
                raise ConnectionError("we reach none of them")
            if waited_s > _RESERVE_S:
                raise ConnectionError("no circuit to ourselves opens")
            await asyncio.sleep(_LOOK_S)

    async def _candidates(self) -> list[str]:
        """Addresses by which we may be reached now, the one that we have said first.

        The daemon lists circuits through relays of public addresses. For others, in a private
        network, it says only whether we are connected.
        """
        if self._daemon is None:
            return []
        said = await self._daemon.tell(_request("IDENTIFY"))
        peers = await self._daemon.tell(_request("LIST_PEERS"))
        us, connected = said.identify.id, {peer.id for peer in peers.peers}
        found = []
        for relay in self._relays:
            theirs = _peer_id(relay.rpartition("/p2p/")[2])
            through = _varint(_P2P) + _sized(theirs) + _varint(_P2P_CIRCUIT)
            is_listed = any(through in address for address in said.identify.addrs)
            if theirs in connected and (is_listed or _is_private(relay)):
                found.append(f"{relay}{CIRCUIT}{base58.b58encode(us).decode()}")
        return sorted(found, key=lambda address: address != self._address)

    async def _first_reached(self, candidates: Sequence[str]) -> str:
        """The first by which a circuit to us opens; empty: none.

        To be connected or to have reserved is not enough: a relay that begins anew has forgotten.
        """
        for address in candidates:
            to = CircuitAddress.parse(address)
            try:
                dialer = await asyncio.to_thread(_dialer)
                await dialer.tell(_request("DISCONNECT", disconnect={"peer": to.peer}))
                await dialer.connect(to.peer, to.relay)
            except OSError as error:
                log.debug("not reached", address=address, why=str(error))
            else:
                return address
        return ""

    async def _tend(self) -> None:
        check_at, failures = time.monotonic() + _CHECK_S, 0
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                candidates = await self._candidates()
            except OSError as error:
                candidates = []
                log.warning("our own libp2p daemon does not answer", why=str(error))
            if self._address in candidates and time.monotonic() < check_at:
                continue
            found = await self._first_reached(candidates)
            check_at = time.monotonic() + _CHECK_S
            if found:
                self._address, failures = found, 0
                continue
            failures += 1
            if self._address in candidates and failures < _CHECKS:
                continue
            log.warning("no relay leads to us any more: asking for one again")
            try:
                await self._renew()
                failures = 0
            except PeerUnreachable as error:
                log.warning("no relay yet", why=error.why)

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._daemon is not None:
            await asyncio.to_thread(self._daemon.end)
        self._server = self._daemon = None

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio starts one per connection"
        self._streams.add(task)
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                await _read(reader)  # the peer id and the route: the handshake proves who it is
            await self._accept(reader, writer)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            log.debug("a relayed stream ended early", why=str(error))
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()  # we close, and asyncio would log a cancelled task as a bug
        finally:
            self._streams.discard(task)


class _Daemon:
    """One libp2p daemon. It ends however we end: it lives as long as a connection that we hold."""

    def __init__(self, **options: object) -> None:
        """Blocks until it answers. Raises OSError with its last words."""
        self._folder = SocketFolder("p2p")
        here = self._folder.path
        self.control, self.streams = here / "control", here / "streams"
        self._owner = os.getpid()
        self._said = here / "said"
        command = [str(_hivemind() / "hivemind_cli" / "p2pd"), "-q", f"-listen=/unix{self.control}"]
        command += [f"-{name}={value}" for name, value in {**_OPTIONS, **options}.items()]
        quiet = {**os.environ, "GOLOG_LOG_LEVEL": "error"}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=quiet
            )
        self._held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        atexit.register(self.end)
        try:
            self._hold()
        except BaseException:
            self.end()
            raise

    @property
    def is_alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def _hold(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self._held.connect(str(self.control))
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    words = self._said.read_text(errors="replace").strip().splitlines()
                    why = words[-1] if words else "it says nothing"
                    raise ConnectionError(f"the libp2p daemon did not start: {why}") from None
                time.sleep(_POLL_S)
        upgrade = _request("PERSISTENT_CONN_UPGRADE")
        self._held.sendall(_sized(upgrade.SerializeToString()))

    async def connect(self, peer: bytes, address: bytes) -> None:
        """Have a connection to a peer at a multiaddress. Raises OSError."""
        await self.tell(_request("CONNECT", connect={"peer": peer, "addrs": [address]}))

    async def open_stream(self, peer: bytes, protocol: str) -> Stream:
        """A stream to a connected peer. Raises OSError."""
        wanted = {"peer": peer, "proto": [protocol]}
        return (await self.ask(_request("STREAM_OPEN", streamOpen=wanted)))[1]

    async def tell(self, request: Any) -> Any:
        """The answer to a request that needs no stream. Raises OSError."""
        async with asyncio.timeout(_ASK_TIMEOUT_S * 2):
            response, (_, writer) = await self.ask(request)
        writer.close()
        return response

    async def ask(self, request: Any) -> tuple[Any, Stream]:
        """The answer and the connection on which it came. Raises OSError in the daemon's words."""
        reader, writer = await asyncio.open_unix_connection(self.control, limit=_READ_BYTES)
        try:
            writer.write(_sized(request.SerializeToString()))
            response = _messages().Response.FromString(await _read(reader))
            if response.type == _messages().Response.ERROR:
                raise ConnectionError(" ".join(response.error.msg.split()))
        except asyncio.IncompleteReadError:
            writer.transport.abort()
            raise ConnectionError("the libp2p daemon ended") from None
        except BaseException:
            writer.transport.abort()
            raise
        return response, (reader, writer)

    def end(self) -> None:
        """Blocks for a moment. Safe to call twice, and in a forked child, where it does nothing."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.end)
        self._held.close()
        self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.remove()


_starting = threading.Lock()
_shared: _Daemon | None = None


def _dialer() -> _Daemon:
    """The daemon through which this process dials, started when it is first needed."""
    global _shared
    with _starting:
        if _shared is None or not _shared.is_alive:
            if _shared is not None:
                _shared.end()
            _shared = _Daemon()
        return _shared


# --- what the daemon understands ---


def _hivemind() -> Path:
    found = importlib.util.find_spec("hivemind")
    assert found is not None and found.submodule_search_locations, "installed with us"
    return Path(found.submodule_search_locations[0])


@cache
def _messages() -> ModuleType:
    """hivemind's generated messages, without hivemind."""
    name = "hivemind.proto.p2pd_pb2"
    if name in sys.modules:
        return sys.modules[name]
    path = _hivemind() / "proto" / "p2pd_pb2.py"
    spec = importlib.util.spec_from_file_location("headrace_p2pd_pb2", path)
    assert spec is not None and spec.loader is not None, "a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _request(kind: str, **body: dict[str, Any]) -> Any:
    request = _messages().Request
    return request(type=request.Type.Value(kind), **body)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """One message after its length. Raises IncompleteReadError, ValueError for one too long."""
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            raise ValueError("a length without end")
    if size > _MAX_ANSWER_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return await reader.readexactly(size)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _field(message: Any, number: int) -> Any:
    """A field of a protobuf message, bytes or a number. Raises ValueError where it is missing."""
    at = 0

    def varint() -> int:
        nonlocal at
        value: int = 0
        shift = 0
        while True:
            byte: int = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    try:
        while at < len(message):
            key = varint()
            found = varint()
            if key & 7 == 2:
                found, at = message[at : at + found], at + found
            if key >> 3 == number:
                return found
    except IndexError:
        pass
    raise ValueError(f"no field {number}")


def _encode(address: str) -> bytes:
    """A peer's multiaddress as bytes; hivemind writes peer ids in a form its daemon refuses."""
    out, parts = bytearray(), iter(address.removeprefix("/").split("/"))
    for name in parts:
        value = next(parts, "")
        match name:
            case "ip4":
                out += b"\x04" + ipaddress.IPv4Address(value).packed
            case "ip6":
                out += b"\x29" + ipaddress.IPv6Address(value).packed
            case "dns" | "dns4" | "dns6":
                out += _varint(_NAMES[name]) + _sized(value.encode())
            case "tcp" if value.isdecimal() and int(value) < 2**16:
                out += b"\x06" + int(value).to_bytes(2, "big")
            case "p2p":
                out += _varint(_P2P) + _sized(_peer_id(value))
            case _:
                raise ValueError(f"{address} is no address of a relay: {name or 'nothing'}")
    return bytes(out)


def _can_be_relay(address: str) -> bool:
    """Whether it is an address of the form that ours takes: over TCP, with the relay's peer id."""
    where, _, name = address.rpartition("/p2p/")
    try:
        _encode(where)
        _peer_id(name)
    except ValueError:
        log.warning("this peer of the swarm cannot be a relay", address=address)
        return False
    return "/tcp/" in where


def _is_private(address: str) -> bool:
    name, host = address.split("/")[1:3]
    return name in ("ip4", "ip6") and not ipaddress.ip_address(host).is_global


def _peer_id(text: str) -> bytes:
    """Raises ValueError."""
    found = base58.b58decode(text)
    if not 8 <= len(found) <= 64:
        raise ValueError(f"'{text}' is no peer id")
    return found


def write_key(path: Path) -> None:
    """A new libp2p key, readable by us alone. Raises FileExistsError."""
    private = Ed25519PrivateKey.generate()
    data = _ED25519 + private.private_bytes_raw() + private.public_key().public_bytes_raw()
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(data)
