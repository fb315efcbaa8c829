"""How do messages leave in order, without anybody waiting for a slow reader?

A line has a bounded queue and one sender. Who puts a message never waits; when the line is broken or full, each message
that did not leave reports it, and its request fails while others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from core.protocol import wire
from core.protocol.errors import AuthenticationFailed, HeadraceError, PeerUnreachable
from core.runtime.channel import Channel, Peers
from core.runtime.logs import get_logger

SEND_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
LINE_MESSAGES = 4096
MAX_LINES = 256
log = get_logger(__name__)

OnFailure = Callable[[HeadraceError], None]


@dataclass(frozen=True)
class _Item:
    message: wire.AnyMessage
    payload: bytes
    on_failure: OnFailure | None


class Line:
    """Ordered messages to one place. `attempts` above 1 opens the stream anew after a failure.

    A repeated message is harmless: receivers know each row and each token by its position.
    """

    def __init__(
        self, name: str, open_channel: Callable[[], Awaitable[Channel]], *, attempts: int = 1
    ) -> None:
        self.name = name
        self._open, self._attempts = open_channel, attempts
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(LINE_MESSAGES)
        self._task = asyncio.create_task(self._send_all(), name=f"line {name}")

    @property
    def is_idle(self) -> bool:
        return self._queue.empty()

    def put(
        self, message: wire.AnyMessage, payload: bytes = b"", on_failure: OnFailure | None = None
    ) -> None:
        """Queue a message; `on_failure` hears if it could not leave."""
        try:
            self._queue.put_nowait(_Item(message, payload, on_failure))
        except asyncio.QueueFull:
            if on_failure is not None:
                on_failure(PeerUnreachable(self.name, f"{LINE_MESSAGES} messages wait already"))

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
            item = await self._queue.get()
            try:
                await self._send(item)
            finally:
                self._queue.task_done()

    async def _send(self, item: _Item) -> None:
        failure: HeadraceError = PeerUnreachable(self.name)
        for _ in range(self._attempts):
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    channel = await self._open()
                    await channel.send(item.message, item.payload)
                return
            except TimeoutError:
                failure = PeerUnreachable(self.name, f"took nothing for {SEND_TIMEOUT_S:g} s")
            except (PeerUnreachable, AuthenticationFailed) as error:
                failure = error
        if item.on_failure is not None:
            item.on_failure(failure)


class Links:
    """Lines to other stages, one per operator and endpoint."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._lines: dict[tuple[str, str], Line] = {}

    def to(self, operator: str, endpoint: str) -> Line:
        """The line to a stage; made on first use."""
        key = (operator.lower(), endpoint)
        line = self._lines.get(key)
        if line is None:
            self._shrink()
            line = Line(
                f"{operator} at {endpoint}",
                lambda: self._peers.get(operator, endpoint, timeout_s=CONNECT_TIMEOUT_S),
                attempts=2,
            )
            self._lines[key] = line
        return line

    async def close(self) -> None:
        await asyncio.gather(*(line.close() for line in self._lines.values()))
        self._lines.clear()

    def _shrink(self) -> None:
        if len(self._lines) < MAX_LINES:
            return
        for key, line in list(self._lines.items()):
            if line.is_idle:
                line._task.cancel()
                del self._lines[key]
