"""What happened on chain, by job, address, transaction or block? Events in one SQLite file.

A cache: it follows the chain, undoes what a reorganisation undid, and may be deleted at any time.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from core.chain.chain import ChainEvent
from core.chain.follower import ChainPosition, EventBatch, EventFollower
from core.chain.rpc import RpcChain
from core.protocol.errors import ContractRefused, HeadraceError
from core.protocol.units import whole_units
from core.runtime.clock import Clock
from core.runtime.folders import make_private
from core.runtime.logs import get_logger

log = get_logger(__name__)
POLL_S, RETRY_S = 1.0, 5.0
MAX_PAGE = 200
#: Blocks whose times are read in one round.
TIMES_PER_ROUND = 50
_TABLES = """
CREATE TABLE IF NOT EXISTS event (
  id INTEGER PRIMARY KEY, block INTEGER NOT NULL, log_index INTEGER NOT NULL, tx TEXT NOT NULL,
  contract TEXT NOT NULL, name TEXT NOT NULL, args TEXT NOT NULL, UNIQUE (block, log_index));
CREATE INDEX IF NOT EXISTS event_tx ON event (tx);
CREATE INDEX IF NOT EXISTS event_name ON event (name, id);
CREATE TABLE IF NOT EXISTS subject (
  subject TEXT NOT NULL, event_id INTEGER NOT NULL REFERENCES event (id) ON DELETE CASCADE,
  PRIMARY KEY (subject, event_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS subject_event ON subject (event_id);
CREATE TABLE IF NOT EXISTS block_time (block INTEGER PRIMARY KEY, at_s INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS follower (id INTEGER PRIMARY KEY CHECK (id = 1), position BLOB NOT NULL);
"""
_SUBJECT = "JOIN subject s ON s.event_id = e.id WHERE s.subject = ?"


@dataclass(frozen=True)
class LoggedEvent:
    """An event as it is looked up; `at_s` is its block's time, None until that was read."""

    id: int
    block: int
    log_index: int
    tx: str
    contract: str
    name: str
    args: dict[str, Any]
    at_s: int | None


@dataclass(frozen=True)
class LogProgress:
    """How far the log is."""

    block: int | None
    events: int
    at_ms: int
    problem: str


class ChainLog:
    """The file and the task that fills it."""

    def __init__(self, chain: RpcChain, path: Path, clock: Clock, *, start_block: int) -> None:
        """Opens the file; the chain is not asked yet."""
        make_private(path.parent)
        self._chain, self._clock, self._start_block = chain, clock, start_block
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chain-log")
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;" + _TABLES
        )
        self._db.create_aggregate("sum_units", 1, _SumOfUnits)
        self._follower = EventFollower(chain, start_block=start_block, position=self._position())
        self._looked_at_ms, self._problem = 0, "not read yet"

    async def run(self) -> None:
        """Until cancelled. A chain that does not answer is waited for."""
        while True:
            try:
                more = await self.step()
                wait_s = 0.0 if more else POLL_S
            except HeadraceError as error:
                self._problem, wait_s = f"{error.what}: {error.why}", RETRY_S
            except Exception as error:  # a bug of ours must not end the log for good
                log.exception("the chain log failed", exc_info=error)
                self._problem, wait_s = f"a bug of ours: {type(error).__name__}", RETRY_S
            if wait_s:
                await self._clock.sleep(wait_s)

    async def step(self) -> bool:
        """Look once at the chain; True: there is more to read. Raises ChainUnreachable."""
        batch = await self._follower.poll()
        await self._off_loop(self._take, batch)
        missing = await self._off_loop(self._blocks_without_time)
        times = [(number, await self._block_time(number)) for number in missing]
        await self._off_loop(self._keep_times, times)
        self._looked_at_ms, self._problem = int(self._clock.now() * 1000), ""
        head = await self._chain.block_number()
        return batch.position.last is not None and batch.position.last < head

    async def close(self) -> None:
        """Let go of the file; the task must have ended."""
        await self._off_loop(self._db.close)
        self._thread.shutdown(wait=True)

    # --- looking up ---

    async def progress(self) -> LogProgress:
        return await self._off_loop(self._progress)

    async def about(
        self, subject: str, *, names: Sequence[str] = (), before: int | None = None, limit: int = 50
    ) -> list[LoggedEvent]:
        """Newest first: events with this id or address among their arguments, before an event."""
        return await self._off_loop(self._about, subject.lower(), tuple(names), before, limit)

    async def named(
        self, *names: str, before: int | None = None, limit: int = 50
    ) -> list[LoggedEvent]:
        """Newest first: events of these names, or all."""
        return await self._off_loop(self._named, names, before, limit)

    async def of_transaction(self, tx: str) -> list[LoggedEvent]:
        return await self._off_loop(self._select, "WHERE tx = ? ORDER BY id", (tx.lower(),))

    async def of_block(self, block: int) -> list[LoggedEvent]:
        return await self._off_loop(self._select, "WHERE e.block = ? ORDER BY id", (block,))

    async def subjects(self, names: Sequence[str], argument: str, limit: int) -> list[str]:
        """Newest first: the distinct values of an argument of these events."""
        events = await self.named(*names, limit=limit)
        return list(dict.fromkeys(str(event.args[argument]) for event in events))

    async def count(self, subject: str, names: Sequence[str]) -> int:
        """How many events of these names have this subject."""
        return await self._off_loop(self._count, subject.lower(), tuple(names))

    async def open_locks(self, account: str, limit: int = 100) -> list[LoggedEvent]:
        """Newest first: `JobLocked` of an account whose jobs have not given the rest back."""
        where = (
            f"{_SUBJECT} AND e.name = 'JobLocked' AND NOT EXISTS "
            "(SELECT 1 FROM subject j JOIN event r ON r.id = j.event_id "
            "WHERE j.subject = lower(json_extract(e.args, '$.job')) AND r.name = 'JobReleased') "
        )
        return await self._off_loop(self._page, where, [account.lower()], (), None, limit)

    async def credits_of(self, account: str, jobs: Sequence[str]) -> dict[str, int]:
        """What each of these jobs brought an account, in base units."""
        return await self._off_loop(self._credits_of, account.lower(), [j.lower() for j in jobs])

    async def credited(self, account: str) -> tuple[int, list[tuple[str, int, int]]]:
        """All credits of an account, and (day, units, credits) of its last 30 days in order."""
        return await self._off_loop(self._credited, account.lower())

    # --- in the file's thread ---

    async def _off_loop(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def _position(self) -> ChainPosition | None:
        row = self._db.execute("SELECT position FROM follower").fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=ChainPosition)

    def _take(self, batch: EventBatch) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if batch.rolled_back_to is not None:
                self._db.execute("DELETE FROM event WHERE block > ?", (batch.rolled_back_to,))
                self._db.execute("DELETE FROM block_time WHERE block > ?", (batch.rolled_back_to,))
            for event in batch.events:
                self._add(event)
            encoded = msgspec.json.encode(batch.position)
            self._db.execute("INSERT OR REPLACE INTO follower VALUES (1, ?)", (encoded,))
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _add(self, event: ChainEvent) -> None:
        place = event.block_number, event.log_index, event.tx_hash.lower()
        added = self._db.execute(
            "INSERT OR IGNORE INTO event (block, log_index, tx, contract, name, args) "
            "VALUES (?,?,?,?,?,?)",
            (*place, event.contract, event.name, json.dumps(event.args)),
        )
        if added.rowcount:
            self._db.executemany(
                "INSERT OR IGNORE INTO subject VALUES (?, ?)",
                [(subject, added.lastrowid) for subject in subjects_of(event.args)],
            )

    def _blocks_without_time(self) -> list[int]:
        found = self._db.execute(
            "SELECT DISTINCT block FROM event WHERE block NOT IN (SELECT block FROM block_time) "
            "ORDER BY block DESC LIMIT ?",
            (TIMES_PER_ROUND,),
        )
        return [row[0] for row in found]

    def _keep_times(self, times: Iterable[tuple[int, int | None]]) -> None:
        known = [(block, at_s) for block, at_s in times if at_s is not None]
        self._db.executemany("INSERT OR REPLACE INTO block_time VALUES (?, ?)", known)

    async def _block_time(self, number: int) -> int | None:
        try:
            block = await self._chain.rpc("eth_getBlockByNumber", hex(number), False)
        except ContractRefused:
            return None
        return None if block is None else _as_int(block["timestamp"])

    def _progress(self) -> LogProgress:
        (count,) = self._db.execute("SELECT COUNT(*) FROM event").fetchone()
        position = self._position()
        last = position.last if position else None
        return LogProgress(last, count, self._looked_at_ms, self._problem)

    def _about(
        self, subject: str, names: tuple[str, ...], before: int | None, limit: int
    ) -> list[LoggedEvent]:
        return self._page(_SUBJECT, [subject], names, before, limit)

    def _named(self, names: tuple[str, ...], before: int | None, limit: int) -> list[LoggedEvent]:
        return self._page("WHERE 1", [], names, before, limit)

    def _page(
        self, where: str, values: list[Any], names: tuple[str, ...], before: int | None, limit: int
    ) -> list[LoggedEvent]:
        if names:
            where += f" AND e.name IN ({','.join('?' * len(names))})"
            values += names
        if before is not None:
            where += " AND e.id < ?"
            values.append(before)
        values.append(max(1, min(limit, MAX_PAGE)))
        return self._select(f"{where} ORDER BY e.id DESC LIMIT ?", values)

    def _count(self, subject: str, names: tuple[str, ...]) -> int:
        marks = ",".join("?" * len(names))
        query = f"SELECT COUNT(*) FROM event e {_SUBJECT} AND e.name IN ({marks})"
        (count,) = self._db.execute(query, (subject, *names)).fetchone()
        return int(count)

    def _credits_of(self, account: str, jobs: list[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in jobs:
            query = f"SELECT e.args FROM event e {_SUBJECT} AND e.name = 'Credited'"
            rows = self._db.execute(query, (job,))
            credited = [json.loads(row[0]) for row in rows]
            found[job] = whole_units(
                sum(int(args["nano"]) for args in credited if args["account"].lower() == account)
            )
        return found

    def _credited(self, account: str) -> tuple[int, list[tuple[str, int, int]]]:
        mine = (
            f"FROM event e LEFT JOIN block_time t ON t.block = e.block {_SUBJECT} "
            "AND e.name = 'Credited' AND lower(json_extract(e.args, '$.account')) = ?"
        )
        units = "COALESCE(sum_units(e.args -> '$.nano'), 0)"
        (total,) = self._db.execute(f"SELECT {units} {mine}", (account, account)).fetchone()
        rows = self._db.execute(
            f"SELECT date(t.at_s, 'unixepoch') day, {units}, COUNT(*) {mine} "
            "AND t.at_s IS NOT NULL GROUP BY day ORDER BY day DESC LIMIT 30",
            (account, account),
        ).fetchall()
        return total, [tuple(row) for row in reversed(rows)]

    def _select(self, rest: str, values: Sequence[Any]) -> list[LoggedEvent]:
        query = (
            "SELECT e.id, e.block, e.log_index, e.tx, e.contract, e.name, e.args, t.at_s "
            "FROM event e LEFT JOIN block_time t ON t.block = e.block "
        )
        with closing(self._db.cursor()) as cursor:
            rows = cursor.execute(query + rest, values).fetchall()
        return [LoggedEvent(*row[:6], json.loads(row[6]), row[7]) for row in rows]


class _SumOfUnits:
    """For SQL: whole units of a sum of nano units, which may be larger than SQL's integers."""

    def __init__(self) -> None:
        self._nano = 0

    def step(self, nano: str) -> None:
        self._nano += int(nano)

    def finalize(self) -> int:
        return whole_units(self._nano)


def subjects_of(args: Any) -> set[str]:
    """Every 20- and 32-byte value among an event's arguments, in lower case."""
    return set(_hex_values(args))


def _hex_values(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.startswith("0x") and len(value) in (42, 66):
            yield value.lower()
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _hex_values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _hex_values(inner)


def _as_int(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)
