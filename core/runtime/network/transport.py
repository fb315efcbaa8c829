"""The swarm: who is there and what they say of themselves, over hivemind's libp2p DHT.

Only discovery and slow metrics go through it, never a token: a store or a look-up takes tens of
milliseconds and its failure detector is expiry. Records are opaque signed bytes
(`core.protocol.records`). Any peer may write under any key of a hivemind DHT, so every peer that is
given a `check` refuses to store or to return what fails it: a stranger cannot overwrite a miner's
record, nor a whole topic, with garbage of a later expiry.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from core.protocol.errors import PeerUnreachable
from core.runtime.folders import SocketFolder
from core.runtime.logs import get_logger
from core.runtime.network.circuits import relayed_bytes, write_key
from core.runtime.tasks import spawn

log = get_logger(__name__)
_START_TIMEOUT_S = 60.0
_START_ATTEMPTS = 3
_CALL_TIMEOUT_S = 30.0
_END_POLL_S = 0.01
_END_TIMEOUT_S = 5.0
_POLL_S = 0.5
_STAY_S = 2.0
_VERDICTS_KEPT = 8192
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
key until then; None: nowhere. Must not look at a clock: peers whose clocks differ would refuse each
other's answers."""
#: In a child: its tasks, for a loop holds on to none.
_staying: set[asyncio.Task[Any]] = set()


