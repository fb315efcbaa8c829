"""How is a daemon's database opened and brought up to date?

SQLite in WAL mode by default, PostgreSQL by its URL. Migrations travel inside the daemon's package
and run at every start; running them twice changes nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.protocol.errors import ConfigError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Connection, Engine


#: What a transaction that takes its turn begins with. PostgreSQL's lock is "headrace" as a number.
TURNS = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": f"SELECT pg_advisory_xact_lock({int.from_bytes(b'headrace', 'big')})",
}


def sqlite_url(path: Path) -> str:
    """The URL of a database file."""
    return f"sqlite:///{path}"


def open_database(
    url: str, setting: str, migrations: Path, *, patience_ms: int = 5000, takes_turns: bool = False
) -> Engine:
    """An engine with the tables of the newest migration. Raises ConfigError. As `open_engine`."""
    from sqlalchemy.exc import OperationalError

    engine = open_engine(url, setting, patience_ms=patience_ms, takes_turns=takes_turns)
    try:
        upgrade(engine, migrations)
    except OperationalError as error:
        raise ConfigError("the database cannot be opened", why=str(error.orig)) from None
    return engine


def open_engine(
    url: str, setting: str, *, patience_ms: int = 5000, takes_turns: bool = False
) -> Engine:
    """An engine with SQLite set to WAL, foreign keys and patience. Raises ConfigError.

    `setting` is the URL's name for the person. `takes_turns` is for a database that several
    processes write: a transaction takes the lock first, then reads. `postgres://` and
    `postgresql://` mean the driver that we come with.
    """
    from sqlalchemy import create_engine, event
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        scheme, _, rest = url.partition("://")
        if scheme in ("postgres", "postgresql"):
            url = f"postgresql+psycopg://{rest}"
        is_remote = url.startswith("postgresql")
        more: dict[str, Any] = {"connect_args": {"connect_timeout": 10}} if is_remote else {}
        engine = create_engine(url, pool_pre_ping=is_remote, **more)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting} cannot be used",
            why=f"its driver {error.name} is not installed",
            next_step="pip install 'headrace[postgres]'",
        ) from None
    except (ArgumentError, NoSuchModuleError) as error:
        name = setting.partition(".")[0]
        raise ConfigError(
            f"{setting} cannot be used",
            why=str(error).splitlines()[0],
            next_step=f"give a URL such as sqlite:////path/{name}.db "
            f"or postgresql://USER:PASSWORD@HOST/{name}",
        ) from None

    def set_up(connection: Any, _: Any) -> None:
        if takes_turns:  # else the driver begins transactions late, as readers
            connection.isolation_level = None
        cursor = connection.cursor()
        patience = f"busy_timeout={patience_ms}"
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", patience):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", set_up)
    if takes_turns and engine.dialect.name in TURNS:
        event.listen(engine, "begin", _take_turn)
    return engine


def _take_turn(connection: Any) -> None:
    connection.exec_driver_sql(TURNS[connection.dialect.name])


# --- migrations ---


def migration_config(connection: Connection, folder: Path) -> Config:
    """Alembic's configuration for the migrations of a folder, over an open connection."""
    from alembic.config import Config

    found = Config()
    found.set_main_option("script_location", str(folder))
    found.attributes["connection"] = connection
    return found


def upgrade(engine: Engine, folder: Path) -> None:
    """Bring the tables to the newest revision, in one transaction."""
    from alembic import command

    logging.getLogger("alembic").setLevel(logging.WARNING)  # it narrates every start
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # two daemons may start at once
            _take_turn(connection)
        command.upgrade(migration_config(connection, folder), "head")


def run_migrations(metadata: MetaData) -> None:
    """What a folder's `env.py` does: run its migrations over the connection that it is given."""
    from alembic import context

    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()
