"""How does a program serve HTTP inside its own loop and under its own signal handlers?

A request must arrive within a time, and an answer must be taken; else the connection ends. Where
all connections are taken, or all that one address may have, the one among them that has waited
longest for its request makes room, and where none waits the new one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.protocol.errors import ConfigError
from core.runtime.network.places import address_of

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")

MAX_HEAD_BYTES: Final = 64 * 1024
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 431 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
)


@dataclass(frozen=True)
class PeerLimits:
    """How long a peer may take, in seconds, and how many connections there are."""

    head_s: float = 10.0
    body_s: float | None = None  # None: as long as it likes
    taking_s: float = 60.0  # an answer, without taking any of it
    most_connections: int = 4096
    of_address: int = 1024  # of these; of this machine's own any, as a proxy's are all


#: For those whose requests are small and whose callers are anybody.
STRANGERS: Final = PeerLimits(body_s=30.0, most_connections=512, of_address=128)


class HttpServer:
    """An ASGI application at ``host:port``, started and stopped by its owner.

    ``port`` 0 takes a free one; after ``start`` it is the real one.
    """

    def __init__(
        self,
        app: Any,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        limits: PeerLimits = PeerLimits(),
    ) -> None:
        self.host, self.port = host, port
        self._server = _Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                ws="none",
                proxy_headers=False,  # what they say of a peer, any peer can say
                http=partial(_Connection, limits, _Places()),  # type: ignore[arg-type]
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)

    async def start(self) -> None:
        """Listen; answers are given from here on. Raises ConfigError if the port cannot be had."""
        listener = self._bind()
        self._task = asyncio.create_task(
            self._server.serve(sockets=[listener]), name=f"http-{self.port}"
        )
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():  # the application's own start failed
            ready.cancel()
            listener.close()
            task, self._task = self._task, None
            await task
            raise AssertionError("a server ends without being ready only by an error")

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop listening and let open answers end, for at most ``grace_s``; idempotent."""
        if self._task is None:
            return
        self._server.should_exit = True
        _, pending = await asyncio.wait({self._task}, timeout=grace_s)
        if pending:
            self._server.force_exit = True
            await self._task
        self._task = None

    async def wait(self) -> None:
        """Until the server ends."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With the protocol named, asyncio sends small pieces at once; else each waits up to 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen at {self.host}:{self.port}",
                why=error.strerror or str(error),
                next_step="choose another port, or stop the program that uses this one",
            ) from error
        self.port = listener.getsockname()[1]
        return listener


async def while_asked(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, of a request that was read. Ends it where its asker leaves meanwhile.

    Raises what the work raises, and ClientDisconnect.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def url_of(host: str, port: int) -> str:
    """`http://host:port`; of every address of this machine, the one that it has for itself."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


@dataclass
class _Places:
    """Who has a server's connections."""

    #: Those whose request is due, oldest first.
    waiting: dict[_Connection, None] = field(default_factory=dict)
    of_address: Counter[str] = field(default_factory=Counter)


class _Connection(HttpToolsProtocol):
    """A connection with deadlines."""

    def __init__(self, limits: PeerLimits, places: _Places, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits, self._places = limits, places
        self._waiting, self._address = places.waiting, ""
        self._due: asyncio.TimerHandle | None = None
        self._taken_by: asyncio.TimerHandle | None = None
        self._head_bytes, self._is_in_head = 0, True
        self._received = self._answered = 0  # whole requests, and answers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, in the place of another where there are too many."""
        super().connection_made(transport)
        self._address = address_of(transport.get_extra_info("peername"))
        of_address = self._places.of_address
        of_address[self._address] += 1
        if self._address and of_address[self._address] > self._limits.of_address:
            self._make_room([one for one in self._waiting if one._address == self._address])
        elif len(self.connections) > self._limits.most_connections:
            self._make_room(self._waiting)
        self._wait(self._limits.head_s)

    def _make_room(self, waiting: Iterable[_Connection]) -> None:
        oldest = next(iter(waiting), self)
        oldest._stop_waiting()  # what is aborted is lost only later
        oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._places.of_address[self._address] -= 1
        if not self._places.of_address[self._address]:
            del self._places.of_address[self._address]
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head is too long."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._end(_LATE[1])

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The body is due next."""
        self._is_in_head, self._head_bytes = False, 0
        if self._received == self._answered:
            self._wait(self._limits.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here: the rest is up to us."""
        self._received += 1
        self._head_bytes = 0
        if self._received > self._answered:
            self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next request is due, or the rest of one that was answered early."""
        self._answered += 1
        if self._received <= self._answered:
            self._wait(self._limits.head_s)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The peer does not take what it asked for."""
        self._taken_by = self.loop.call_later(self._limits.taking_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer takes it again."""
        if self._taken_by is not None:
            self._taken_by.cancel()
            self._taken_by = None
        super().resume_writing()

    def _wait(self, within_s: float | None) -> None:
        self._stop_waiting()
        if within_s is not None:
            self._waiting[self] = None
            self._due = self.loop.call_later(within_s, self._end, _LATE[0])

    def _stop_waiting(self) -> None:
        self._waiting.pop(self, None)
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _end(self, why: bytes) -> None:
        """Say why and close, unless an answer has begun."""
        if self.transport.is_closing():
            return
        if self._received == self._answered and not self._has_begun():
            self.transport.write(why)
        self.transport.close()

    def _has_begun(self) -> bool:
        return (
            self.cycle is not None
            and self.cycle.response_started
            and (not self.cycle.response_complete)
        )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the program, not to one of its servers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as end:  # uvicorn's way to say so would end the whole program
            raise ConfigError(
                f"cannot serve at {self.config.host}:{self.config.port}",
                why="the application's own start failed",
                next_step="its error is in the log",
            ) from end
        self.ready.set()
