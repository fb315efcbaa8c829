"""The swarm: who is there and what they say of themselves, over hivemind's libp2p DHT.

Only discovery and slow metrics go through it, never a token: a store or a look-up takes tens of milliseconds and its failure
detector is expiry. Records are opaque signed bytes (`core.protocol.records`); this module neither signs nor believes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from core.protocol.errors import PeerUnreachable
from core.runtime.logs import get_logger

log = get_logger(__name__)
_START_TIMEOUT_S = 60.0
_START_ATTEMPTS = 3


class Swarm:
    """One DHT peer. It runs in a child process with its own libp2p daemon; start it before threads that compute."""

    def __init__(self, dht: Any) -> None:
        self._dht = dht
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="swarm")

    @classmethod
    def start(cls, listen_host: str, listen_port: int, bootstrap: Sequence[str]) -> Swarm:
        """Join the swarm through any of the `bootstrap` multiaddresses (none: start a new one). Port 0 takes a free one.

        Raises PeerUnreachable, with the daemon's own words, if it cannot start or finds no bootstrap peer.
        """
        from hivemind.dht import DHT

        reason = "no attempt made"
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                dht = DHT(
                    host_maddrs=[f"/ip4/{listen_host}/tcp/{listen_port}"],
                    initial_peers=list(bootstrap),
                    start=True,
                    use_ipfs=False,
                    use_relay=False,
                    use_auto_relay=False,
                    startup_timeout=_START_TIMEOUT_S,
                    await_ready=True,
                )
                return cls(dht)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                log.warning("swarm start failed", attempt=attempt, reason=reason)
        raise PeerUnreachable(
            "the swarm", f"{reason} (bootstrap: {', '.join(bootstrap) or 'none'})"
        )

    def addresses(self) -> list[str]:
        """Multiaddresses under which others can bootstrap through this peer."""
        return [str(address) for address in self._dht.get_visible_maddrs()]

    async def publish(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool:
        """Store `record` under (topic, key) until `ttl_s` from now; a later expiry replaces an earlier one.

        False when no peer accepted it; the next announcement tries again.
        """
        return await self._run(self._store, topic, key, record, ttl_s)

    async def lookup(self, topic: str) -> dict[str, bytes]:
        """Latest unexpired record of every key of a topic, as bytes to be unsealed. Empty when nobody answers."""
        return await self._run(self._get, topic)

    def close(self) -> None:
        """Leave and end the child process and its daemon. Safe to call twice."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._dht.shutdown()

    async def _run(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def _store(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool:
        from hivemind.utils import get_dht_time

        return bool(
            self._dht.store(topic, subkey=key, value=record, expiration_time=get_dht_time() + ttl_s)
        )

    def _get(self, topic: str) -> dict[str, bytes]:
        found = self._dht.get(topic, latest=True)
        if found is None or not isinstance(found.value, dict):
            return {}
        return {
            str(key): item.value
            for key, item in found.value.items()
            if isinstance(item.value, bytes)
        }
