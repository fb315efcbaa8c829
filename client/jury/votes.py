"""Which votes and salts must a juror not forget? On disk before anything about them is sent."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from core.runtime.folders import make_private_file


class VoteKind(IntEnum):
    """As `IJuryArbitrator.Vote`."""

    NONE = 0
    FAULT = 1
    NO_FAULT = 2
    UNMEASURED = 3  # for neither side


@dataclass(frozen=True)
class StoredVote:
    vote: VoteKind
    evidence: str
    salt: str
    committed: bool
    revealed: bool


class VoteBook:
    """Our votes and salts, on disk before they are committed to."""

    def __init__(self, path: Path) -> None:
        make_private_file(path)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS ballot (dispute TEXT NOT NULL, level INTEGER NOT NULL,"
            " vote INTEGER NOT NULL, evidence TEXT NOT NULL, salt TEXT NOT NULL,"
            " committed INTEGER NOT NULL DEFAULT 0, revealed INTEGER NOT NULL DEFAULT 0,"
            " PRIMARY KEY (dispute, level))"
        )

    def close(self) -> None:
        self._db.close()

    def get(self, dispute: str, level: int) -> StoredVote | None:
        """Our vote on a dispute's panel after so many appeals; None before there is one."""
        row = self._db.execute(
            "SELECT vote, evidence, salt, committed, revealed FROM ballot"
            " WHERE dispute = ? AND level = ?",
            (dispute, level),
        ).fetchone()
        if row is None:
            return None
        return StoredVote(VoteKind(row[0]), row[1], row[2], bool(row[3]), bool(row[4]))

    def remember(
        self, dispute: str, level: int, vote: VoteKind, evidence: str, salt: str
    ) -> StoredVote:
        """Keep the first vote of a panel; a second one, which might contradict it, is ignored."""
        self._db.execute(
            "INSERT OR IGNORE INTO ballot (dispute, level, vote, evidence, salt)"
            " VALUES (?, ?, ?, ?, ?)",
            (dispute, level, int(vote), evidence, salt),
        )
        stored = self.get(dispute, level)
        assert stored is not None
        return stored

    def mark(self, dispute: str, level: int, step: str) -> None:
        """The chain has taken this step, `committed` or `revealed`."""
        assert step in ("committed", "revealed")
        self._db.execute(
            f"UPDATE ballot SET {step} = 1 WHERE dispute = ? AND level = ?", (dispute, level)
        )

    def unmark(self, dispute: str) -> None:
        """The chain may have forgotten our transactions: send them again. The vote itself stays."""
        self._db.execute(
            "UPDATE ballot SET committed = 0, revealed = 0 WHERE dispute = ?", (dispute,)
        )
