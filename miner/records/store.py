"""What must a miner still know after a restart: what it accepted, did and signed?

One SQLite file. Two promises: a leaf of a request, once written, never changes (two different ones
under two signatures would cost the stake), and nothing is signed before its leaf is on disk.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from core.protocol import commit, wire
from core.protocol import types as t
from core.protocol.errors import CheckFailed, ConfigError

SCHEMA_VERSION = 7
#: Columns of a job that are kept as they are.
_PLAIN_COLUMNS = (
    "stage",
    "job_id",
    "order_hash",
    "plan_hash",
    "shard_root",
    "started_at",
    "chain_state",
)
#: Job states of the chain after which nothing more is signed or paid.
CLOSED_STATES = ("SETTLED", "CANCELLED", "EXPIRED")

_RESTORED_AS = "restored as"

_SCHEMA = """
CREATE TABLE jobs (
    order_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, job_id TEXT NOT NULL, stage INTEGER NOT NULL,
    signed_order BLOB NOT NULL, plan BLOB NOT NULL, endpoints BLOB NOT NULL,
    shard_root TEXT NOT NULL, acceptance BLOB NOT NULL, verified INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL DEFAULT 0, chain_state TEXT NOT NULL DEFAULT '',
    keep_until INTEGER NOT NULL, purged INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (order_hash, plan_hash)
);
CREATE INDEX jobs_by_id ON jobs (job_id);
CREATE TABLE openings (
    order_hash TEXT NOT NULL, request INTEGER NOT NULL, opening BLOB NOT NULL, prompt BLOB NOT NULL,
    PRIMARY KEY (order_hash, request)
);
CREATE TABLE leaves (
    order_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, request INTEGER NOT NULL, leaf BLOB NOT NULL,
    PRIMARY KEY (order_hash, plan_hash, request)
);
CREATE TABLE boundary_rows (
    order_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, request INTEGER NOT NULL, side TEXT NOT NULL,
    row_bytes INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (order_hash, plan_hash, request, side)
);
CREATE TABLE receipts (
    order_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, requests_root TEXT NOT NULL,
    requests INTEGER NOT NULL, signed BLOB NOT NULL,
    PRIMARY KEY (order_hash, plan_hash, requests_root)
);
CREATE TABLE disputes (
    dispute_id TEXT PRIMARY KEY, job_id TEXT NOT NULL, stage INTEGER NOT NULL,
    open INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE notes (key TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
#: Since version 2: the newest acknowledgement of an open order, by which the chain pays.
_ACKS = """
CREATE TABLE acks (
    order_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, ack BLOB NOT NULL, signature TEXT NOT NULL,
    PRIMARY KEY (order_hash, plan_hash)
)
"""
#: Since version 3: the root of a last stage's state rows.
_STATES = "ALTER TABLE leaves ADD COLUMN states_root TEXT NOT NULL DEFAULT ''"
#: Since version 4: what a last stage said of the whole answer, at a first stage.
_ANSWERS = f"ALTER TABLE leaves ADD COLUMN answer_root TEXT NOT NULL DEFAULT '{t.ZERO_HASH}'"
#: Since version 6: the roots at the boundaries inside the stage, with a blank between two.
_INNER = "ALTER TABLE leaves ADD COLUMN inner_roots TEXT NOT NULL DEFAULT ''"

#: Since version 7: orders of before these records were put back from a backup.
_RESTORED = "CREATE TABLE restored_orders (order_hash TEXT PRIMARY KEY)"

#: Since version 5: words of the stage before, in place of its checkpoints.
_WORDS = """
CREATE TABLE words (
    order_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, request INTEGER NOT NULL,
    signed BLOB NOT NULL,
    PRIMARY KEY (order_hash, plan_hash, request)
)
"""


@dataclass(frozen=True)
class StoredJob:
    """A job this miner accepted, with the place it has in it."""

    signed: t.SignedOrder
    plan: tuple[t.Stage, ...]
    endpoints: tuple[str, ...]
    stage: int
    job_id: str
    order_hash: str
    plan_hash: str
    shard_root: str
    acceptance: t.SignedAcceptance
    is_verified: bool
    started_at: int
    chain_state: str

    @property
    def order(self) -> t.Order:
        return self.signed.order

    @property
    def place(self) -> t.Stage:
        return self.plan[self.stage]

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.plan) - 1


@dataclass(frozen=True)
class BoundaryRows:
    """The rows of one request at one side of this stage."""

    row_bytes: int
    data: bytes


@dataclass(frozen=True)
class Rooted:
    """Rows of one request that one holder has, with their root: state rows, or rows inside."""

    root: bytes
    rows: BoundaryRows


@dataclass(frozen=True)
class FinishedLeaf:
    """One finished request; `states_root` is "" but at a last stage.

    `answer_root` is what a first stage holds of the last one's word, else zero. `inner` are the
    roots at the boundaries inside the stage.
    """

    leaf: t.RequestLeaf
    states_root: str
    answer_root: str
    inner: list[str] = field(default_factory=list)


class MinerStore:
    """The file. Methods are short transactions and may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Open or create. ConfigError for a newer program's file, or what is no database."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._prepare(path)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise ConfigError(
                f"cannot use {path}",
                str(error),
                next_step="move the file away or choose another state folder",
            ) from error

    def _prepare(self, path: Path) -> None:
        path.chmod(0o600)
        self._db.execute("PRAGMA journal_mode = WAL")
        # FULL, because a signature that left must be remembered even after a power cut.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA busy_timeout = 5000")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise ConfigError(
                f"{path} has version {version}", f"this program knows up to {SCHEMA_VERSION}"
            )
        if version < SCHEMA_VERSION:
            with self._write() as db:
                for statement in _SCHEMA.split(";\n") if version == 0 else ():
                    if statement.strip():
                        db.execute(statement)
                if version < 2:
                    db.execute(_ACKS)
                if version < 3:
                    db.execute(_STATES)
                if version < 4:
                    db.execute(_ANSWERS)
                if version < 5:
                    db.execute("DROP TABLE IF EXISTS checkpoints")
                    db.execute(_WORDS)
                if version < 6:
                    db.execute(_INNER)
                db.execute(_RESTORED)
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _put(self, sql: str, *args: object) -> None:
        with self._write() as db:
            db.execute(sql, args)

    def _rows(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, args).fetchall()

    def _row(self, sql: str, *args: object) -> tuple[Any, ...] | None:
        return next(iter(self._rows(sql, *args)), None)

    # --- jobs ---

    def put_job(
        self,
        signed: t.SignedOrder,
        plan: Sequence[t.Stage],
        endpoints: Sequence[str],
        acceptance: t.SignedAcceptance,
        *,
        job_id: str,
        shard_root: str,
        keep_until: int,
    ) -> None:
        """Remember what is about to be accepted. A repeated proposal renews the acceptance only."""
        accepted = acceptance.acceptance
        self._put(
            "INSERT INTO jobs (order_hash, plan_hash, job_id, stage, signed_order, plan,"
            " endpoints, shard_root, acceptance, keep_until)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (order_hash, plan_hash) DO UPDATE SET"
            " acceptance = excluded.acceptance, endpoints = excluded.endpoints WHERE verified = 0",
            accepted.order_hash,
            accepted.plan_hash,
            job_id,
            accepted.stage,
            _pack(signed),
            _pack(list(plan)),
            _pack(list(endpoints)),
            shard_root,
            _pack(acceptance),
            keep_until,
        )

    def job(self, order_hash: str, plan_hash: str | None = None) -> StoredJob | None:
        """The job with this plan; without one the verified, else the newest accepted."""
        found = self._jobs(
            "order_hash = ? AND (? IS NULL OR plan_hash = ?)"
            " ORDER BY verified DESC, rowid DESC LIMIT 1",
            order_hash,
            plan_hash,
            plan_hash,
        )
        return found[0] if found else None

    def plans(self, order_hash: str, most: int) -> list[StoredJob]:
        """The newest plans that were accepted for an order, the verified one first."""
        return self._jobs(
            "order_hash = ? ORDER BY verified DESC, rowid DESC LIMIT ?", order_hash, most
        )

    def heed_restoring(self, name: str) -> int:
        """Sign nothing more for the orders that are known, once for each putting back.

        `name` tells one putting back from another. These records end at a backup; what was signed
        after it, for the same orders, may be in a requester's hands, and two receipts over
        different rows of one request would cost the stake. How many orders these are.
        """
        if not name or self.note(_RESTORED_AS) == name.encode():
            return 0
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (_RESTORED_AS, name.encode()))
            return db.execute(
                "INSERT OR IGNORE INTO restored_orders SELECT DISTINCT order_hash FROM jobs"
            ).rowcount

    def is_restored(self, order_hash: str) -> bool:
        """Whether an order is of before these records were put back."""
        found = self._row("SELECT 1 FROM restored_orders WHERE order_hash = ?", order_hash)
        return found is not None

    def live_jobs(self) -> list[StoredJob]:
        """Verified jobs that the chain has not closed, as far as this miner heard."""
        marks = ", ".join("?" * len(CLOSED_STATES))
        return self._jobs(f"verified = 1 AND chain_state NOT IN ({marks})", *CLOSED_STATES)

    def mark_verified(self, order_hash: str, plan_hash: str, *, now_s: int) -> None:
        """The chain shows the job matched with this plan."""
        self._put(
            "UPDATE jobs SET verified = 1,"
            " started_at = CASE started_at WHEN 0 THEN ? ELSE started_at END"
            " WHERE order_hash = ? AND plan_hash = ?",
            now_s,
            order_hash,
            plan_hash,
        )

    def unmatch(self, job_id: str, but: str = "") -> None:
        """The chain has this job with no plan, or with the plan `but` only: what was verified
        before is not any more.
        """
        self._put(
            "UPDATE jobs SET verified = 0, chain_state = '' WHERE job_id = ? AND plan_hash <> ?",
            job_id,
            but,
        )

    def set_chain_state(self, job_id: str, state: str, *, now_s: int = 0, keep_s: int = 0) -> None:
        """What the chain says of a job; rows stay `keep_s` past `now_s` and its window."""
        with self._write() as db:
            for order_hash, signed, keep_until in db.execute(
                "SELECT order_hash, signed_order, keep_until FROM jobs WHERE job_id = ?", (job_id,)
            ).fetchall():
                window_s = msgspec.msgpack.decode(signed, type=t.SignedOrder).order.window
                db.execute(
                    "UPDATE jobs SET chain_state = ?, keep_until = ? WHERE order_hash = ?",
                    (state, max(keep_until, now_s + window_s + keep_s if now_s else 0), order_hash),
                )

    def _jobs(self, where: str, *args: object) -> list[StoredJob]:
        return [
            StoredJob(
                signed=msgspec.msgpack.decode(signed, type=t.SignedOrder),
                plan=tuple(msgspec.msgpack.decode(plan, type=list[t.Stage])),
                endpoints=tuple(msgspec.msgpack.decode(endpoints, type=list[str])),
                acceptance=msgspec.msgpack.decode(acceptance, type=t.SignedAcceptance),
                is_verified=bool(verified),
                **dict(zip(_PLAIN_COLUMNS, plain, strict=True)),
            )
            for signed, plan, endpoints, acceptance, verified, *plain in self._rows(
                "SELECT signed_order, plan, endpoints, acceptance, verified, "
                f"{', '.join(_PLAIN_COLUMNS)} FROM jobs WHERE {where}",
                *args,
            )
        ]

    # --- requests ---

    def put_opening(
        self, order_hash: str, request: int, opening: wire.Opening, prompt: bytes
    ) -> None:
        """Keep what opens the order's commitments.

        Both were checked against the order, so the first is the only one. Of an open order it is
        the requester's signature over this prompt: evidence of what was asked.
        """
        self._put(
            "INSERT OR IGNORE INTO openings VALUES (?, ?, ?, ?)",
            order_hash,
            request,
            _pack(opening),
            prompt,
        )

    def opening(self, order_hash: str, request: int) -> tuple[wire.Opening, bytes] | None:
        found = self._row(
            "SELECT opening, prompt FROM openings WHERE order_hash = ? AND request = ?",
            order_hash,
            request,
        )
        return found and (msgspec.msgpack.decode(found[0], type=wire.Opening), bytes(found[1]))

    def put_leaf(
        self,
        order_hash: str,
        plan_hash: str,
        leaf: t.RequestLeaf,
        rows_in: BoundaryRows,
        rows_out: BoundaryRows,
        states: Rooted | None = None,
        answer_root: str = t.ZERO_HASH,
        inner: Sequence[Rooted] = (),
    ) -> None:
        """Write down one finished request, before anything is signed over it.

        A last stage's with its `states`, a first stage's with the `answer_root` it was told, one
        with boundaries inside it with these.
        Writing the same leaf again changes nothing. Raises CheckFailed, and changes nothing, when
        another leaf of this request is on record: signing both would be equivocation.
        """
        with self._write() as db:
            known = db.execute(
                "SELECT leaf FROM leaves WHERE order_hash = ? AND plan_hash = ? AND request = ?",
                (order_hash, plan_hash, leaf.request_index),
            ).fetchone()
            if known is not None:
                if msgspec.msgpack.decode(known[0], type=t.RequestLeaf) != leaf:
                    raise CheckFailed(
                        f"request {leaf.request_index} is not signed again",
                        "another result of it is on record, and two signatures would cost the "
                        "stake",
                    )
                return
            key = (order_hash, plan_hash, leaf.request_index)
            root = commit.to_hex(states.root) if states else ""
            roots = " ".join(commit.to_hex(one.root) for one in inner)
            row = (*key, _pack(leaf), root, answer_root, roots)
            db.execute("INSERT INTO leaves VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            sides = [("in", rows_in), ("out", rows_out)]
            sides += [("states", states.rows)] if states else []
            sides += [(wire.inner_side(i), one.rows) for i, one in enumerate(inner)]
            for side, rows in sides:
                db.execute(
                    "INSERT OR REPLACE INTO boundary_rows VALUES (?, ?, ?, ?, ?, ?)",
                    (*key, side, rows.row_bytes, rows.data),
                )

    def leaves(
        self, order_hash: str, plan_hash: str, request: int | None = None
    ) -> dict[int, FinishedLeaf]:
        """Finished requests of a job by index, ascending; only this one, if it is finished."""
        return {
            int(index): FinishedLeaf(
                msgspec.msgpack.decode(leaf, type=t.RequestLeaf),
                str(root),
                str(answer),
                inner.split(),
            )
            for index, leaf, root, answer, inner in self._rows(
                "SELECT request, leaf, states_root, answer_root, inner_roots FROM leaves"
                " WHERE order_hash = ? AND plan_hash = ?"
                + (" ORDER BY request" if request is None else " AND request = ?"),
                order_hash,
                plan_hash,
                *([] if request is None else [request]),
            )
        }

    def rows(
        self, order_hash: str, plan_hash: str, request: int, side: wire.Side, start: int, count: int
    ) -> tuple[bytes, int, int] | None:
        """(rows [start, start + count) that exist, bytes per row, rows in all), or None."""
        found = self._row(
            "SELECT row_bytes, length(data), substr(data, ? * row_bytes + 1, ? * row_bytes)"
            " FROM boundary_rows"
            " WHERE order_hash = ? AND plan_hash = ? AND request = ? AND side = ?",
            start,
            count,
            order_hash,
            plan_hash,
            request,
            side,
        )
        if found is None:
            return None
        row_bytes, size_bytes, data = found
        return bytes(data or b""), int(row_bytes), int(size_bytes) // int(row_bytes)

    def put_word(self, signed: t.SignedWord) -> None:
        """What the stage before said of a request that came whole."""
        word = signed.word
        self._put(
            "INSERT OR REPLACE INTO words VALUES (?, ?, ?, ?)",
            word.order_hash,
            word.plan_hash,
            word.request_index,
            _pack(signed),
        )

    def words(self, order_hash: str, plan_hash: str, most: int) -> list[t.SignedWord]:
        """What the stage before said of requests, by request, at most so many."""
        found = self._rows(
            "SELECT signed FROM words WHERE order_hash = ? AND plan_hash = ?"
            " ORDER BY request LIMIT ?",
            order_hash,
            plan_hash,
            most,
        )
        return [msgspec.msgpack.decode(signed, type=t.SignedWord) for (signed,) in found]

    # --- receipts ---

    def put_receipt(self, signed: t.SignedReceipt) -> None:
        """Remember a receipt before it is sent."""
        receipt = signed.receipt
        self._put(
            "INSERT OR IGNORE INTO receipts VALUES (?, ?, ?, ?, ?)",
            receipt.order_hash,
            receipt.plan_hash,
            receipt.requests_root,
            receipt.requests,
            _pack(signed),
        )

    def receipt(
        self, order_hash: str, plan_hash: str, requests_root: str
    ) -> t.SignedReceipt | None:
        """The one receipt over this set of requests, if it was signed before."""
        found = self._row(
            "SELECT signed FROM receipts"
            " WHERE order_hash = ? AND plan_hash = ? AND requests_root = ?",
            order_hash,
            plan_hash,
            requests_root,
        )
        return msgspec.msgpack.decode(found[0], type=t.SignedReceipt) if found else None

    def receipts(self, order_hash: str, plan_hash: str) -> list[t.SignedReceipt]:
        """Every receipt signed for a job, in order of signing."""
        found = self._rows(
            "SELECT signed FROM receipts WHERE order_hash = ? AND plan_hash = ? ORDER BY rowid",
            order_hash,
            plan_hash,
        )
        return [msgspec.msgpack.decode(signed, type=t.SignedReceipt) for (signed,) in found]

    def sets_signed(self, order_hash: str, plan_hash: str) -> int:
        """How many receipts of a job cover more than one request."""
        found = self._rows(
            "SELECT count(*) FROM receipts WHERE order_hash = ? AND plan_hash = ? AND requests > 1",
            order_hash,
            plan_hash,
        )
        return int(found[0][0])

    # --- acknowledgements of open orders ---

    def put_ack(self, ack: t.Ack, signature: str) -> None:
        """The newest one replaces those before it, which cover less."""
        self._put(
            "INSERT OR REPLACE INTO acks VALUES (?, ?, ?, ?)",
            ack.order_hash,
            ack.plan_hash,
            _pack(ack),
            signature,
        )

    def ack(self, order_hash: str, plan_hash: str) -> tuple[t.Ack, str] | None:
        found = self._row(
            "SELECT ack, signature FROM acks WHERE order_hash = ? AND plan_hash = ?",
            order_hash,
            plan_hash,
        )
        return found and (msgspec.msgpack.decode(found[0], type=t.Ack), str(found[1]))

    # --- disputes and notes ---

    def put_dispute(self, dispute_id: str, job_id: str, stage: int) -> None:
        self._put("INSERT OR IGNORE INTO disputes VALUES (?, ?, ?, 1)", dispute_id, job_id, stage)

    def close_dispute(self, dispute_id: str) -> None:
        self._put("UPDATE disputes SET open = 0 WHERE dispute_id = ?", dispute_id)

    def open_disputes(self, job_id: str) -> list[str]:
        sql = "SELECT dispute_id FROM disputes WHERE job_id = ? AND open = 1"
        return [str(found) for (found,) in self._rows(sql, job_id)]

    def note(self, key: str) -> bytes | None:
        """A small value under a name: the event follower's position, the record's sequence."""
        found = self._row("SELECT value FROM notes WHERE key = ?", key)
        return bytes(found[0]) if found else None

    def put_note(self, key: str, value: bytes) -> None:
        self._put("INSERT OR REPLACE INTO notes VALUES (?, ?)", key, value)

    # --- the end of it ---

    def purge(self, now_s: int) -> int:
        """Delete rows and prompts of jobs that can no longer be disputed.

        Returns how many jobs were cleared. Leaves, acceptances and receipts stay for ever: they are
        small, and they are what keeps a request from being signed twice.
        """
        with self._write() as db:
            old = db.execute(
                "SELECT order_hash, plan_hash FROM jobs WHERE purged = 0 AND keep_until < ?"
                " AND (verified = 0 OR chain_state IN ('SETTLED', 'CANCELLED', 'EXPIRED'))"
                " AND job_id NOT IN (SELECT job_id FROM disputes WHERE open = 1)",
                (now_s,),
            ).fetchall()
            for order_hash, plan_hash in old:
                for table in ("boundary_rows", "words"):
                    db.execute(
                        f"DELETE FROM {table} WHERE order_hash = ? AND plan_hash = ?",
                        (order_hash, plan_hash),
                    )
                db.execute("DELETE FROM openings WHERE order_hash = ?", (order_hash,))
                db.execute(
                    "UPDATE jobs SET purged = 1 WHERE order_hash = ? AND plan_hash = ?",
                    (order_hash, plan_hash),
                )
        return len(old)


def keep_until(order: t.Order, keep_s: int) -> int:
    """Until when a job's rows are kept at least: past its deadline, its window and a margin."""
    return order.deadline + order.window + keep_s


def _pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)
