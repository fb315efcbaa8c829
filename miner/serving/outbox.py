"""How do messages leave in order, while no request waits for a slow reader?

An outbox has a bounded queue and one sender. Whatever waits when the sender is free leaves as one
frame, so that a batch costs one. `put` never waits; when the outbox is broken or full,
each message that did not leave reports it, and its request fails while others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from core.protocol import wire
from core.protocol.errors import AuthenticationFailed, HeadraceError, PeerUnreachable
from core.runtime.logs import get_logger
from core.runtime.network.channel import Channel, Peers

SEND_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
OUTBOX_MESSAGES = 4096
#: Of payload in one frame, so that a long prompt does not hold back others' steps.
BUNDLE_BYTES = 2**20
#: A stage that has put more bytes than this here is asked to wait (`wait_for_room`).
OUTBOX_BYTES = 16 * 2**20
MAX_OUTBOXES = 256
log = get_logger(__name__)

OnFailure = Callable[[HeadraceError], None]


@dataclass(frozen=True)
class _Item:
    message: wire.AnyMessage
    payload: bytes
    on_failure: OnFailure | None


class Outbox:
    """Ordered messages to one place. `attempts` above 1 opens the stream anew after a failure.

    A repeated message is harmless: receivers know each row and each token by its position.
    """

    def __init__(
        self, name: str, open_channel: Callable[[], Awaitable[Channel]], *, attempts: int = 1
    ) -> None:
        self.name = name
        self._open, self._attempts = open_channel, attempts
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(OUTBOX_MESSAGES)
        self._bytes = 0
        self._channel: Channel | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._task = asyncio.create_task(self._send_all(), name=f"outbox {name}")

    @property
    def is_idle(self) -> bool:
        return self._queue.empty()

    @property
    def is_half_full(self) -> bool:
        """Whether half of the messages wait that it takes at most."""
        return self._queue.qsize() > OUTBOX_MESSAGES // 2

    def put(
        self, message: wire.AnyMessage, payload: bytes = b"", on_failure: OnFailure | None = None
    ) -> None:
        """Queue a message; `on_failure` hears if it could not leave."""
        try:
            self._queue.put_nowait(_Item(message, payload, on_failure))
        except asyncio.QueueFull:
            if on_failure is not None:
                on_failure(PeerUnreachable(self.name, f"{OUTBOX_MESSAGES} messages wait already"))
            return
        self._bytes += len(payload)
        if self._bytes > OUTBOX_BYTES:
            self._room.clear()

    async def wait_for_room(self) -> None:
        """Wait while more bytes wait here than should: the peer is slower than we are."""
        await self._room.wait()

    async def flush(self, timeout_s: float) -> None:
        """Wait until what was put has left, for at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._queue.join()
        except TimeoutError:
            log.warning("messages left unsent", line=self.name, count=self._queue.qsize())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _send_all(self) -> None:
        while True:
            items = [await self._queue.get()]
            taken = len(items[0].payload)
            while len(items) < wire.MAX_PARTS and taken < BUNDLE_BYTES and not self._queue.empty():
                items.append(self._queue.get_nowait())
                taken += len(items[-1].payload)
            try:
                for frame in _frames(items):
                    await self._send(frame)
            finally:
                for _ in items:
                    self._queue.task_done()
                self._bytes -= taken
                if self._bytes <= OUTBOX_BYTES // 2:
                    self._room.set()

    async def _send(self, items: Sequence[_Item]) -> None:
        message: wire.AnyMessage = items[0].message
        payload = [items[0].payload]
        if len(items) > 1:
            pushes = [(i.message, i.payload) for i in items if isinstance(i.message, wire.Push)]
            message, payload = wire.bundle(pushes)
        if self._channel is not None and self._channel.send_now(message, payload):
            return
        failure: HeadraceError = PeerUnreachable(self.name)
        for _ in range(self._attempts):
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    self._channel = await self._open()
                    await self._channel.send(message, payload)
                return
            except TimeoutError:
                failure = PeerUnreachable(self.name, f"took nothing for {SEND_TIMEOUT_S:g} s")
            except (PeerUnreachable, AuthenticationFailed) as error:
                failure = error
        for item in items:
            if item.on_failure is not None:
                item.on_failure(failure)


def _frames(items: Sequence[_Item]) -> list[list[_Item]]:
    """What leaves together, in order: pushes that may share a frame, any other message alone."""
    frames: list[list[_Item]] = []
    for item in items:
        may_share = isinstance(item.message, wire.Push)
        if may_share and frames and isinstance(frames[-1][0].message, wire.Push):
            frames[-1].append(item)
        else:
            frames.append([item])
    return frames


class Outboxes:
    """Lines to other stages, one per operator and endpoint."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._outboxes: dict[tuple[str, str], Outbox] = {}

    def to(self, operator: str, endpoint: str) -> Outbox:
        """The outbox to a stage; made on first use."""
        key = (operator.lower(), endpoint)
        outbox = self._outboxes.get(key)
        if outbox is None:
            self._shrink()
            outbox = Outbox(
                f"{operator} at {endpoint}",
                lambda: self._peers.get(operator, endpoint, timeout_s=CONNECT_TIMEOUT_S),
                attempts=2,
            )
            self._outboxes[key] = outbox
        return outbox

    async def ask(
        self, operator: str, endpoint: str, message: wire.AnyMessage, timeout_s: float
    ) -> wire.AnyMessage:
        """A stage's answer to a call, past what waits in its outbox. Raises PeerUnreachable."""
        try:
            channel = await self._peers.get(operator, endpoint, timeout_s=timeout_s)
        except AuthenticationFailed as error:
            raise PeerUnreachable(operator, error.why) from None
        return (await channel.call(message, timeout_s=timeout_s)).message

    async def close(self) -> None:
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes.values()))
        self._outboxes.clear()

    def _shrink(self) -> None:
        if len(self._outboxes) < MAX_OUTBOXES:
            return
        for key, outbox in list(self._outboxes.items()):
            if outbox.is_idle:
                outbox._task.cancel()
                del self._outboxes[key]
