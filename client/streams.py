"""Which streams does a requester hold, who hears what comes on them, and who fell silent?

One stream for each stage, shared by all jobs of a submission: a job that goes on with another's answers finds most of its
stages connected already. Every stream is watched from its first moment.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from core.protocol import wire
from core.protocol.errors import HeadraceError, PeerUnreachable
from core.protocol.types import Stage
from core.runtime.channel import Answer, Channel, StreamIdentity, connect
from core.runtime.clock import Clock, SystemClock
from core.runtime.pulse import Beat, until_lost


class Hearer(Protocol):
    """A job that runs over these streams."""

    def hear(self, operator: str, message: wire.AnyMessage) -> None:
        """A stage pushed a message about this job."""
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
        self._channels: dict[tuple[str, str], Channel] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._hearers: dict[str, Hearer] = {}
        self._watches: dict[Channel, asyncio.Task[None]] = {}

    async def to(self, stage: Stage, endpoint: str) -> Channel:
        """An open stream to a stage, whose operator must prove its key. Raises PeerUnreachable, AuthenticationFailed."""
        key = (stage.operator.lower(), endpoint)
        async with self._locks.setdefault(key, asyncio.Lock()):
            channel = self._channels.get(key)
            if channel is None or not channel.is_open:
                channel = await connect(
                    endpoint,
                    self.identity,
                    expected=stage.operator,
                    handler=self._handle,
                    timeout_s=self._connect_s,
                )
                self._channels[key] = channel
                self._watches[channel] = asyncio.create_task(self._watch(channel))
            return channel

    def listen(self, order_hash: str, hearer: Hearer) -> None:
        """Give this job what is said about it, until `forget`."""
        self._hearers[order_hash] = hearer

    def forget(self, order_hash: str) -> None:
        self._hearers.pop(order_hash, None)

    async def close(self) -> None:
        """End every stream. Nobody is told that it ended."""
        self._hearers.clear()
        watches, channels = list(self._watches.values()), list(self._watches)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in channels))
        self._watches.clear()

    async def _watch(self, channel: Channel) -> None:
        lost = await until_lost(channel, self._beat, self._clock)
        for hearer in list(self._hearers.values()):
            hearer.lose(channel.peer, PeerUnreachable(f"stage operator {channel.peer}", lost.why))
        del self._watches[channel]
        self._channels = {k: c for k, c in self._channels.items() if c is not channel}
        await channel.close()

    async def _handle(self, channel: Channel, frame: wire.Frame) -> Answer:
        hearer = self._hearers.get(_order_of(frame.message))
        if hearer is not None:
            hearer.hear(channel.peer, frame.message)
        return None


def _order_of(message: wire.AnyMessage) -> str:
    match message:
        case wire.Token() | wire.RequestFailed():
            return message.order_hash
        case wire.Receipt():
            return message.signed.receipt.order_hash
    return ""
