"""What must a watching auditor not forget: its secret, jobs seen, requests drawn, verdicts?"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from core.chain.follower import ChainPosition
from core.money.audit_report import OperatorAudits
from core.money.paid_audits import AuditEnd
from core.runtime.folders import make_private_file

_TABLES = """
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS job (
  job TEXT PRIMARY KEY, matched_tx TEXT NOT NULL, matched_block INTEGER NOT NULL,
  beacon TEXT NOT NULL DEFAULT '', signed_block INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL DEFAULT 'running', tries INTEGER NOT NULL DEFAULT 0,
  not_before_s REAL NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS looked (
  job TEXT NOT NULL, request INTEGER NOT NULL, drawn INTEGER NOT NULL,
  judged INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job, request));
CREATE TABLE IF NOT EXISTS verdict (
  number INTEGER PRIMARY KEY, job TEXT NOT NULL, stage INTEGER NOT NULL, operator TEXT NOT NULL,
  verdict TEXT NOT NULL, requests INTEGER NOT NULL, in_float64 INTEGER NOT NULL,
  ratio REAL NOT NULL, allowed REAL NOT NULL, why TEXT NOT NULL,
  dispute TEXT NOT NULL DEFAULT '', at_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS finding (
  job TEXT NOT NULL, request INTEGER NOT NULL, verdict TEXT NOT NULL, stage INTEGER NOT NULL,
  PRIMARY KEY (job, request));
CREATE TABLE IF NOT EXISTS paid_lot (
  job TEXT NOT NULL, request INTEGER NOT NULL, answer TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, request));
