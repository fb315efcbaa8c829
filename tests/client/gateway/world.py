"""A gateway over the toy, on loopback and in a thread, for any client; started again at will."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from client.gateway.gateway import Gateway
from client.gateway.money.keyring import ApiKey, KeyLimits
from client.gateway.records.database import Database, private_sqlite_url
from client.gateway.start import assemble, serving
from core.engine.weights.tokenizer import Tokenizer
from core.runtime.clock import SystemClock
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from tests.client.gateway.toy import Bank, ToyAnswerer, ToyCatalogue, ToyOffline, tokenizer_in

T = TypeVar("T")


class SetClock(SystemClock):
    """The system's clock, set forward by a test."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        """Until the test sets it forward, or the time is over."""
        until_s = self.monotonic() + seconds
        while self.monotonic() < until_s:
            await super().sleep(min(0.01, max(0.0, until_s - self.monotonic())))


@dataclass
class World:
    """One gateway and what stays when it is stopped: its folder, its database, the bank."""

    folder: Path
    flags: dict[str, Any] = field(default_factory=dict)
    clock: SetClock = field(default_factory=SetClock)
    port: int = 0
    db_url: str = ""

    def __post_init__(self) -> None:
        self.bank = Bank(self.folder / "bank.jsonl")
        self.tokenizer: Tokenizer = tokenizer_in(self.folder / "toy")
        self.answerer = ToyAnswerer(self.tokenizer, self.bank)
        self.offline = ToyOffline(self.tokenizer, self.bank)
        self.settings: Settings = load(
            flags={"gateway.dashboard": "false", **self.flags},
            environ={},
            folders=Folders.at(self.folder / "home"),
        )
        self._thread: threading.Thread | None = None

    # --- life ---

    def start(self) -> World:
        """Serve until `stop`. The second time it listens where it did."""
        ready, failure = threading.Event(), list[BaseException]()

        def live() -> None:
            try:
                asyncio.run(self._live(ready))
            except BaseException as error:
                failure.append(error)
                ready.set()

        self._thread = threading.Thread(target=live, daemon=True)
        self._thread.start()
        ready.wait(30)
        if failure:
            raise failure[0]
        assert ready.is_set()
        return self

    def stop(self) -> None:
        """A clean stop."""
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    async def _live(self, ready: threading.Event) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.gateway = self._assemble()
        try:
            async with serving(self.gateway, "127.0.0.1", self.port):
                self.port = int(self.gateway.url.rpartition(":")[2])
                ready.set()
                await self._stop.wait()
        finally:
            self.gateway.database.close()

    def _assemble(self) -> Gateway:
        home = self.folder / "gateway"
        home.mkdir(exist_ok=True)
        return assemble(
            self.settings,
            answerer=self.answerer,
            catalogue=ToyCatalogue(self.tokenizer),
            offline=self.offline,
            folder=home,
            database=Database.open(self.db_url or private_sqlite_url(home / "gateway.sqlite")),
            payer="0x" + "01" * 20,
            clock=self.clock,
        )

    # --- use ---

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"

    def run(self, work: Coroutine[Any, Any, T], within_s: float = 60) -> T:
        """Run a coroutine in the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(within_s)

    def new_key(self, name: str = "tests", **limits: Any) -> str:
        """An API key's secret."""
        _, secret = self.run(self.gateway.keys.new(name, KeyLimits(**limits)))
        return secret

    def key(self, secret: str) -> ApiKey:
        found = self.run(self.gateway.keys.find(secret))
        assert found is not None
        return found

    def until(self, check: Callable[[], Any], within_s: float = 30) -> Any:
        """Poll until the check finds something."""
        import time

        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            found = check()
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError(f"not within {within_s} s")
