"""How is the gateway's database opened and used: one file, one writer at a time, never on the event loop?

SQLite in WAL mode by default, any SQLAlchemy URL otherwise. What is committed survives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from sqlmodel import Session

from core.runtime.database import open_database, sqlite_url
from core.runtime.folders import make_private, make_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection, Engine

    from core.runtime.settings import Settings

MIGRATIONS = Path(__file__).with_name("migrations")
P = ParamSpec("P")
T = TypeVar("T")


def database_url(settings: Settings) -> str:
    """Where this gateway's memory lies: `gateway.db_url`, else a file of the owner's alone."""
    if settings.gateway.db_url:
        return settings.gateway.db_url
    path = make_private(settings.folders.state) / f"gateway-{settings.network.name}.sqlite"
    return private_sqlite_url(path)


def private_sqlite_url(path: Path) -> str:
    """The URL of a database file that nobody else may read."""
    return sqlite_url(make_private_file(path))


class Database:
    """An engine, and one thread that does all its work: transactions follow one another in the order they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gateway-db")

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
        self._thread.shutdown(wait=True)
        self.engine.dispose()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in the database's thread, after those asked for before."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*args, **kwargs))

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """One transaction without objects, for what every request does."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction; rows stay readable after it."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session
