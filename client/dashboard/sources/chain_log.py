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

from client.dashboard.sources.history import History, read_history
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
#: Blocks whose times, and ends of jobs whose counts, are read in one round.
TIMES_PER_ROUND, ACKS_PER_ROUND = 50, 20
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
CREATE TABLE IF NOT EXISTS last_ack (
  event_id INTEGER PRIMARY KEY REFERENCES event (id) ON DELETE CASCADE,
  tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS block_time (block INTEGER PRIMARY KEY, at_s INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS follower (id INTEGER PRIMARY KEY CHECK (id = 1), position BLOB NOT NULL);
"""
#: The events with which a job ends and locks nothing any more.
_ENDS = ("JobSettled", "JobCancelled", "JobExpired")
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
        ends = await self._off_loop(self._ends_without_ack)
        acks = [(event_id, *await self._ack_of(tx)) for event_id, tx in ends]
        await self._off_loop(self._keep_acks, acks)
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

    async def movements(
        self, account: str, names: Sequence[str], *, before: int | None = None, limit: int = 50
    ) -> list[LoggedEvent]:
        """Newest first: those of these events that moved the account's own money."""
        own, key = ("requester", "to", "account"), account.lower()
        whose = ", ".join(f"json_extract(e.args, '$.{name}')" for name in own)
        where = f"{_SUBJECT} AND lower(coalesce({whose}, ?)) = ?"
        return await self._off_loop(self._page, where, [key, key, key], tuple(names), before, limit)

    async def open_locks(self, account: str, limit: int = 100) -> list[LoggedEvent]:
        """Newest first: `JobOpened` of jobs of an account that did not end; each locks its most."""
        return await self._off_loop(self._open_locks, account.lower(), limit)

    async def income_of_jobs(self, account: str, jobs: Sequence[str]) -> dict[str, int]:
        """What each of these jobs paid an account, as in `income`, in whole units."""
        wanted = [job.lower() for job in jobs]
        return await self._off_loop(self._income_of_jobs, account.lower(), wanted)

    async def income(self, account: str) -> tuple[int, list[tuple[str, int, int]]]:
        """What jobs paid an account, and (day, units, payments) of its last 30 days in order.

        Its income is the pay of all operators that its miner ever had, and its fees as a matcher.
        """
        return await self._off_loop(self._income, account.lower())

    async def history(self, days: int) -> History:
        """The network's last days, as far as the log is."""
        now_s = int(self._clock.now())
        return await self._off_loop(lambda: read_history(self._db, days, now_s))

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

    def _ends_without_ack(self) -> list[tuple[int, str]]:
        """Jobs that were settled: how much their last Ack counts is in the transaction alone."""
        found = self._db.execute(
            "SELECT id, tx FROM event WHERE name = 'JobSettled' "
            "AND id NOT IN (SELECT event_id FROM last_ack) ORDER BY id DESC LIMIT ?",
            (ACKS_PER_ROUND,),
        )
        return list(found)

    def _keep_acks(self, acks: Iterable[tuple[int, int, int]]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO last_ack VALUES (?, ?, ?)", acks)

    async def _ack_of(self, tx: str) -> tuple[int, int]:
        """(prompt tokens, answer tokens) of the Ack that a transaction handed in; else nothing."""
        call = await self._chain.call_of(tx)
        if call is None or call.function != "settleAck":
            return 0, 0
        ack = call.args["ack"]
        return int(ack["tokensIn"]), int(ack["tokensOut"])

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

    def _open_locks(self, account: str, limit: int) -> list[LoggedEvent]:
        ends = ",".join(f"'{name}'" for name in _ENDS)
        where = (
            f"{_SUBJECT} AND e.name = 'JobOpened' AND NOT EXISTS "
            "(SELECT 1 FROM subject j JOIN event r ON r.id = j.event_id "
            f"WHERE j.subject = lower(json_extract(e.args, '$.job')) AND r.name IN ({ends})) "
        )
        return self._page(where, [account], (), None, limit)

    def _income_of_jobs(self, account: str, jobs: list[str]) -> dict[str, int]:
        operators, found = self._operators_of(account), dict[str, int]()
        for job in jobs:
            query = f"SELECT e.args FROM event e {_SUBJECT} AND e.name = 'Paid'"
            paid = [json.loads(row[0]) for row in self._db.execute(query, (job,))]
            found[job] = whole_units(sum(_brought(args, account, operators) for args in paid))
        return found

    def _income(self, account: str) -> tuple[int, list[tuple[str, int, int]]]:
        operators = self._operators_of(account)
        marks = ",".join("?" * (1 + len(operators)))
        rows = self._db.execute(
            "SELECT e.args, date(t.at_s, 'unixepoch') FROM event e "
            "LEFT JOIN block_time t ON t.block = e.block WHERE e.name = 'Paid' "
            f"AND e.id IN (SELECT event_id FROM subject WHERE subject IN ({marks}))",
            (account, *operators),
        )
        total, days = 0, dict[str, tuple[int, int]]()
        for args, day in rows:
            if not (nano := _brought(json.loads(args), account, operators)):
                continue
            total += nano
            if day is not None:
                before, count = days.get(day, (0, 0))
                days[day] = before + nano, count + 1
        last = [(day, whole_units(days[day][0]), days[day][1]) for day in sorted(days)[-30:]]
        return whole_units(total), last

    def _operators_of(self, owner: str) -> frozenset[str]:
        """All that an owner's miner ever had: none of them can become another's."""
        query = f"SELECT e.args FROM event e {_SUBJECT} AND e.name IN (?, ?)"
        rows = self._db.execute(query, (owner, "MinerRegistered", "OperatorRotated"))
        told = [json.loads(row[0]) for row in rows]
        return frozenset(
            str(args.get("newOperator") or args["operator"]).lower()
            for args in told
            if args["owner"].lower() == owner
        )

    def _select(self, rest: str, values: Sequence[Any]) -> list[LoggedEvent]:
        query = (
            "SELECT e.id, e.block, e.log_index, e.tx, e.contract, e.name, e.args, t.at_s "
            "FROM event e LEFT JOIN block_time t ON t.block = e.block "
        )
        with closing(self._db.cursor()) as cursor:
            rows = cursor.execute(query + rest, values).fetchall()
        return [LoggedEvent(*row[:6], json.loads(row[6]), row[7]) for row in rows]


def _brought(paid: dict[str, Any], account: str, operators: frozenset[str]) -> int:
    """What a `Paid` brought an account, in nano units: its operators' pay, its fee as a matcher."""
    each = zip(paid["operators"], paid["payNano"], strict=True)
    pay = sum(int(nano) for operator, nano in each if operator.lower() in operators)
    return pay + (int(paid["matcherNano"]) if paid["matcher"].lower() == account else 0)


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
