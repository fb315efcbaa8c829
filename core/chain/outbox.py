"""Which transactions were signed here, and may have been sent, before a program ended?

A transaction is written down before any node sees it, and forgotten once its fate is known. So of
two that one program signed for the same purpose, before and after it was killed, the second is not
sent while the first may still be mined.
"""

from __future__ import annotations

import os
import sqlite3
from functools import cached_property
from pathlib import Path

import msgspec

from core.chain.chain import PreparedTransaction

_TABLE = """
CREATE TABLE IF NOT EXISTS outbox (
    sender TEXT, nonce INTEGER, hash TEXT, body BLOB, process INTEGER, began TEXT,
    PRIMARY KEY (sender, nonce, hash)
)"""


class TransactionOutbox:
    """A file that the programs of one state folder share, all on one chain."""

    def __init__(self, file: Path) -> None:
        """Nothing is made or read before it is used."""
        self._file, self._me = file, (os.getpid(), _began(os.getpid()))

    @cached_property
    def _db(self) -> sqlite3.Connection:
        """In a folder for this user alone."""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(
            self._file, isolation_level=None, timeout=10, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute(_TABLE)
        self._file.chmod(0o600)
        return database

    def put(self, prepared: PreparedTransaction) -> None:
        """Before it is handed to a node; one in another's place is put beside it."""
        self._db.execute(
            "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?)",
            (
                prepared.sender.lower(),
                prepared.nonce,
                prepared.tx_hash,
                msgspec.json.encode(prepared),
                *self._me,
            ),
        )

    def forget(self, sender: str, nonce: int) -> None:
        """All with this nonce: one of them was mined, or none can be any more."""
        self._db.execute(
            "DELETE FROM outbox WHERE sender = ? AND nonce = ?", (sender.lower(), nonce)
        )

    def left(self, sender: str) -> list[PreparedTransaction]:
        """What programs that ended have left of an account's, in the order of its nonces."""
        if not self._file.exists():
            return []
        rows = self._db.execute(
            "SELECT body, process, began FROM outbox WHERE sender = ? ORDER BY nonce, rowid",
            (sender.lower(),),
        )
        return [
            msgspec.json.decode(body, type=PreparedTransaction)
            for body, process, began in rows
            if _began(process) != began
        ]

    def close(self) -> None:
        if "_db" in self.__dict__:
            self._db.close()
            del self._db


def _began(process: int) -> str:
    """When a process began, as its system counts; empty where there is none of this number."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:  # a system without /proc: whether there is one
        os.kill(process, 0)
    except OSError:
        return ""
    return "running"
