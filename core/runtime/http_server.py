"""How does a program serve HTTP inside its own loop and under its own signal handlers?"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from core.protocol.errors import ConfigError


class HttpServer:
    """An ASGI application at ``host:port``, started and stopped by its owner.

    ``port`` 0 takes a free one; after ``start`` it is the real one.
    """

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host, self.port = host, port
        self._server = _Server(
            uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False)
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

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
