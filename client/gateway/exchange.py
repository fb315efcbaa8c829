"""How is an answer that is being made kept apart from the connections that read it?

An exchange is one request on its way: its head, then its events, kept until it has ended. Any
number of connections follow it from the beginning, so a retry joins it. When the last of them
leaves, it goes on for a moment, in which a retry may come, and is then cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from core.runtime.logs import get_logger

log = get_logger(__name__)
#: An official client comes again within half a second; miners must have stopped after two.
GRACE_S = 1.0


@dataclass(frozen=True)
class Head:
    """How a response begins."""

    status: int
    headers: dict[str, str]


@dataclass(eq=False)
class Exchange:
    """One request on its way. Only its producer writes."""

    request_id: str
    key_id: str
    body_hash: str
    idempotency_key: str | None
    head: Head | None = None
    events: list[bytes] = field(default_factory=list)
    has_ended: bool = False
    readers: int = 0
    #: Headers with which a stream may begin before its first token; None: its producer decides.
    early_headers: Callable[[], dict[str, str]] | None = None
    task: asyncio.Task[None] | None = None
    _waiting: set[asyncio.Future[bool]] = field(default_factory=set)

    def open(self, status: int, headers: dict[str, str]) -> None:
        """The response begins so; what was said first counts."""
        if self.head is None:
            self.head = Head(status, headers)
            self._wake()

    def push(self, event: bytes) -> None:
        self.events.append(event)
        self._wake()

    def end(self) -> None:
        self.has_ended = True
        self._wake()

    async def wait_head(self, patience_s: float) -> Head | None:
        """The head, None while nobody knows it after so long."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while self.head is None and not self.has_ended:
            if not await self._wait(deadline - asyncio.get_running_loop().time()):
                return None
        return self.head

    async def follow(self, ping_s: float) -> AsyncIterator[tuple[bytes, bool]]:
        """All events from the first, and whether more may come; b"" after `ping_s` without any."""
        at, more = 0, True
        while more:
            if at < len(self.events) or self.has_ended:
                batch, more = self.events[at:], not self.has_ended
                at += len(batch)
                yield b"".join(batch), more
            elif not await self._wait(ping_s):
                yield b"", more

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(True)

    async def _wait(self, patience_s: float) -> bool:
        """Whether anything happened within so long."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(max(0.0, patience_s), _give_up, waiter)
        self._waiting.add(waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting.discard(waiter)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Exchanges:
    """All requests on their way."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._all: set[Exchange] = set()
        self._leaving: dict[Exchange, asyncio.TimerHandle] = {}
        self.is_stopping = False

    @property
    def running(self) -> int:
        return len(self._all)

    def find(self, key_id: str, idempotency_key: str | None, body_hash: str) -> Exchange | None:
        """One of this key with the same Idempotency-Key, or without one the same body."""
        for exchange in self._all:
            if exchange.key_id != key_id or exchange.has_ended:
                continue
            if idempotency_key is not None:
                if exchange.idempotency_key == idempotency_key:
                    return exchange
            elif exchange.body_hash == body_hash:
                return exchange
        return None

    def add(self, exchange: Exchange) -> None:
        """From now on it is found. `start` or `drop` follows."""
        self._all.add(exchange)

    def drop(self, exchange: Exchange) -> None:
        self._all.discard(exchange)

    def start(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Run its producer, whoever reads."""
        exchange.task = asyncio.create_task(work, name=exchange.request_id)
        exchange.task.add_done_callback(lambda _: self._ended(exchange))

    def join(self, exchange: Exchange) -> None:
        """One more reader. `leave` follows."""
        exchange.readers += 1
        timer = self._leaving.pop(exchange, None)
        if timer is not None:
            timer.cancel()

    def leave(self, exchange: Exchange) -> None:
        """One reader less; without any it is cancelled after a moment."""
        exchange.readers -= 1
        if exchange.readers > 0 or exchange.has_ended:
            return
        loop = asyncio.get_running_loop()
        self._leaving[exchange] = loop.call_later(self._grace_s, self._cancel, exchange)

    async def close(self, patience_s: float = 5.0) -> None:
        """Let what runs end for so long, then cancel it, and wait until all of it is settled."""
        self.is_stopping = True
        tasks = {exchange.task for exchange in self._all if exchange.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._leaving.values():
            timer.cancel()
        self._leaving.clear()

    def _cancel(self, exchange: Exchange) -> None:
        self._leaving.pop(exchange, None)
        if exchange.task is not None:
            log.info("nobody reads the answer any more", request=exchange.request_id)
            exchange.task.cancel()

    def _ended(self, exchange: Exchange) -> None:
        self._all.discard(exchange)
        timer = self._leaving.pop(exchange, None)
        if timer is not None:
            timer.cancel()
        exchange.end()