CREATE INDEX IF NOT EXISTS verdict_of_operator ON verdict (operator);
CREATE INDEX IF NOT EXISTS job_state ON job (state);
"""
#: The columns of a `StageVerdict`, in its order.
_VERDICT = "job, stage, operator, verdict, requests, in_float64, ratio, allowed, why, dispute, at_s"


class WatchState(StrEnum):
    """Where a job stands: receipts not signed yet, to be drawn and audited, done, or given up."""

    RUNNING = "running"
    DUE = "due"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class WatchedJob:
    """A job that we audit."""

    job_id: str
    matched_tx: str
    beacon: str
    signed_block: int
    tries: int


@dataclass(frozen=True)
class StageVerdict:
    """One stage of one audited job, as it is kept."""

    job_id: str
    stage: int
    operator: str
    found: AuditEnd
    requests: int
    in_float64: int
    ratio: float
    allowed: float
    why: str
    dispute: str = ""
    at_s: float = 0.0


@dataclass(frozen=True)
class RequestVerdict:
    """One audited request: the worst that was found of it, and the first stage at which it was."""

    request: int
    found: AuditEnd
    stage: int


class WatchBook:
    """SQLite; what is written is on disk before it is acted on."""

    def __init__(self, path: Path) -> None:
        make_private_file(path)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(_TABLES)

    def close(self) -> None:
        self._db.close()

    # --- what the draw needs ---

    def secret(self) -> bytes:
        """32 random bytes, made once."""
        self._db.execute("INSERT OR IGNORE INTO kept VALUES ('secret', ?)", (os.urandom(32),))
        return bytes(self._kept("secret"))

    def position(self) -> ChainPosition:
        """How far the chain was read."""
        value = self._kept("position")
        return msgspec.json.decode(value, type=ChainPosition) if value else ChainPosition()

    def advance(self, position: ChainPosition) -> None:
        """Events up to here are taken in."""
        self._keep("position", msgspec.json.encode(position))

    def _kept(self, name: str) -> Any:
        row = self._db.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def _keep(self, name: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (name, value))

    def roll_back(self, block: int) -> None:
        """Blocks above this one are gone, with the jobs matched and the signings seen there."""
        self._db.execute("DELETE FROM job WHERE matched_block > ?", (block,))
        self._db.execute(
            "UPDATE job SET state = 'running', beacon = '', signed_block = 0"
            " WHERE signed_block > ? AND state = 'due'",
            (block,),
        )

    # --- jobs ---

    def matched(self, job_id: str, tx: str, block: int) -> None:
        """A job of ours is matched by this transaction."""
        self._db.execute(
            "INSERT OR IGNORE INTO job (job, matched_tx, matched_block) VALUES (?, ?, ?)",
            (job_id, tx, block),
        )

    def signed(self, job_id: str, beacon: str, block: int) -> None:
        """Receipts of this job are signed, or more of them; `beacon` is that block's hash."""
        self._db.execute(
            "UPDATE job SET state = 'due', beacon = ?, signed_block = ?, tries = 0,"
            " not_before_s = 0 WHERE job = ? AND signed_block < ?",
            (beacon, block, job_id, block),
        )

    def due(self, now_s: float) -> list[WatchedJob]:
        """Jobs to draw from, oldest first."""
        rows = self._db.execute(
            "SELECT job, matched_tx, beacon, signed_block, tries FROM job"
            " WHERE state = 'due' AND not_before_s <= ? ORDER BY signed_block, job",
            (now_s,),
        )
        return [WatchedJob(*row) for row in rows]

    def done(self, job: WatchedJob) -> None:
        """Nothing is left to do, unless more was signed meanwhile."""
        self._db.execute(
            "UPDATE job SET state = 'done', why = '' WHERE job = ? AND signed_block = ?",
            (job.job_id, job.signed_block),
        )

    def put_off(self, job: WatchedJob, not_before_s: float, why: str, *, give_up: bool) -> None:
        """Try a job again from this time on, or never."""
        state = WatchState.GIVEN_UP if give_up else WatchState.DUE
        self._db.execute(
            "UPDATE job SET tries = tries + 1, not_before_s = ?, why = ?, state = ? WHERE job = ?",
            (not_before_s, why[:500], state, job.job_id),
        )

    def drawn(self, job_id: str) -> dict[int, bool]:
        """Requests of a job whose lots fell already, and how."""
        rows = self._db.execute("SELECT request, drawn FROM looked WHERE job = ?", (job_id,))
        return {request: bool(drawn) for request, drawn in rows}

    def draw(self, job_id: str, fell: dict[int, bool]) -> None:
        """How the lots of requests fell; the first time stands."""
        self._db.executemany(
            "INSERT OR IGNORE INTO looked (job, request, drawn) VALUES (?, ?, ?)",
            [(job_id, request, int(drawn)) for request, drawn in fell.items()],
        )

    # --- verdicts ---

    def judged_requests(self, job_id: str) -> frozenset[int]:
        """Requests of a job whose verdicts are kept."""
        judged = "SELECT request FROM looked WHERE job = ? AND judged = 1"
        return frozenset(request for (request,) in self._db.execute(judged, (job_id,)))

    def keep(
        self,
        verdicts: Sequence[StageVerdict],
        at: float,
        *,
        judged: Collection[RequestVerdict] = (),
    ) -> None:
        """All stages of one audit at a time, Unix seconds, and what was found of its requests."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                f"INSERT INTO verdict ({_VERDICT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [astuple(replace(v, operator=v.operator.lower(), at_s=at)) for v in verdicts],
            )
            jobs = {v.job_id for v in verdicts}
            self._db.executemany(
                "UPDATE looked SET judged = 1 WHERE job = ? AND request = ?",
                [(job_id, r.request) for job_id in jobs for r in judged],
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO finding VALUES (?, ?, ?, ?)",
                [(job_id, r.request, r.found, r.stage) for job_id in jobs for r in judged],
            )

    def findings(self, job_id: str) -> dict[int, RequestVerdict]:
        """What was found of a job's requests so far."""
        found = "SELECT request, verdict, stage FROM finding WHERE job = ?"
        rows = self._db.execute(found, (job_id,))
        return {request: RequestVerdict(request, AuditEnd(v), stage) for request, v, stage in rows}

    # --- what the matcher pays ---

    def drawn_by_matcher(self, job_id: str, requests: Collection[int]) -> None:
        """The matcher's lot fell on these."""
        self._db.executemany(
            "INSERT OR IGNORE INTO paid_lot (job, request) VALUES (?, ?)",
            [(job_id, request) for request in requests],
        )

    def to_hand_in(self, job_id: str) -> list[RequestVerdict]:
        """What was found of requests that the matcher pays for and has not answered for."""
        rows = self._db.execute(
            "SELECT request, verdict, stage FROM finding JOIN paid_lot USING (job, request)"
            " WHERE job = ? AND answer = '' ORDER BY request",
            (job_id,),
        )
        return [RequestVerdict(request, AuditEnd(v), stage) for request, v, stage in rows]

    def handed_in(self, job_id: str, request: int, answer: str) -> None:
        """What the matcher said to a finding: `taken`, or why not."""
        self._db.execute(
            "UPDATE paid_lot SET answer = ? WHERE job = ? AND request = ?",
            (answer[:500], job_id, request),
        )

    def paid_lots(self) -> tuple[int, int]:
        """How many requests the matcher's lot fell on, and how many findings it has taken."""
        row = self._db.execute("SELECT COUNT(*), COALESCE(SUM(answer = 'taken'), 0) FROM paid_lot")
        drawn, taken = row.fetchone()
        return int(drawn), int(taken)

    def disputed(self, job_id: str, stage: int, dispute: str) -> None:
        """What became of accusing a stage."""
        self._db.execute(
            "UPDATE verdict SET dispute = ? WHERE job = ? AND stage = ?", (dispute, job_id, stage)
        )

    def verdicts(self, job_id: str | None = None, limit: int = 100) -> list[StageVerdict]:
        """Newest first."""
        where, args = ("WHERE job = ?", [job_id]) if job_id else ("", [])
        rows = self._db.execute(
            f"SELECT {_VERDICT} FROM verdict {where} ORDER BY number DESC LIMIT ?", (*args, limit)
        )
        return [StageVerdict(*row[:3], AuditEnd(row[3]), *row[4:]) for row in rows]

    def undisputed(self) -> list[tuple[str, int]]:
        """(job, first stage at fault) of jobs of which no stage was accused yet, oldest first."""
        rows = self._db.execute(
            "SELECT job, MIN(stage) FROM verdict WHERE verdict IN ('fault', 'withheld')"
            " GROUP BY job HAVING SUM(dispute != '') = 0 ORDER BY MIN(number)"
        )
        return [(str(job), int(stage)) for job, stage in rows]

    def standings(self) -> list[OperatorAudits]:
        """Every operator that was audited, the worst first."""
        rows = self._db.execute(
            "SELECT operator, COUNT(DISTINCT job), SUM(verdict = 'clean'), SUM(verdict = 'fault'),"
            " SUM(verdict = 'withheld'), SUM(verdict = 'suspicious'),"
            " CAST(COALESCE(MAX(at_s) FILTER (WHERE verdict IN ('fault', 'suspicious')), 0)"
            " AS INT), CAST(COALESCE(MAX(at_s) FILTER (WHERE verdict = 'withheld'), 0) AS INT)"
            " FROM verdict GROUP BY operator ORDER BY 4 DESC, 6 DESC, 5 DESC, operator"
        )
        return [OperatorAudits(*row) for row in rows]

    def standing_of(self, operator: str) -> OperatorAudits:
        """What is known of one operator, nothing if it was never audited."""
        known = {standing.operator: standing for standing in self.standings()}
        return known.get(operator.lower(), OperatorAudits(operator.lower(), 0, 0, 0, 0, 0, 0, 0))

    # --- what others are told ---

    def untold(self) -> int:
        """The number of the newest verdict; 0 if it was told."""
        (newest,) = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM verdict").fetchone()
        return int(newest) if int(newest) > int(self._kept("told") or 0) else 0

    def told(self, number: int) -> None:
        """Everything up to this verdict was told."""
        self._keep("told", number)

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        rows = dict(self._db.execute("SELECT state, COUNT(*) FROM job GROUP BY state"))
        return {str(state): int(rows.get(state, 0)) for state in WatchState}

    def shadow(self) -> tuple[int, float]:
        """How many stages were only measured, and the largest D/S among them."""
        row = self._db.execute(
            "SELECT COUNT(*), COALESCE(MAX(ratio), 0) FROM verdict WHERE verdict = 'shadow'"
        ).fetchone()
        return int(row[0]), float(row[1])
