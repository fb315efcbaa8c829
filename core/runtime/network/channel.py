"""Direct streams between two parties with proven keys: connect, call, push, answer.

Handshake: both send an ephemeral X25519 key, a nonce and their address; both sign the SHA-256 of
the two greetings (EIP-712 `Hello`, with their role, so neither can replay the other's). Keys for
each direction come from HKDF over the shared secret and that transcript; every frame is AES-256-GCM
under a counter nonce, so a replayed, dropped or altered frame ends the stream.

A stranger's mistake is counted by reason and ends at most its own stream; it never raises into the
caller's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from core.keys.signer import DEVNET_CHAIN_IDS
from core.protocol import signing, wire
from core.protocol.errors import (
    AuthenticationFailed,
    FrameTooLarge,
    HeadraceError,
    PeerUnreachable,
    WireError,
)
from core.runtime.logs import get_logger
from core.runtime.network.circuits import is_circuit, open_circuit
from core.runtime.network.pace import FramePace
from core.runtime.network.places import (
    HandshakePace,
    NoPlace,
    StreamLimits,
    address_of,
    to_drop,
)
from core.runtime.network.targets import public_route
from core.runtime.tasks import spawn

if TYPE_CHECKING:
    from core.runtime.settings import NetworkSettings

MAGIC = b"HRD1"
_GREETING_BYTES = len(MAGIC) + 32 + 16 + 20
_SIGNATURE_BYTES = 65
_TAG_BYTES = 16
_MAX_MALFORMED = 8
_MAX_CALLS_IN_FLIGHT = 64
#: Of a stranger, who is party to nothing: what it may have us hold, times its streams, is 36 MiB.
STRANGER_FRAME_BYTES, STRANGER_CALLS = 32 * 1024, 6
#: Frames of all strangers together that a listener reads in a second, and at once after a pause.
STRANGER_FRAMES_PER_S, STRANGER_BURST = 100.0, 200
_FLUSH_TIMEOUT_S = 2.0
_WRITE_BYTES = 1 << 18
#: A frame up to this size is written whole, without waiting, unless more than this waits already.
_SMALL_BYTES = 1 << 16
#: Larger frames are encrypted and decrypted in parts as they leave and come, within the cache.
_READ_BYTES = 1 << 18
HANDSHAKE_TIMEOUT_S = 10.0
#: The next route of an endpoint is tried as well when the one before has not led anywhere by then.
HEAD_START_S = 0.3
MAX_ROUTES = 3
STALL_TIMEOUT_S = 300.0  # a peer may be busy this long before a sender that waits for it gives up

Answer = wire.AnyMessage | tuple[wire.AnyMessage, bytes] | None
Handler = Callable[["Channel", wire.Frame], Awaitable[Answer]]
log = get_logger(__name__)


async def refuse_everything(channel: Channel, frame: wire.Frame) -> Answer:
    """Handler of a party that only asks."""
    return wire.Failed(code="E-PEER-03", reason="this side answers no calls")


@dataclass
class StreamStats:
    """What strangers did, by reason; the owner publishes it as metrics."""

    counts: Counter[str] = field(default_factory=Counter)

    def count(self, reason: str) -> None:
        self.counts[reason] += 1


class Channel:
    """One authenticated stream. `peer` is the address that signed the handshake."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        send_key: bytes,
        receive_key: bytes,
        handler: Handler,
        stats: StreamStats,
    ) -> None:
        self.peer = peer
        self._reader, self._writer = reader, writer
        self._send_cipher, self._receive_cipher = AESGCM(send_key), AESGCM(receive_key)
        self._send_key, self._receive_key = AES256(send_key), AES256(receive_key)
        self._sent = itertools.count()
        self.received = 0  # frames
        self.heard_at = asyncio.get_running_loop().time()
        self._waiting: dict[int, asyncio.Future[wire.Frame | None]] = {}
        self._handler = handler
        self._stats = stats
        self._is_strange: Callable[[], bool] | None = None
        self._pace: FramePace | None = None
        self._send_lock = asyncio.Lock()
        self._calls: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        _keep_alive(writer)
        self._loop_task = asyncio.create_task(self._receive_loop(), name=f"channel {peer[:8]}")

    @property
    def is_open(self) -> bool:
        return not self._closed.is_set()

    def bound(self, is_strange: Callable[[], bool], pace: FramePace) -> None:
        """Take a stranger's large frames, and many of its calls at once, only when it is one no
        longer; and its frames as the pace of all strangers allows.
        """
        self._is_strange, self._pace = is_strange, pace

    @property
    def address(self) -> str:
        """Of the peer's machine, as `address_of` says: "" for this one, and through a relay."""
        return address_of(self._writer.get_extra_info("peername"))

    @property
    def is_sending(self) -> bool:
        """Whether a message has not left yet, because the peer reads slower than we write."""
        return self._send_lock.locked()

    @property
    def is_stranger(self) -> bool:
        """Whether the peer is a stranger still; one that is none now is none for good."""
        if self._is_strange is not None and not self._is_strange():
            self._is_strange = None
        return self._is_strange is not None

    async def send(
        self,
        message: wire.AnyMessage,
        payload: bytes | memoryview | Sequence[bytes | memoryview] = b"",
    ) -> None:
        """Push a message that asks for no answer. Waits while the peer reads slower than we write.

        Raises PeerUnreachable when the stream is down; the message may or may not have arrived.
        """
        await self._send_body(wire.encode_parts(message, payload))

    def send_now(
        self,
        message: wire.AnyMessage,
        payload: bytes | memoryview | Sequence[bytes | memoryview] = b"",
    ) -> bool:
        """Push a small message without waiting; False, and nothing sent, where `send` is needed."""
        if not self.is_open or self._send_lock.locked() or self._is_slow():
            return False
        parts = wire.encode_parts(message, payload)
        if sum(map(len, parts)) > _SMALL_BYTES:
            return False
        try:
            self._write_small(parts)
        except (OSError, RuntimeError):
            self._shut()
            self._writer.transport.abort()
            return False
        return True

    async def call(
        self,
        message: wire.AnyMessage,
        payload: bytes | memoryview = b"",
        *,
        timeout_s: float = 15.0,
    ) -> wire.Frame:
        """Ask and wait for the answer, which may be a `Failed`.

        Raises PeerUnreachable when the stream ends or `timeout_s` passes first.
        """
        call_id = self._fresh_id()
        answer: asyncio.Future[wire.Frame | None] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_body(wire.encode_parts(message, payload, id=call_id))
                frame = await answer
        except TimeoutError:
            raise PeerUnreachable(self.peer, f"no answer within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(call_id, None)
        if frame is None:
            raise PeerUnreachable(self.peer, "stream closed")
        return frame

    def _fresh_id(self) -> int:
        """The id of a call, which the peer cannot know before it has read all that came before it.

        Else it could answer early, and seem nearer or faster than it is.
        """
        while True:
            call_id = secrets.randbits(32)
            if call_id and call_id not in self._waiting:
                return call_id

    async def close(self) -> None:
        """End the stream once what was sent has left; pending calls fail. Safe to repeat."""
        self._shut()
        running = {self._loop_task, *self._calls} - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                # Shielded: every waiter has the same future, which our timeout would cancel.
                await asyncio.shield(self._writer.wait_closed())
        except OSError:  # also the timeout: a peer that does not read must not keep the stream
            self._writer.transport.abort()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def _send_body(self, body: bytes | Sequence[memoryview]) -> None:
        parts = [memoryview(body)] if isinstance(body, bytes) else body
        async with self._send_lock:
            if not self.is_open:
                raise PeerUnreachable(self.peer, "stream closed")
            size, is_whole = sum(map(len, parts)), True
            try:
                if size <= _SMALL_BYTES and not self._is_slow():
                    self._write_small(parts)
                    return
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    is_whole = False
                    await self._write_large(parts, size)
                    is_whole = True
                    await self._writer.drain()
            except asyncio.CancelledError:
                if not is_whole:  # half a frame left: what comes after it could not be read
                    self._shut()
                    self._writer.transport.abort()
                raise
            except (OSError, RuntimeError) as error:
                self._shut()
                self._writer.transport.abort()
                raise PeerUnreachable(self.peer, str(error) or "connection lost") from None

    async def _write_large(self, parts: Sequence[memoryview], size: int) -> None:
        """In pieces that the socket takes: of a whole the transport would copy the rest."""
        nonce = next(self._sent).to_bytes(12, "big")
        sealing = Cipher(self._send_key, GCM(nonce)).encryptor()
        self._writer.write((size + _TAG_BYTES).to_bytes(4, "big") + sealing.update(parts[0]))
        for part in parts[1:]:
            for at in range(0, len(part), _WRITE_BYTES):
                self._writer.write(sealing.update(part[at : at + _WRITE_BYTES]))
                await self._writer.drain()
        self._writer.write(sealing.finalize() + sealing.tag)

    def _is_slow(self) -> bool:
        """Whether the transport holds so much that senders should wait."""
        return self._writer.transport.get_write_buffer_size() > _SMALL_BYTES

    def _write_small(self, parts: Sequence[memoryview]) -> None:
        """In one system call and, mostly, one packet."""
        nonce = next(self._sent).to_bytes(12, "big")
        sealed = self._send_cipher.encrypt(nonce, b"".join(parts), None)
        self._writer.write(len(sealed).to_bytes(4, "big") + sealed)

    async def _receive_loop(self) -> None:
        malformed = 0
        try:
            while self.is_open:
                body = await self._receive_body()
                try:
                    frames = wire.unbundle(wire.decode(body))
                except WireError as error:
                    self._stats.count(type(error).__name__)
                    malformed += 1
                    if malformed >= _MAX_MALFORMED:
                        return
                    continue
                for frame in frames:
                    await self._dispatch(frame)
                del body, frames, frame  # not held while the next one is awaited
        except (asyncio.IncompleteReadError, OSError):
            pass  # the peer is gone: what waits for it is told
        except asyncio.CancelledError:
            pass  # `close`: as an error of the task it would keep us alive until cycles are freed
        except WireError as error:
            self._stats.count(type(error).__name__)
        finally:
            if self.is_open:
                self._shut()
                self._writer.transport.abort()

    async def _receive_body(self) -> bytes | bytearray:
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        if not _TAG_BYTES <= length <= wire.MAX_FRAME_BYTES + _TAG_BYTES:
            raise FrameTooLarge(f"frame of {length} bytes", f"the limit is {wire.MAX_FRAME_BYTES}")
        if self.is_stranger:
            if length > STRANGER_FRAME_BYTES:
                limit = f"the limit is {STRANGER_FRAME_BYTES} for who is party to no job here"
                raise FrameTooLarge(f"frame of {length} bytes", limit)
            if self._pace is not None:
                await self._pace.turn()
        nonce = self.received.to_bytes(12, "big")
        self.received += 1
        self.heard_at = asyncio.get_running_loop().time()
        try:
            if length > _SMALL_BYTES:
                return await self._receive_large(nonce, length - _TAG_BYTES)
            sealed = await self._reader.readexactly(length)
            return self._receive_cipher.decrypt(nonce, sealed, None)
        except InvalidTag:
            raise AuthenticationFailed(self.peer) from None

    async def _receive_large(self, nonce: bytes, size: int) -> bytearray:
        """Decrypted as it comes; none of it is handed on before its tag has been checked."""
        opening = Cipher(self._receive_key, GCM(nonce)).decryptor()
        body, filled = bytearray(size), 0
        with memoryview(body) as view:
            while filled < size:
                sealed = await self._reader.read(min(_READ_BYTES, size - filled))
                if not sealed:
                    raise asyncio.IncompleteReadError(b"", size - filled)
                filled += opening.update_into(sealed, view[filled:])
        opening.finalize_with_tag(await self._reader.readexactly(_TAG_BYTES))
        return body

    async def _dispatch(self, frame: wire.Frame) -> None:
        if frame.re:
            answer = self._waiting.get(frame.re)
            if answer is None or answer.done():
                self._stats.count("UnexpectedAnswer")
            else:
                answer.set_result(frame)
        elif frame.id:
            calls = len(self._calls)
            is_much = calls >= STRANGER_CALLS and self.is_stranger
            if is_much or calls >= _MAX_CALLS_IN_FLIGHT:
                self._stats.count("TooManyCalls")
                busy = wire.Failed(code="E-PEER-04", reason="too many calls at once")
                with contextlib.suppress(PeerUnreachable):
                    await self._send_body(wire.encode_parts(busy, re=frame.id))
                return
            spawn(self._answer(frame), self._calls)
        else:
            # In order and one at a time: activations of a request may not overtake each other, and
            # a handler that waits for room is the backpressure the sender feels.
            await self._run_handler(frame)

    async def _answer(self, frame: wire.Frame) -> None:
        answer = await self._run_handler(frame)
        if answer is None:
            return
        message, payload = answer if isinstance(answer, tuple) else (answer, b"")
        try:
            parts = wire.encode_parts(message, payload, re=frame.id)
        except WireError as error:
            self._stats.count(type(error).__name__)
            parts = wire.encode_parts(_failure(error), re=frame.id)
        with contextlib.suppress(PeerUnreachable):
            await self._send_body(parts)

    async def _run_handler(self, frame: wire.Frame) -> Answer:
        try:
            return await self._handler(self, frame)
        except HeadraceError as error:
            self._stats.count(type(error).__name__)
            return _failure(error)
        except Exception as error:
            self._stats.count("HandlerBug")
            log.exception("handler failed", message=type(frame.message).__name__, peer=self.peer)
            return wire.Failed(code="E-BUG-01", reason=f"{type(error).__name__} on our side")

    def _shut(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._is_strange = None  # it refers to us: freed at once, not when cycles are looked for
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)
        for task in self._calls - {asyncio.current_task()}:
            task.cancel()


def _failure(error: HeadraceError) -> wire.Failed:
    return wire.Failed(code=error.code, reason=str(error)[:2000])


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel notice within half a minute that a silent peer's machine is gone."""
    sock = writer.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:  # a circuit, which the libp2p daemon keeps alive
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # Linux names
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _greeting(public: bytes, address: str) -> bytes:
    return MAGIC + public + os.urandom(16) + bytes.fromhex(address.removeprefix("0x"))


def _parse_greeting(greeting: bytes) -> tuple[bytes, str]:
    if greeting[:4] != MAGIC:
        raise AuthenticationFailed("a peer that does not speak this protocol")
    return greeting[4:36], "0x" + greeting[52:72].hex()


def _hello(first: bytes, second: bytes, role: int) -> tuple[signing.Hello, bytes]:
    transcript = sha256(b"headrace/stream/1" + first + second).digest()
    return signing.Hello(transcript="0x" + transcript.hex(), role=role), transcript


def _keys(private: X25519PrivateKey, peer_public: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError:
        raise AuthenticationFailed("a peer with a degenerate key") from None
    keys = HKDF(hashes.SHA256(), 64, salt=transcript, info=b"headrace/stream/1").derive(shared)
    return keys[:32], keys[32:]


def dials_private(chain_id: int, private_addresses: bool | None) -> bool:
    """Whether strangers may send us to addresses of our own network; None: on a devnet's chain."""
    return chain_id in DEVNET_CHAIN_IDS if private_addresses is None else private_addresses


class StreamIdentity:
    """Who we are on every stream: a key and the network it is valid for.

    `private_addresses`: whether endpoints may be private ones; None: on a development chain.
    """

    def __init__(
        self,
        signer: signing.DigestSigner,
        domain: signing.Domain,
        *,
        private_addresses: bool | None = None,
    ) -> None:
        self.signer, self.domain = signer, domain
        self.dials_private = dials_private(domain.chain_id, private_addresses)
        self._welcoming = asyncio.Lock()

    @classmethod
    def on(
        cls, network: NetworkSettings, signer: signing.DigestSigner, domain: signing.Domain
    ) -> StreamIdentity:
        """Who we are on a network that says which addresses are dialled there."""
        return cls(signer, domain, private_addresses=network.private_addresses)

    def _sign(self, hello: signing.Hello) -> bytes:
        return bytes.fromhex(signing.sign(self.signer, self.domain, hello)[2:])

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Compute for one handshake. What else is ready comes before the next: hundreds at once
        hold up no token.
        """
        async with self._welcoming:
            yield
            await asyncio.sleep(0)

    def _check(self, hello: signing.Hello, signature: bytes, address: str) -> str:
        signer = signing.recover(self.domain, hello, "0x" + signature.hex())
        if signer is None or signer.lower() != address.lower():
            raise AuthenticationFailed(address)
        return signer

    async def greet(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        expected: str | None,
        handler: Handler,
        stats: StreamStats,
    ) -> Channel:
        """Initiator's side. Raises AuthenticationFailed unless the peer proves the expected key."""
        private = X25519PrivateKey.generate()
        mine = _greeting(private.public_key().public_bytes_raw(), self.signer.address)
        writer.write(mine)
        await writer.drain()
        theirs = await reader.readexactly(_GREETING_BYTES)
        signature = await reader.readexactly(_SIGNATURE_BYTES)
        public, claimed = _parse_greeting(theirs)
        hello, transcript = _hello(mine, theirs, 1)
        peer = self._check(hello, signature, claimed)
        if expected is not None and peer.lower() != expected.lower():
            raise AuthenticationFailed(f"{peer} where {expected} was expected")
        writer.write(self._sign(_hello(mine, theirs, 0)[0]))
        await writer.drain()
        to_responder, to_initiator = _keys(private, public, transcript)
        return Channel(reader, writer, peer, to_responder, to_initiator, handler, stats)

    async def welcome(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        stats: StreamStats,
    ) -> Channel:
        """Responder's side. Raises AuthenticationFailed unless the peer proves the key it names."""
        theirs = await reader.readexactly(_GREETING_BYTES)
        public, claimed = _parse_greeting(theirs)
        async with self._turn():
            private = X25519PrivateKey.generate()
            mine = _greeting(private.public_key().public_bytes_raw(), self.signer.address)
            hello, transcript = _hello(theirs, mine, 1)
            writer.write(mine + self._sign(hello))
        await writer.drain()
        signature = await reader.readexactly(_SIGNATURE_BYTES)
        async with self._turn():
            peer = self._check(_hello(theirs, mine, 0)[0], signature, claimed)
        to_responder, to_initiator = _keys(private, public, transcript)
        return Channel(reader, writer, peer, to_initiator, to_responder, handler, stats)


async def open_route(route: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection by host:port or a circuit; set a deadline. Raises OSError, ValueError."""
    if is_circuit(route):
        return await open_circuit(route)
    host, _, port = route.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port), limit=_READ_BYTES)


async def connect(
    endpoint: str,
    identity: StreamIdentity,
    *,
    expected: str | None,
    handler: Handler = refuse_everything,
    stats: StreamStats | None = None,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Channel:
    """Open a stream to an endpoint, whose owner must prove the key `expected`.

    An endpoint is a route, or some of them separated by commas: each is tried when the one before
    it has failed or is slow, and the first at whose end the right key answers is taken. Raises
    PeerUnreachable (no route, refused, silent), which names what is wrong with every route, or
    AuthenticationFailed (another key answers at the only one).
    """
    stats = stats or StreamStats()
    routes = endpoint.split(",")
    if len(routes) == 1:
        return await _connect(endpoint, identity, expected, handler, stats, timeout_s)
    if len(routes) > MAX_ROUTES:
        why = f"its endpoint has {len(routes)} routes, more than {MAX_ROUTES}"
        raise PeerUnreachable(expected or endpoint, why)
    tries: dict[asyncio.Task[Channel], str] = {}
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    wrong: list[str] = []
    try:
        while routes or tries:
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            if routes:
                route = routes.pop(0)
                opening = _connect(route, identity, expected, handler, stats, left_s)
                tries[asyncio.create_task(opening, name=f"route {route}")] = route
            wait_s = HEAD_START_S if routes else None
            done, _ = await asyncio.wait(tries, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: task.exception() is not None):
                if (error := task.exception()) is None:
                    tries.pop(task)
                    return task.result()
                if not isinstance(error, HeadraceError):
                    raise error
                route = tries.pop(task)
                is_plain = isinstance(error, PeerUnreachable)
                wrong.append(error.why if is_plain else f"{route}: {error.what}: {error.why}")
        raise PeerUnreachable(expected or endpoint, "; ".join(wrong))
    finally:
        for task in tries:
            task.cancel()
        for other in await asyncio.gather(*tries, return_exceptions=True):
            if isinstance(other, Channel):
                await other.close()


async def _connect(
    route: str,
    identity: StreamIdentity,
    expected: str | None,
    handler: Handler,
    stats: StreamStats,
    timeout_s: float,
) -> Channel:
    try:
        async with asyncio.timeout(timeout_s):
            to = route if identity.dials_private else await public_route(route)
            reader, writer = await open_route(to)
            try:
                return await identity.greet(reader, writer, expected, handler, stats)
            except BaseException:
                writer.transport.abort()
                raise
    except (OSError, ValueError, OverflowError, asyncio.IncompleteReadError) as error:
        reason = str(error) or type(error).__name__
        raise PeerUnreachable(expected or route, f"{route}: {reason}") from None


class Listener:
    """Accepts streams on a port and keeps them until closed.

    At most `max_channels` streams are kept, and as many handshakes wait beside them. One more
    handshake drops the oldest: an honest one is over in milliseconds, so silent strangers lock no
    peer out. Those of one address have a pace. One more stream drops another as `places.to_drop`
    says. `standing` are the keys, in lower case, that are no strangers now: those have fewer
    places, small frames alone, and a pace that they share. None: we know no strangers.
    """

    def __init__(
        self,
        identity: StreamIdentity,
        handler: Handler,
        *,
        max_channels: int = 256,
        standing: Callable[[], Set[str]] | None = None,
        on_open: Callable[[Channel], None] | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self.stats = StreamStats()
        self.channels: set[Channel] = set()
        self._identity, self._handler = identity, handler
        self._max_channels, self._limits = max_channels, StreamLimits(max_channels)
        self._standing = standing
        self._strangers_pace = FramePace(STRANGER_FRAMES_PER_S, STRANGER_BURST)
        self._on_open = on_open
        self._handshake_timeout_s, self._pace = handshake_timeout_s, HandshakePace()
        self._accepted: set[asyncio.Task[None]] = set()
        self._handshakes: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError when the port is taken."""
        self._server = await asyncio.start_server(self.accept, host, port, limit=_READ_BYTES)

    async def close(self) -> None:
        """Stop listening and end every stream."""
        if self._server is not None:
            self._server.close()
        for task in self._accepted:
            task.cancel()
        await asyncio.gather(*self._accepted, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection opened to us, by our port or a relay, until its stream ends."""
        task = asyncio.current_task()
        assert task is not None, "asyncio starts one per connection"
        self._accepted.add(task)
        try:
            channel = await self._welcome(reader, writer)
            if channel is not None:
                await self._keep(channel)
        except asyncio.CancelledError:
            # `close` or the loop's end cancels it, and asyncio 3.11 reports that as a failure.
            pass
        finally:
            self._accepted.discard(task)

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Channel | None:
        if len(self._handshakes) >= self._max_channels:
            self.stats.count("TooManyHandshakes")
            next(iter(self._handshakes)).transport.abort()
        self._handshakes[writer] = None
        address = address_of(writer.get_extra_info("peername"))
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                await self._pace.turn(address)
                return await self._identity.welcome(reader, writer, self._handler, self.stats)
        except NoPlace:
            self.stats.count("TooManyHandshakes")
            writer.transport.abort()
            return None
        except (HeadraceError, OSError, asyncio.IncompleteReadError) as error:
            self.stats.count(type(error).__name__)
            writer.transport.abort()
            return None
        except asyncio.CancelledError:
            writer.transport.abort()
            return None  # the listener closes, and asyncio would log a cancelled task as a bug
        finally:
            self._handshakes.pop(writer, None)

    async def _keep(self, channel: Channel) -> None:
        standing = self._standing
        known: Set[str] = standing() if standing else frozenset()
        try:
            dropped = to_drop(self.channels, channel.peer, known, self._limits)
        except NoPlace:
            self.stats.count("TooManyStreams")
            await channel.close()
            return
        self.channels.add(channel)
        if standing is not None:
            channel.bound(lambda: channel.peer.lower() not in standing(), self._strangers_pace)
        try:
            if dropped is not None:
                self.stats.count("StreamsDropped")
                self.channels.discard(dropped)
                await dropped.close()
            if self._on_open is not None:
                self._on_open(channel)
            await channel.wait_closed()
        except asyncio.CancelledError:  # the listener closes
            await channel.close()
        finally:
            self.channels.discard(channel)


class Peers:
    """Streams we opened, one per peer, reconnected on demand."""

    def __init__(self, identity: StreamIdentity, handler: Handler = refuse_everything) -> None:
        self.stats = StreamStats()
        self._identity, self._handler = identity, handler
        self._channels: dict[str, Channel] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closed = False

    async def get(self, operator: str, endpoint: str, *, timeout_s: float = 5.0) -> Channel:
        """An open stream to this operator. Raises PeerUnreachable or AuthenticationFailed."""
        key = f"{operator.lower()}@{endpoint}"
        try:
            async with asyncio.timeout(timeout_s), self._lock(key):
                channel = self._channels.get(key)
                if channel is None or not channel.is_open:
                    channel = await self._open(operator, endpoint, timeout_s)
                    self._channels[key] = channel
                return channel
        except TimeoutError:
            raise PeerUnreachable(operator, f"{endpoint}: no stream in {timeout_s:g} s") from None

    async def close(self) -> None:
        """End every stream; `get` refuses from now on."""
        self._closed = True
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        self._channels.clear()

    def _lock(self, key: str) -> asyncio.Lock:
        if key not in self._locks:  # a new peer: forget those that are gone, or restarts add up
            self._channels = {k: c for k, c in self._channels.items() if c.is_open}
            kept = self._channels.keys()
            self._locks = {k: o for k, o in self._locks.items() if k in kept or o.locked()}
        return self._locks.setdefault(key, asyncio.Lock())

    async def _open(self, operator: str, endpoint: str, timeout_s: float) -> Channel:
        channel = await connect(
            endpoint,
            self._identity,
            expected=operator,
            handler=self._handler,
            stats=self.stats,
            timeout_s=timeout_s,
        )
        if self._closed:
            await channel.close()
            raise PeerUnreachable(operator, "we are closing")
        return channel
