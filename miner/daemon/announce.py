"""What does this miner say of itself in the swarm, and how far away are the others?

A record lives ten seconds, so a machine that falls silent disappears by itself. Look-ups and stores
go through the DHT's child process, which may hang, or die and be started anew: each has its own
time limit and a failure only means "try again next time".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Protocol

from core.protocol import signing, wire
from core.protocol.errors import HeadraceError
from core.protocol.records import (
    MAX_NEIGHBOURS,
    MinerRecord,
    is_fresh,
    miners_topic,
    miners_topics,
    now_ms,
    seal,
    unseal,
)
from core.protocol.types import LayerRange
from core.runtime.logs import get_logger
from core.runtime.network.channel import Peers
from core.runtime.slowing import Slowing

TTL_S = 10.0
SWARM_TIMEOUT_S = 8.0
PING_TIMEOUT_S = 2.0
_EWMA = 0.3
log = get_logger(__name__)


class Records(Protocol):
    """The part of `Swarm` that a miner needs."""

    async def publish(self, topic: str, key: str, record: bytes, ttl_s: float) -> bool: ...

    async def lookup(self, *topics: str) -> dict[str, bytes]: ...


class Announcer:
    """Publishes this machine's record, each with a higher sequence number than the last."""

    def __init__(
        self, swarm: Records, signer: signing.DigestSigner, domain: signing.Domain
    ) -> None:
        self._swarm, self._signer, self._domain = swarm, signer, domain
        self._sequence = 0
        self.failures = 0

    async def announce(self, record: MinerRecord, *, timeout_s: float = SWARM_TIMEOUT_S) -> bool:
        """Say it now: False when not taken in time, or our own peer is just started anew."""
        self._sequence = max(self._sequence + 1, now_ms())
        data = seal(record, self._sequence, self._signer, self._domain)
        try:
            async with asyncio.timeout(timeout_s):
                key = record.operator.lower()
                topic = miners_topic(self._domain, key)
                taken = await self._swarm.publish(topic, key, data, TTL_S)
        except Exception as error:  # the DHT's child raises whatever its libraries raise
            taken = False
            log.debug("announcement failed", error=f"{type(error).__name__}: {error}")
        self.failures = 0 if taken else self.failures + 1
        return taken


async def machines(
    swarm: Records, domain: signing.Domain, own: str, model_id: str
) -> list[MinerRecord]:
    """Machines of our model that are there, without our own."""
    found = []
    for key, data in (await _look_up(swarm, domain)).items():
        opened = unseal(data, domain)
        if opened is None or opened[0].operator.lower() != key.lower():
            continue
        record = opened[0]
        is_there = record.state not in ("LEFT", "DOWN") and is_fresh(record, now_ms())
        is_ours = record.model_id == model_id and record.operator.lower() != own.lower()
        if is_there and is_ours:
            found.append(record)
    return found


async def neighbours(
    swarm: Records, domain: signing.Domain, own: str, model_id: str, layers: LayerRange | None
) -> list[MinerRecord]:
    """Machines of our model to which our distance matters, at most `MAX_NEIGHBOURS` of them.

    First those whose layers end where ours begin, or begin where ours end: half of the places. Then
    any. Who is taken of too many is drawn for each machine anew, and stays the same.
    """
    found = await machines(swarm, domain, own, model_id)
    drawn = sorted(found, key=lambda record: _lot(own, record.operator))
    near = [record for record in drawn if _touch(layers, record.layers)][: MAX_NEIGHBOURS // 2]
    taken = {record.operator for record in near}
    others = [record for record in drawn if record.operator not in taken]
    return [*near, *others][:MAX_NEIGHBOURS]


class Neighbourhood:
    """The machines to measure. A look brings every machine's record, so it is taken seldom while
    the same ones are there.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[list[MinerRecord]]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known: list[MinerRecord] = []
        self._look, self._monotonic = look, monotonic
        self._slowing = Slowing()

    async def others(self) -> list[MinerRecord]:
        """As of the last look, which is at most `SELDOM_S` ago."""
        if self._monotonic() >= self._slowing.due_s:
            before = {(one.operator, one.endpoint, one.layers) for one in self.known}
            self.known = await self._look()
            now = {(one.operator, one.endpoint, one.layers) for one in self.known}
            self._slowing.looked(self._monotonic(), is_same=now == before)
        return self.known


async def _look_up(swarm: Records, domain: signing.Domain) -> dict[str, bytes]:
    """Records of all machines; none when the swarm does not answer."""
    try:
        async with asyncio.timeout(SWARM_TIMEOUT_S):
            return await swarm.lookup(*miners_topics(domain))
    except Exception as error:  # as above
        log.debug("look-up failed", error=f"{type(error).__name__}: {error}")
        return {}


def _lot(own: str, other: str) -> bytes:
    return sha256(f"{own.lower()}{other.lower()}".encode()).digest()


def _touch(ours: LayerRange | None, theirs: LayerRange | None) -> bool:
    """Whether rows may go from one to the other."""
    if ours is None or theirs is None:
        return False
    return ours.start == theirs.end or ours.end == theirs.start


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