class Swarm:
    """One DHT peer, in a child process with its own daemon; start it before other threads."""

    def __init__(self, dht: Any) -> None:
        self._dht = dht
        self._closing = False
        self._asking = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="swarm")

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
    ) -> Swarm:
        """Join the swarm through any of the `bootstrap` multiaddresses (none: start a new one).

        Port 0 takes a free one. `is_relay`: pass on bytes for machines that no peer can dial, if we
        can be dialled. `only_dials`: be such a machine, which stores and looks up, and is asked for
        nothing. `key`: the file of our libp2p key, made when missing, with which our multiaddress
        stays the same; others keep it, as where to join or as a relay.

        Raises PeerUnreachable, with the daemon's own words, if it cannot start or finds no
        bootstrap peer.
        """
        if key is not None and not key.exists():
            write_key(key)
        reason = "no attempt made"
        for attempt in range(1, _START_ATTEMPTS + 1):
            dht = _dht_class(is_relay)(
                host_maddrs=[f"/ip4/{listen_host}/tcp/{listen_port}"],
                initial_peers=list(bootstrap),
                record_validators=[_validator(check)] if check is not None else [],
                start=True,
                await_ready=False,
                use_ipfs=False,
                use_relay=is_relay,
                force_reachability="public" if is_relay else None,
                use_auto_relay=False,
                client_mode=only_dials,
                identity_path=None if key is None else str(key),
                check_if_identity_free=False,
                startup_timeout=_START_TIMEOUT_S,
            )
            dht._inner_pipe.close()  # the child's end: open here, a dead child would go unnoticed
            try:
                dht.wait_until_ready(timeout=_START_TIMEOUT_S)
                if is_relay and not _is_ample(dht):
                    if attempt < _START_ATTEMPTS:
                        why = "as a relay it keeps its first limits"
                        raise PeerUnreachable("our own peer", why)
                    log.warning("this peer of the swarm is of no use as a relay")
                if only_dials:
                    dht.run_coroutine(partial(_begin_to_stay, list(bootstrap)))
                return cls(dht)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                log.warning("swarm start failed", attempt=attempt, reason=reason)
                _end(dht, threading.Lock())
        joined = ", ".join(bootstrap) or "none"
        raise PeerUnreachable("the swarm", f"{reason} (bootstrap: {joined})")

    def addresses(self) -> list[str]:
        """Multiaddresses under which others can bootstrap through this peer."""
        return [str(address) for address in self._dht.get_visible_maddrs()]

    async def publish(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool:
        """Store `record` under (topic, key) for `ttl_s`; a later expiry replaces an earlier one.

        False when a peer refused it, though others may have it (hivemind tells only what the last
        one said): the next announcement tries again. Raises PeerUnreachable when our own peer has
        ended.
        """
        expires_at_s = time.time() + ttl_s
        accepted: bool = await self._run(self._store, topic, key, record, expires_at_s)
        return accepted

    async def lookup(self, topic: str) -> dict[str, bytes]:
        """Latest unexpired record of every key of a topic, sealed. Empty when no peer answers.

        Raises PeerUnreachable when our own peer has ended.
        """
        found: dict[str, bytes] = await self._run(self._get, topic)
        return found

    async def peers(self) -> list[str]:
        """Multiaddresses of connected peers: where a later start may bootstrap through."""
        return await self._run(self._ask, self._dht.run_coroutine, _connected) or []

    def close(self) -> None:
        """Leave, end the child process and its daemon. Safe to repeat; calls under way fail."""
        if self._closing:
            return
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        _end(self._dht, self._asking)
        self._pool.shutdown(wait=True)

    async def _run(self, function: Any, *args: Any) -> Any:
        if self._closing:
            raise PeerUnreachable("the swarm", "closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def _store(self, topic: str, key: str, record: bytes, expires_at_s: float) -> bool:
        options = {"subkey": key, "value": record, "expiration_time": expires_at_s}
        return bool(self._ask(self._dht.store, topic, **options))

    def _get(self, topic: str) -> dict[str, bytes]:
        found = self._ask(self._dht.get, topic, latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        records = ((str(key), item.value) for key, item in found.value.items())
        return {key: record for key, record in records if isinstance(record, bytes)}

    def _ask(self, function: Any, *args: Any, **options: Any) -> Any:
        """What the child answers, None after a deadline; hivemind would wait for a dead child."""
        try:
            with self._asking:  # hivemind writes to a pipe, one thread at a time
                if self._closing:
                    raise PeerUnreachable("the swarm", "closed")
                future = function(*args, return_future=True, **options)
        except OSError as error:
            raise PeerUnreachable("the swarm", f"our own peer has ended: {error}") from None
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=_POLL_S)
            if not self._dht.is_alive():
                raise PeerUnreachable("the swarm", "our own peer has ended")
        future.cancel()
        return None


async def _connected(_: Any, node: Any) -> list[str]:
    """Runs in the child. libp2p dials out from the port it listens on, so callers can be called."""
    found = await node.protocol.p2p.list_peers()
    return sorted(f"{address}/p2p/{peer.peer_id}" for peer in found for address in peer.addrs)


async def _begin_to_stay(bootstrap: list[str], _: Any, node: Any) -> None:
    """Runs in the child."""
    spawn(_stay(bootstrap, node), _staying)


async def _stay(bootstrap: list[str], node: Any) -> None:
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


def _end(dht: Any, asking: threading.Lock) -> None:
    """End the child, gently if it still listens, and the daemon that it started."""

    def ask_to_end() -> None:
        with asking:  # it closes the pipe, to which no thread may be writing
            dht.shutdown()

    gently = threading.Thread(target=ask_to_end, daemon=True)
    gently.start()
    gently.join(_END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(dht.pid, signal.SIGKILL)
    if dht.is_alive():
        dht.kill()
    dht.join()
    deadline = time.monotonic() + _END_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:  # a killed daemon holds its port a moment longer
            os.killpg(dht.pid, 0)
            time.sleep(_END_POLL_S)
    dht.sockets.remove()


def _dht_class(is_relay: bool) -> Any:
    from hivemind.dht import DHT
    from hivemind.p2p import P2P

    class Peer(DHT):  # type: ignore[misc]
        """A DHT child that leads its own process group and ends with its parent, as its files do.

        The sockets of its daemon are in a folder that only we may enter: hivemind leaves two in the
        open for every killed peer. Its own group, so that Ctrl-C in a terminal reaches only us
        while we drain; and hivemind's child would otherwise wait forever for commands of a parent
        that was killed.
        """

        def __init__(self, **options: Any) -> None:
            self.sockets = SocketFolder("swarm")
            super().__init__(**options)

        def run(self) -> None:
            os.setpgid(0, 0)
            parent = (self._parent_pid, self.sockets)
            threading.Thread(target=_end_with_parent, args=parent, daemon=True).start()
            P2P._UNIX_SOCKET_PREFIX = f"/unix{self.sockets.path}/"
            if is_relay:
                _set_relay_limits(P2P)
            super().run()

    return Peer


def _set_relay_limits(p2p: Any) -> None:
    """For the one daemon that this process will start; hivemind names only some options.

    The daemon starts a relay twice, with these limits and with others that suit nothing but a
    greeting (128 KiB, two minutes), and the later one counts. With one thread that is nearly always
    ours, and a relay takes no more than one processor.
    """
    options = p2p._make_process_args
    p2p._make_process_args = staticmethod(lambda *a, **k: options(*a, **k, **_RELAY_OPTIONS))
    os.environ["GOMAXPROCS"] = "1"


def _is_ample(dht: Any) -> bool:
    """Whether it came up with our limits. Blocks, as starting does."""
    with ThreadPoolExecutor(1) as aside:  # ours may be a thread with a loop
        try:
            address = str(dht.get_visible_maddrs()[0])
            found = aside.submit(asyncio.run, relayed_bytes(address)).result()
        except OSError as error:
            log.warning("our relay could not be asked for its limits", why=str(error))
            return False
    return found >= _RELAY_DATA_BYTES


def _end_with_parent(parent: int, sockets: SocketFolder) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    sockets.remove()
    os.killpg(0, signal.SIGKILL)


def _validator(check: Check) -> Any:
    """`check` as hivemind wants it; verdicts are kept, for answers repeat a topic's records."""
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase

    class Checked(RecordValidatorBase):  # type: ignore[misc]
        def __init__(self) -> None:
            self._verdicts: dict[bytes, bool] = {}

        def validate(self, record: DHTRecord) -> bool:
            expiry = struct.pack(">d", record.expiration_time)
            size = len(record.subkey).to_bytes(4, "big")
            digest = sha256(record.key + expiry + size + record.subkey + record.value).digest()
            if digest not in self._verdicts:
                if len(self._verdicts) >= _VERDICTS_KEPT:
                    self._verdicts.pop(next(iter(self._verdicts)))
                self._verdicts[digest] = _holds(check, record)
            return self._verdicts[digest]

    return Checked()


def _holds(check: Check, record: Any) -> bool:
    from hivemind.dht.routing import DHTID

    try:
        # hivemind packs both; a value without a subkey has nil here and would replace the topic.
        key = msgspec.msgpack.decode(record.subkey, type=str)
        value = msgspec.msgpack.decode(record.value, type=bytes)
    except (msgspec.MsgspecError, ValueError):
        return False
    topic = check(key, value, float(record.expiration_time))
    return topic is not None and DHTID.generate(source=topic).to_bytes() == record.key
