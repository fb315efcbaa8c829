"""Is what requests ask of the database done whole, in turn and by name, and off the event loop?"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import bindparam, func, insert, inspect, literal_column, null, select, update

from client.gateway.records.database import MIGRATIONS, Clash, Database, private_sqlite_url
from client.gateway.records.tables import METADATA, UsageRow
from client.records.statements import Statement, Transaction
from core.runtime.database import migration_config, open_engine, sqlite_url, upgrade

USAGE = METADATA.tables["usage_days"]
FILES = METADATA.tables["files"]
NEW_FILE = Statement(insert(FILES))
FILE = Statement(select(FILES).where(FILES.c.file_id == bindparam("wanted")))
COUNT = Statement(select(func.count().label("files")).select_from(FILES))
ROW = {
    "file_id": "file_1",
    "key_id": "key_1",
    "filename": "100%.txt",
    "purpose": "batch",
    "size_bytes": 2**40,
    "created_at": 5,
    "expires_at": None,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    found = Database.open(private_sqlite_url(path))
    yield found
    found.close()


def files(database: Database) -> int:
    with database.looking() as look:
        return int(look.first(COUNT, {}).files)


def test_values_go_in_and_come_out_by_name(database: Database) -> None:
    with database.transaction() as writing:
        assert writing.execute(NEW_FILE, ROW) == 1
    with database.looking() as look:
        assert look.first(FILE, {"wanted": "file_1"})._asdict() == ROW
        assert look.first(FILE, {"wanted": "file_2"}) is None


def test_values_of_the_statement_itself_and_nothing_are_bound_too(database: Database) -> None:
    dated = FILES.c.expires_at.is_(None) & (FILES.c.size_bytes > literal_column("0"))
    named = update(FILES).where(dated, FILES.c.purpose == "batch")
    rename = Statement(named.values(filename=bindparam("name"), expires_at=null(), created_at=7))
    with database.transaction() as writing:
        writing.execute(NEW_FILE, ROW)
        assert writing.execute(rename, {"name": "new"}) == 1
        assert writing.execute(rename, {"name": None} | {"name": "newer"}) == 1
        found = writing.first(FILE, {"wanted": "file_1"})
    assert (found.filename, found.created_at, found.expires_at) == ("newer", 7, None)


def test_a_value_that_is_missing_is_no_nothing(database: Database) -> None:
    short = {name: value for name, value in ROW.items() if name != "expires_at"}
    with pytest.raises(KeyError, match="expires_at"), database.transaction() as writing:
        writing.execute(NEW_FILE, short)
    assert files(database) == 0


def test_a_transaction_that_breaks_writes_nothing_and_the_next_one_does(database: Database) -> None:
    with pytest.raises(ValueError, match="midway"), database.transaction() as writing:
        writing.execute(NEW_FILE, ROW)
        raise ValueError("midway")
    assert files(database) == 0
    with pytest.raises(Clash), database.transaction() as writing:
        writing.execute(NEW_FILE, ROW | {"file_id": "file_0"})
        for _ in range(2):
            writing.execute(NEW_FILE, ROW)
    assert files(database) == 0
    with database.transaction() as writing:
        writing.execute(NEW_FILE, ROW)
    assert files(database) == 1


def test_whoever_writes_takes_the_turn_first_and_whoever_looks_does_not(
    database: Database, path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        with database.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        with database.looking() as look:
            look.first(COUNT, {})
            other.execute("BEGIN IMMEDIATE")
            look.first(COUNT, {})
        other.execute("ROLLBACK")


def test_a_session_and_its_statements_are_one_transaction(database: Database) -> None:
    more = Statement(update(USAGE).values(requests=USAGE.c.requests + bindparam("more")))
    usage = UsageRow(key_id="key_1", day="2026-11-21", model="toy", requests=1)
    with database.transaction() as writing:
        keys = METADATA.tables["api_keys"]
        blank = {column.name: None for column in keys.columns}
        texts = {
            "key_id": "key_1",
            "name": "k",
            "secret_hash": "h",
            "hint": "",
            "models": "[]",
            "tags": "[]",
        }
        counts = dict.fromkeys(("created_at", "spent_units", "reserved_units"), 0)
        given = blank | texts | counts | {"budget_period": "total"}
        writing.execute(Statement(insert(keys)), given)
    with contextlib.suppress(ValueError), database.session() as session:
        session.add(usage)
        session.flush()
        assert Transaction.of(session).execute(more, {"more": 4}) == 1
        raise ValueError
    requests = Statement(select(func.sum(USAGE.c.requests).label("all")))
    with database.looking() as look:
        assert look.first(requests, {}).all is None


async def test_calls_run_in_one_thread_in_the_order_they_are_asked_for(database: Database) -> None:
    order: list[int] = []
    threads: set[int] = set()

    def note(number: int) -> int:
        threads.add(threading.get_ident())
        order.append(number)
        return number * 2

    found = await asyncio.gather(*(database.run(note, n) for n in range(20)))
    assert found == [2 * n for n in range(20)] and order == list(range(20))
    assert len(threads) == 1 and threading.get_ident() not in threads


async def test_a_call_that_fails_or_that_nobody_waits_for_stops_nothing(database: Database) -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await database.run(fail)
    held, ran = threading.Event(), threading.Event()
    blocking = asyncio.create_task(database.run(held.wait, 30))
    left = asyncio.create_task(database.run(ran.set))
    await asyncio.sleep(0)  # both are asked for
    left.cancel()
    held.set()
    assert await blocking
    with pytest.raises(asyncio.CancelledError):
        await left
    assert await database.run(ran.is_set)  # what was asked for is done


async def test_a_closed_database_has_done_everything_and_takes_no_more(path: Path) -> None:
    database, done = Database.open(private_sqlite_url(path)), list[int]()
    asked = [asyncio.create_task(database.run(done.append, n)) for n in range(5)]
    await asyncio.sleep(0)
    await asyncio.to_thread(database.close)
    assert done == list(range(5))
    await asyncio.gather(*asked)
    with pytest.raises(RuntimeError, match="closed"):
        await database.run(done.append, 5)


def test_a_database_of_the_time_before_gateways_had_names_keeps_all_its_rows(
    tmp_path: Path,
) -> None:
    engine = open_engine(sqlite_url(tmp_path / "g.sqlite"), "gateway.db_url")
    with engine.begin() as connection:
        config = migration_config(connection, MIGRATIONS)
        command.upgrade(config, "0002")
        connection.exec_driver_sql(
            "INSERT INTO requests VALUES ('req_1', 'rcpt_1', 'k', 5, '/v1', 'toy', 'running', 'h', "
            "NULL, 7, NULL, NULL, 0, 0, 0, NULL, NULL, '', NULL, NULL, 0, 0)"
        )
        connection.exec_driver_sql(
            "INSERT INTO answers VALUES ('req_1', 0, 'job', 0, '[]', 1, 2, 3, 'stop', 0)"
        )
        command.upgrade(config, "head")
        for table, column in (("requests", "gateway_id"), ("answers", "cost_units")):
            (row,) = connection.exec_driver_sql(f"SELECT request_id, {column} FROM {table}").all()
            assert tuple(row) == ("req_1", {"requests": "", "answers": 3}[table])
        command.downgrade(config, "0002")
        (left,) = connection.exec_driver_sql("SELECT COUNT(*) FROM answers").one()
        assert left == 1
    engine.dispose()


def test_migrations_make_exactly_the_tables_of_the_models(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "g.sqlite"), "gateway.db_url")
    upgrade(engine, MIGRATIONS)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    with engine.begin() as connection:
        command.downgrade(migration_config(connection, MIGRATIONS), "base")
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    engine.dispose()
