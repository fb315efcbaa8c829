"""How much of the time was a machine or a model there? Looks of this gateway, counted by the hour.

Nothing on chain says it. A gateway that does not run looks at nothing, and counts nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from core.runtime.clock import Clock
from core.runtime.folders import make_private
from core.runtime.logs import get_logger

log = get_logger(__name__)
LOOK_EVERY_S = 30.0
KEPT_HOURS = 90 * 24
#: The subject of every look.
_ALL = ""
_TABLE = """
CREATE TABLE IF NOT EXISTS seen (
  hour INTEGER NOT NULL, subject TEXT NOT NULL, looks INTEGER NOT NULL,
  PRIMARY KEY (hour, subject)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_subject ON seen (subject, hour);
"""
#: Subjects that were there, as a matcher says now; None where it does not answer.
Look = Callable[[], Awaitable[Iterable[str] | None]]


class Uptime:
    """The file and the task that fills it."""

    def __init__(self, path: Path, look: Look, clock: Clock) -> None:
        make_private(path.parent)
        self._look, self._clock = look, clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="uptime")
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + _TABLE)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.step()
            except sqlite3.Error as error:  # a full disk
                log.warning("the time that machines are there is not counted", reason=str(error))
            await self._clock.sleep(LOOK_EVERY_S)

    async def step(self) -> None:
        """Look once."""
        there = await self._look()
        if there is not None:
            hour = int(self._clock.now() // 3600)
            await self._off_loop(self._count, hour, frozenset(there) | {_ALL})

    async def shares(self, days: int) -> dict[str, float]:
        """For each subject the share of looks at which it was there, since the first that saw it.

        Of the last `days` days. Who was never seen in them is not among them.
        """
        since = int(self._clock.now() // 3600) - 24 * days
        return await self._off_loop(self._shares, since)

    async def close(self) -> None:
        """Let go of the file; the task must have ended."""
        await self._off_loop(self._db.close)
        self._thread.shutdown(wait=True)

    async def _off_loop(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def _count(self, hour: int, subjects: Iterable[str]) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET looks = looks + 1",
                [(hour, subject) for subject in subjects],
            )
            self._db.execute("DELETE FROM seen WHERE hour < ?", (hour - KEPT_HOURS,))

    def _shares(self, since: int) -> dict[str, float]:
        rows = self._db.execute(
            "SELECT s.subject, sum(s.looks), (SELECT sum(a.looks) FROM seen a "
            "WHERE a.subject = ? AND a.hour >= max(?, (SELECT min(f.hour) FROM seen f "
            "WHERE f.subject = s.subject))) FROM seen s "
            "WHERE s.subject != ? AND s.hour >= ? GROUP BY s.subject",
            (_ALL, since, _ALL, since),
        )
        return {subject: min(1.0, there / looks) for subject, there, looks in rows if looks}
