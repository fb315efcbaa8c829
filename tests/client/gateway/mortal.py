"""A real gateway over a village, in a thread whose loop a test stops dead at a chosen point.

Nothing of it runs after that: no handler, no `finally`. What a system does for a killed process is
done for it: its sockets are shut, its locks are free. The village goes on in the test's own loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import httpx2

from client.context import Context
from client.gateway.batches.offline import BatchRunner
from client.gateway.gateway import Gateway
from client.gateway.money.keyring import KeyLimits
from client.gateway.openai.models import OfferedModel, ServedModel, unknown
from client.gateway.records.database import Database, private_sqlite_url
from client.gateway.start import assemble, serving
from client.orders.matchers import Matchers
from client.records.store import ClientStore
from client.sessions.pool import SessionPool
from core.engine.weights.tokenizer import Tokenizer
from core.runtime.folders import Folders
from core.runtime.settings import load
from tests.town.orders import REQUESTER
from tests.town.village import SMALL, Village

T = TypeVar("T")
PATIENCE_S = 30.0


class _Across:
    """An object of another loop: its coroutines run there."""

    def __init__(self, of: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._of, self._loop = of, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            there = asyncio.run_coroutine_threadsafe(found(*args, **more), self._loop)
            return await asyncio.wrap_future(there)

        return call


class _Matcher(_Across):
    async def close(self) -> None: ...


class _Catalogue:
    """The one model that the village serves."""

    def __init__(self, village: Village) -> None:
        self._served = ServedModel(village.model, Tokenizer(village.model_dir))

    async def find(self, name: str) -> ServedModel:
        if name != self._served.name:
            raise unknown(name, [self._served.name])
        return self._served

    async def ls(self) -> list[OfferedModel]:
        return []

    async def operators(self) -> list[str]:
        return []


class _There(Context):
    """The village as a gateway in another loop connects to it."""

    def __init__(self, folder: Path, village: Village, loop: asyncio.AbstractEventLoop) -> None:
        flags = {"gateway.dashboard": "false"}
        settings = load(flags=flags, environ={}, folders=Folders.at(folder))
        super().__init__(settings, _Across(village.chain, loop))  # type: ignore[arg-type]
        object.__setattr__(self, "_there", (folder, village, loop))

    def matcher(self) -> Any:
        _, village, loop = self._there  # type: ignore[attr-defined]
        return Matchers([(_Matcher(village, loop), None)])  # type: ignore[list-item]

    def store(self) -> ClientStore:
        folder, _, _ = self._there  # type: ignore[attr-defined]
        return ClientStore(folder / "client.sqlite")


@dataclass(frozen=True)
class Point:
    """Where a gateway dies: before or after the call number `nth` of a method, its loop's own."""

    owner: type
    method: str
    is_after: bool = False
    nth: int = 1

    def __str__(self) -> str:
        when = "after" if self.is_after else "before"
        return f"{when} {self.owner.__name__}.{self.method} {self.nth}".replace(" 1", "")


@dataclass
class Mortal:
    """One life of the gateway of a village."""

    village: Village
    url: str = ""
    _dead: asyncio.Event = field(default_factory=asyncio.Event)
    _patches: list[Any] = field(default_factory=list)

    async def begin(self, *points: Point) -> Mortal:
        """Start it; it dies at the first of these points that it comes to."""
        self._home, ready = asyncio.get_running_loop(), asyncio.Event()
        for point in points:
            self._arm(point)

        def live() -> None:
            asyncio.run(self._live(lambda: self._home.call_soon_threadsafe(ready.set)))

        self._thread = threading.Thread(target=live, name="mortal", daemon=True)
        self._thread.start()
        async with asyncio.timeout(PATIENCE_S):
            while not (ready.is_set() or self._dead.is_set()):
                await asyncio.sleep(0.01)
        return self

    async def _live(self, ready: Callable[[], object]) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        folder = self.village.folder
        context = _There(folder, self.village, self._home)
        home = folder / "gateway"
        home.mkdir(exist_ok=True)
        matcher, self.store = context.matcher(), context.store()
        self.pool = SessionPool(context, REQUESTER, sizes=SMALL)
        self.gateway: Gateway = assemble(
            context.settings,
            answerer=self.pool,
            catalogue=_Catalogue(self.village),  # type: ignore[arg-type]
            offline=BatchRunner(context, matcher, self.store, REQUESTER),
            folder=home,
            database=Database.open(private_sqlite_url(home / "gateway.sqlite")),
            payer=REQUESTER.address,
            matcher=matcher,
            store=self.store,
            signer=REQUESTER,
        )
        async with serving(self.gateway, "127.0.0.1", 0):
            self.url = f"{self.gateway.url}/v1"
            ready()
            await self._stop.wait()
        await self.pool.close()
        self.gateway.database.close()
        self.store.close()

    # --- death ---

    def _arm(self, point: Point) -> None:
        method, calls = getattr(point.owner, point.method), 0
        mortal = self

        def here() -> bool:
            nonlocal calls
            calls += 1
            return calls == point.nth and threading.current_thread() is mortal._thread

        if asyncio.iscoroutinefunction(method):

            async def dies(*args: Any, **more: Any) -> Any:
                is_here = here()
                if is_here and not point.is_after:
                    mortal._die()
                found = await method(*args, **more)
                if is_here and point.is_after:
                    mortal._die()
                return found
        else:

            def dies(*args: Any, **more: Any) -> Any:
                is_here = here()
                if is_here and not point.is_after:
                    mortal._die()
                found = method(*args, **more)
                if is_here and point.is_after:
                    mortal._die()
                return found

        armed = patch.object(point.owner, point.method, dies)
        armed.start()
        self._patches.append(armed)

    def _die(self) -> None:
        """In its loop's thread, which does nothing any more."""
        self._home.call_soon_threadsafe(self._dead.set)
        threading.Event().wait()

    async def dead(self) -> None:
        """It came to its point; its sockets are shut and its locks are free."""
        async with asyncio.timeout(PATIENCE_S):
            await self._dead.wait()
        self._disarm()
        for fd in list(self.loop._selector.get_map()):  # type: ignore[attr-defined]
            with suppress(OSError):
                socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
        self.pool._keeper._file.close()
        _unlock(self.gateway.folder / "lock")

    def _disarm(self) -> None:
        for armed in self._patches:
            armed.stop()
        self._patches.clear()

    async def end(self) -> None:
        """A clean stop."""
        self._disarm()
        self.loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, PATIENCE_S)
        assert not self._thread.is_alive()

    # --- use ---

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine in its loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def new_key(self) -> str:
        _, secret = await self.run(self.gateway.keys.new("tests", KeyLimits()))
        return secret

    async def post(self, secret: str, path: str, **more: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=60) as client:
            headers = {"authorization": f"Bearer {secret}", **more.pop("headers", {})}
            return await client.post(f"{self.url}{path}", headers=headers, **more)

    async def get(self, secret: str, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=60) as client:
            return await client.get(
                f"{self.url}{path}", headers={"authorization": f"Bearer {secret}"}
            )

    async def until(
        self, check: Callable[[], Awaitable[bool]], within_s: float = PATIENCE_S
    ) -> None:
        async with asyncio.timeout(within_s):
            while not await check():
                await asyncio.sleep(0.05)


def _unlock(path: Path) -> None:
    """Free this file's lock as the system does where the process that holds it is gone."""
    for held in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if held.samefile(path):
                fcntl.flock(int(held.name), fcntl.LOCK_UN)
