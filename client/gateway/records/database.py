"""How is the gateway's database opened, and used by one thread that is not the event loop's?

SQLite in WAL mode by default, any SQLAlchemy URL otherwise. What is committed survives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlmodel import Session

from client.records.statements import Transaction, reading, writing
from core.runtime.database import TURNS, open_database, sqlite_url
from core.runtime.folders import make_private, make_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Engine

    from core.runtime.settings import Settings

MIGRATIONS = Path(__file__).with_name("migrations")
P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound=Any)


def database_url(settings: Settings) -> str:
    """Where this gateway's memory lies: `gateway.db_url`, else a file of the owner's alone."""
    if settings.gateway.db_url:
        return settings.gateway.db_url
    path = make_private(settings.folders.state) / f"gateway-{settings.network.name}.sqlite"
    return private_sqlite_url(path)


def private_sqlite_url(path: Path) -> str:
    """The URL of a database file that nobody else may read."""
    return sqlite_url(make_private_file(path))


class Clash(Exception):
    """A row of that name is there already, or what it belongs to is not; nothing was written."""


@dataclass(frozen=True)
class _Call:
    """What a coroutine waits for. An executor's future has several locks, and costs more."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]

    def run(self) -> None:
        try:
            found, error = self.work(), None
        except BaseException as raised:
            found, error = None, raised
        with suppress(RuntimeError):  # its loop has ended: nobody waits
            self.loop.call_soon_threadsafe(self._tell, found, error)

    def _tell(self, found: Any, error: BaseException | None) -> None:
        if self.done.done():  # cancelled meanwhile
            return
        if error is None:
            self.done.set_result(found)
        else:
            self.done.set_exception(error)


class Database:
    """An engine, and one thread that runs its transactions in the order they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turn = TURNS.get(engine.dialect.name, "")
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._is_closed = False
        self._thread = Thread(target=self._work, name="gateway-db", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, url: str) -> Database:
        """Connect and bring the tables up to date. Raises ConfigError."""
        engine = open_database(
            url,
            "gateway.db_url",
            MIGRATIONS,
            patience_ms=10_000,
            takes_turns=True,  # `client keys new` is another process that writes here
        )
        return cls(engine)

    def close(self) -> None:
        """After everything that was asked for; what is asked for later is a mistake."""
        self._is_closed = True
        self._calls.put(None)
        self._thread.join()
        self.engine.dispose()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in the database's thread, to its end even if nobody waits for it."""
        if self._is_closed:
            raise RuntimeError("the database is closed")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.put(_Call(lambda: call(*args, **kwargs), loop, done))
        return await done

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # else what it found stays until the next

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One transaction without objects, for what every request does. Raises Clash."""
        try:
            with writing(self.engine, self._turn) as transaction:
                yield transaction
        except self.engine.dialect.loaded_dbapi.IntegrityError as error:
            raise Clash(str(error)) from error

    def looking(self) -> AbstractContextManager[Transaction]:
        """The same for what only reads: it takes no turn."""
        return reading(self.engine)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction; rows stay readable after it."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session


def in_database(
    method: Callable[Concatenate[Owner, P], T],
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """Make a method a coroutine that runs in the thread of its object's `database`."""

    @wraps(method)
    async def called(self: Owner, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self.database.run(method, self, *args, **kwargs)
        return found

    return called
