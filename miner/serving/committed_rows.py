"""Which rows of a request does a stage keep at one side, and which root do they have?"""

from __future__ import annotations

from collections import deque

from core.protocol.commit import RowTree

#: Rows wait until a root is asked for, or for this many bytes of them: what takes less than a tenth
#: of a millisecond.
_MOST_WAITING_BYTES = 2**16


class RootedRows:
    """Rows one after the other, with the root of any number of the first ones.

    They are hashed many at a time: between two rows a step goes by, and nothing that a call needs
    is left in the caches. They stay where they came: one buffer that grows would be copied again
    and again.
    """

    __slots__ = ("_bytes", "_hashed_bytes", "_hashed_runs", "_runs", "_tree", "row_bytes")

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._tree = RowTree()
        self._runs: list[bytes] = []
        self._hashed_runs = 0  # the others wait
        self._bytes = self._hashed_bytes = 0

    def append(self, rows: bytes) -> None:
        """One more, or several. Raises ValueError for a part of a row."""
        size = len(rows)
        if size % self.row_bytes:
            raise ValueError(f"{size} bytes are not whole rows of {self.row_bytes}")
        self._runs.append(rows)
        self._bytes += size
        if self._bytes - self._hashed_bytes >= _MOST_WAITING_BYTES:
            self.hash()

    def data(self, start: int, end: int) -> bytes:
        """Rows [start, end), as far as there are."""
        first, last = start * self.row_bytes, min(end * self.row_bytes, self._bytes)
        found, begin = deque[bytes](), self._bytes
        for run in reversed(self._runs):
            if begin <= first:  # most often at once: what has just come is sent on, and not copied
                break
            begin -= len(run)
            if begin < last:
                found.appendleft(run[max(0, first - begin) : last - begin])
        return b"".join(found)

    def root(self, count: int) -> bytes:
        """Root of the first `count` rows, of all when there are fewer."""
        self.hash()
        return self._tree.root(count)

    def cut(self, count: int) -> None:
        """Forget what comes after the first `count` rows."""
        keep = count * self.row_bytes
        while self._bytes > keep:
            last = self._runs.pop()
            self._bytes -= len(last)
            if self._bytes < keep:
                self._runs.append(last[: keep - self._bytes])
                self._bytes = keep
        if self._hashed_bytes > keep:
            self._hashed_bytes, self._hashed_runs = keep, len(self._runs)
            self._tree = self._tree.prefix(count)

    def prefix(self, count: int) -> RootedRows:
        """Rows of their own, the first `count` of these."""
        self.hash()
        rows = RootedRows(self.row_bytes)
        rows._tree = self._tree.prefix(count)
        rows._runs, rows._hashed_runs = [self.data(0, count)], 1
        rows._bytes = rows._hashed_bytes = len(rows._runs[0])
        return rows

    def hash(self) -> None:
        """Nothing waits any more."""
        if self._hashed_bytes == self._bytes:
            return
        # Hashing them where they lie would wait for memory row by row; a copy is in the caches, and
        # gone for the next.
        waiting = b"".join(self._runs[self._hashed_runs :])
        self._tree.extend(waiting, self.row_bytes)
        self._hashed_bytes, self._hashed_runs = self._bytes, len(self._runs)

    def __len__(self) -> int:
        return self._bytes // self.row_bytes
