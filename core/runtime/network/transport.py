"""The swarm: who is there and what they say of themselves, over hivemind's libp2p DHT.

Only discovery and slow metrics go through it, never a token: a store or a look-up takes tens of
milliseconds and its failure detector is expiry. Records are opaque signed bytes
(`core.protocol.records`). Any peer may write under any key of a hivemind DHT, so every peer that is
given a `check` refuses to store or to return what fails it, and what stands under a key that was
not admitted: a stranger cannot overwrite a miner's record, nor a whole topic, nor fill a topic with
records of keys that have no stake.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from core.protocol.errors import PeerUnreachable
from core.runtime.folders import SocketFolder
from core.runtime.network import swarm_peer
from core.runtime.network.circuits import write_key
from core.runtime.network.swarm_peer import Check, PeerOptions

_CALL_TIMEOUT_S = 30.0
_ENDED = "our own peer has ended"


class Swarm:
    """One DHT peer, in a child process with its own daemon; start it before other threads.

    A peer that ends is started anew, and says so by one failed call: its owner publishes again.
    """

    def __init__(self, keeper: Any, sockets: SocketFolder, addresses: list[str]) -> None:
        self._keeper, self._sockets, self._addresses = keeper, sockets, addresses
        self._admitted: set[str] = set()
        self._link: _Link | None = None
        self._linking = asyncio.Lock()
        self._closing = False

    @classmethod
    def start(
        cls,
        listen_host: str,
        listen_port: int,
        bootstrap: Sequence[str],
        *,
        check: Check | None = None,
        is_relay: bool = False,
        only_dials: bool = False,
        key: Path | None = None,
        asks_anchors_every_s: float = 60.0,
    ) -> Swarm:
        """Join the swarm through any of the `bootstrap` multiaddresses (none: start a new one).

        Port 0 takes a free one. `check`: what else than an admitted key a record needs. `is_relay`:
        pass on bytes for machines that no peer can dial, if we can be dialled. `only_dials`: be
        such a machine, which stores and looks up, and is asked for nothing. `key`: the file of our
        libp2p key, made when missing, with which our multiaddress stays the same; others keep it,
        as where to join or as a relay. `asks_anchors_every_s`: how often a look-up also asks the
        `bootstrap` peers themselves, the first one always.

        Raises PeerUnreachable, with the daemon's own words, if it cannot start or finds no
        bootstrap peer.
        """
        import hivemind.dht  # noqa: F401  (once, before the keeper is forked)

        if key is not None and not key.exists():
            write_key(key)
        options = PeerOptions(
            listen_host,
            listen_port,
            tuple(bootstrap),
            check,
            is_relay,
            only_dials,
            key,
            asks_anchors_every_s,
        )
        sockets = SocketFolder("swarm")
        ours, theirs = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        started = (options, sockets, os.getpid(), ours, theirs)
        keeper = fork.Process(target=swarm_peer.keep, args=started, daemon=True)
        keeper.start()
        theirs.close()
        reason = "its process has ended"
        deadline = time.monotonic() + swarm_peer.START_ATTEMPTS * swarm_peer.START_TIMEOUT_S
        try:
            while ours.poll(max(0.0, deadline - time.monotonic())):
                word, said = ours.recv()
                if word == "ready":
                    return cls(keeper, sockets, said)
                reason = said
        except EOFError:
            pass
        finally:
            ours.close()
        _end(keeper, sockets)
        joined = ", ".join(bootstrap) or "none"
        raise PeerUnreachable("the swarm", f"{reason} (bootstrap: {joined})")

    @property
    def is_lost(self) -> bool:
        """Whether no peer will be started any more: the process that does it was killed."""
        return not self._closing and not self._keeper.is_alive()

    def addresses(self) -> list[str]:
        """Multiaddresses under which others can bootstrap through this peer."""
        return list(self._addresses)

    async def admit(self, operators: Iterable[str]) -> None:
        """Store and believe records under these keys alone, from now on and of every later peer.

        Raises PeerUnreachable when our own peer has ended; the next one is told.
        """
        wanted = set(operators)
        added, removed = sorted(wanted - self._admitted), sorted(self._admitted - wanted)
        self._admitted = wanted
        if added or removed or self._link is None:
            await self._call("admit", added, removed)

    async def publish(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool:
        """Store `record` under (topic, key) for `ttl_s`; a later expiry replaces an earlier one.

        False when a peer refused it, though others may have it (hivemind tells only what the last
        one said): the next announcement tries again. Raises PeerUnreachable when our own peer has
        ended.
        """
        return bool(await self._call("publish", topic, key, record, time.time() + ttl_s))

    async def lookup(self, *topics: str) -> dict[str, bytes]:
        """Latest unexpired record of every key of some topics, sealed; none if no peer answers.

        Raises PeerUnreachable when our own peer has ended.
        """
        found: dict[str, bytes] = await self._call("lookup", topics) or {}
        return found

    async def peers(self) -> list[str]:
        """Multiaddresses of connected peers: where a later start may bootstrap through."""
        return await self._call("peers") or []

    def close(self) -> None:
        """Leave, end the child processes. Safe to repeat; calls under way fail."""
        if not self._closing:
            self._closing = True
            _end(self._keeper, self._sockets)

    async def _call(self, name: str, *arguments: Any) -> Any:
        """What our peer answers, None after a deadline."""
        link = await self._linked()
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                return await link.call(name, *arguments)
        except TimeoutError:
            return None

    async def _linked(self) -> _Link:
        async with self._linking:
            if self._closing:
                raise PeerUnreachable("the swarm", "closed")
            if self._link is None or self._link.is_over:
                self._link = None
                try:
                    link = await _Link.open(swarm_peer.socket_of(self._sockets))
                except OSError as error:
                    raise PeerUnreachable("the swarm", f"{_ENDED}: {error}") from None
                self._addresses = await link.call("addresses")
                await link.call("admit", sorted(self._admitted), [])
                self._link = link
            return self._link


class _Link:
    """A connection to our peer: calls and their answers, by number."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self._numbers = writer, itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read(reader), name="answers of our peer")

    @classmethod
    async def open(cls, path: Path) -> _Link:
        """Raises OSError where no peer listens."""
        return cls(*await asyncio.open_unix_connection(str(path)))

    @property
    def is_over(self) -> bool:
        return self._reading.done()

    async def call(self, name: str, *arguments: Any) -> Any:
        """Raises PeerUnreachable when our peer ends first, or with what hivemind raised."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        if self.is_over:
            raise PeerUnreachable("the swarm", _ENDED)
        self._waiting[number] = answer
        try:
            swarm_peer.write_message(self._writer, (number, name, arguments))
            value, why = await answer
        finally:
            self._waiting.pop(number, None)
        if why:
            raise PeerUnreachable("the swarm", why)
        return value

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, value, why = await swarm_peer.read_message(reader)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result((value, why))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writer.transport.abort()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result((None, _ENDED))


def _end(keeper: Any, sockets: SocketFolder) -> None:
    """End the keeper, which ends its peer; a keeper that hangs is killed, and its peer notices."""
    keeper.terminate()
    keeper.join(2 * swarm_peer.END_TIMEOUT_S)
    if keeper.is_alive():
        keeper.kill()
        keeper.join()
    sockets.remove()
