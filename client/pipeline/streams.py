"""Which streams does a requester hold, which job hears what comes on them, which stage fell silent?

One stream for each stage, shared by all jobs of a submission: a job that goes on with another's
answers finds most of its stages connected. A stream that ends is opened anew, since the connection
alone may be lost.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from core.protocol import wire
from core.protocol.errors import HeadraceError, PeerUnreachable
from core.protocol.types import Stage
from core.runtime.clock import Clock, SystemClock
from core.runtime.network.channel import Answer, Channel, StreamIdentity, connect
from core.runtime.network.pulse import CONNECT_S, Accidents, Beat, until_lost

Key = tuple[str, str]
"""(operator in lower case, endpoint)."""


class Hearer(Protocol):
    """A job that runs over these streams."""

    def hear(self, operator: str, message: wire.AnyMessage) -> None:
        """A stage pushed a message about this job."""
        ...

    def regain(self, operator: str, channel: Channel) -> None:
        """A stage's stream ended and this one took its place: what was said meanwhile is lost."""
        ...

    def lose(self, operator: str, error: HeadraceError) -> None:
        """A stage fell silent, whichever job it worked for."""
        ...


class Streams:
    """The requester's streams, by operator and endpoint."""

    def __init__(
        self,
        identity: StreamIdentity,
        *,
        connect_s: float = 10.0,
        beat: Beat | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.identity = identity
        self._connect_s, self._beat = connect_s, beat or Beat()
        self._clock = clock or SystemClock()
        self._channels: dict[Key, Channel] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._hearers: dict[str, Hearer] = {}
        self._watches: dict[Key, asyncio.Task[None]] = {}

    async def to(self, stage: Stage, endpoint: str) -> Channel:
        """An open stream to a stage. Raises PeerUnreachable or AuthenticationFailed."""
        key = (stage.operator.lower(), endpoint)
        channel = await self._open(key, self._connect_s)
        if key not in self._watches:
            self._watches[key] = asyncio.create_task(self._watch(key, channel))
        return channel

    def listen(self, order_hash: str, hearer: Hearer) -> None:
        """Give this job what is said about it, until `forget`."""
        self._hearers[order_hash] = hearer

    def forget(self, order_hash: str) -> None:
        self._hearers.pop(order_hash, None)

    async def close(self) -> None:
        """End every stream, without telling the jobs."""
        self._hearers.clear()
        watches, channels = list(self._watches.values()), list(self._channels.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in channels))
        self._watches.clear()
        self._channels.clear()

    async def _open(self, key: Key, timeout_s: float) -> Channel:
        operator, endpoint = key
        async with self._locks.setdefault(key, asyncio.Lock()):
            channel = self._channels.get(key)
            if channel is None or not channel.is_open:
                channel = self._channels[key] = await connect(
                    endpoint,
                    self.identity,
                    expected=operator,
                    handler=self._handle,
                    timeout_s=timeout_s,
                )
            return channel

    async def _watch(self, key: Key, channel: Channel) -> None:
        accidents = Accidents(self._clock)
        while True:
            accidents.begin()
            lost = await until_lost(channel, self._beat, self._clock)
            if channel.is_open or not accidents.is_one():
                break
            try:
                channel = await self._open(key, min(CONNECT_S, self._connect_s))
            except HeadraceError:
                break
            for hearer in list(self._hearers.values()):
                hearer.regain(channel.peer, channel)
        del self._watches[key]
        self._channels.pop(key, None)
        for hearer in list(self._hearers.values()):
            hearer.lose(channel.peer, PeerUnreachable(f"stage operator {channel.peer}", lost.why))
        await channel.close()

    async def _handle(self, channel: Channel, frame: wire.Frame) -> Answer:
        hearer = self._hearers.get(_order_of(frame.message))
        if hearer is not None:
            hearer.hear(channel.peer, frame.message)
        return None


def _order_of(message: wire.AnyMessage) -> str:
    match message:
        case wire.Token() | wire.RequestFailed() | wire.Waiting():
            return message.order_hash
        case wire.Receipt():
            return message.signed.receipt.order_hash
    return ""
