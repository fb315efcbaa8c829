"""What does this miner say of itself in the swarm, and how far away are the others?

A record lives ten seconds, so a machine that falls silent disappears by itself. Look-ups and stores
go through the DHT's child process, which may hang or die: each has its own time limit and a failure
only means "try again next time".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError, PeerUnreachable
from core.protocol.records import (
    AllocationRecord,
    MinerRecord,
    allocations_topic,
    is_fresh,
    miners_topic,
    seal,
    unseal,
)
from core.runtime.logs import get_logger
from core.runtime.network.channel import Peers

TTL_S = 10.0
SWARM_TIMEOUT_S = 8.0
PING_TIMEOUT_S = 2.0
MAX_NEIGHBOURS = 64
_EWMA = 0.3
log = get_logger(__name__)


class Records(Protocol):
    """The part of `Swarm` that a miner needs."""

    async def publish(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool: ...

    async def lookup(self, topic: str) -> dict[str, bytes]: ...


class Announcer:
    """Publishes this machine's record, each with a higher sequence number than the last."""

    def __init__(
        self, swarm: Records, signer: signing.DigestSigner, domain: signing.Domain
    ) -> None:
        self._swarm, self._signer, self._domain = swarm, signer, domain
        self._sequence = 0
        self.failures = 0

    async def announce(self, record: MinerRecord, *, timeout_s: float = SWARM_TIMEOUT_S) -> bool:
        """Say it now: False when not taken in time, PeerUnreachable when our peer has ended."""
        self._sequence = max(self._sequence + 1, now_ms())
        data = seal(record, self._sequence, self._signer, self._domain)
        try:
            async with asyncio.timeout(timeout_s):
                taken = await self._swarm.publish(
                    miners_topic(self._domain), record.operator.lower(), data, TTL_S
                )
        except PeerUnreachable:
            raise
        except Exception as error:  # the DHT's child raises whatever its libraries raise
            taken = False
            log.debug("announcement failed", error=f"{type(error).__name__}: {error}")
        self.failures = 0 if taken else self.failures + 1
        return taken


async def look_up(swarm: Records, topic: str) -> dict[str, bytes]:
    """Records of a topic; empty when the swarm does not answer."""
    try:
        async with asyncio.timeout(SWARM_TIMEOUT_S):
            return await swarm.lookup(topic)
    except Exception as error:  # as above
        log.debug("look-up failed", topic=topic, error=f"{type(error).__name__}: {error}")
        return {}


async def neighbours(swarm: Records, domain: signing.Domain, own: str) -> list[MinerRecord]:
    """Other machines that are there now, as they describe themselves."""
    found = []
    for key, data in (await look_up(swarm, miners_topic(domain))).items():
        opened = unseal(data, MinerRecord, domain)
        if opened is None or opened[0].operator.lower() != key.lower():
            continue
        record = opened[0]
        is_there = record.state not in ("LEFT", "DOWN") and is_fresh(record, now_ms())
        if is_there and record.operator.lower() != own.lower():
            found.append(record)
    return sorted(found, key=lambda record: record.operator)[:MAX_NEIGHBOURS]


async def allocations(
    swarm: Records, domain: signing.Domain, model_id: str
) -> dict[str, tuple[AllocationRecord, int]]:
    """Allocations of a model by matcher (lower case), with their sequence numbers."""
    found = {}
    for key, data in (await look_up(swarm, allocations_topic(domain, model_id))).items():
        opened = unseal(data, AllocationRecord, domain)
        if opened is None or opened[0].matcher.lower() != key.lower():
            continue
        if opened[0].model_id == model_id and is_fresh(opened[0], now_ms()):
            found[key.lower()] = opened
    return found


def now_ms() -> int:
    """The time that records carry."""
    return time.time_ns() // 1_000_000


class Distances:
    """ρ: one-way latency to other machines, half the round trip of a Ping, smoothed."""

    def __init__(self, peers: Peers, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._peers, self._monotonic = peers, monotonic
        self._rho_ms: dict[str, float] = {}

    @property
    def rho_ms(self) -> Mapping[str, float]:
        """By operator."""
        return dict(self._rho_ms)

    async def measure(self, others: list[MinerRecord]) -> None:
        """Ping every machine once; machines that are gone or silent are forgotten."""
        there = {record.operator for record in others}
        for operator in set(self._rho_ms) - there:
            del self._rho_ms[operator]
        await asyncio.gather(*(self._ping(record) for record in others))

    async def _ping(self, record: MinerRecord) -> None:
        try:
            channel = await self._peers.get(
                record.operator, record.endpoint, timeout_s=PING_TIMEOUT_S
            )
            started = self._monotonic()
            await channel.call(wire.Ping(), timeout_s=PING_TIMEOUT_S)
        except HeadraceError:
            self._rho_ms.pop(record.operator, None)
            return
        one_way_ms = (self._monotonic() - started) * 1000 / 2
        old = self._rho_ms.get(record.operator, one_way_ms)
        self._rho_ms[record.operator] = old + _EWMA * (one_way_ms - old)
