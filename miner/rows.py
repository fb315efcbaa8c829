"""Which rows of a request does a stage keep at one side, and which root do they have?"""

from __future__ import annotations

from collections import deque
from itertools import chain

from core.protocol.commit import RowTree

#: Rows wait until a root is asked for, or for so many bytes of them; allocators have so much at hand without asking for pages.
_MOST_WAITING_BYTES = 2**16


class Rows:
    """Rows one after the other, with the root of any number of the first ones.

    What comes waits as it came, to be put together and hashed in one go: between two rows a step goes by, and nothing that a
    call needs is left in the caches.
    """

    __slots__ = ("_bytes", "_hashed", "_hashed_bytes", "_tree", "_waiting", "row_bytes")

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._tree = RowTree()
        #: Runs of rows: one buffer that grows would be copied again and again.
        self._hashed: list[bytes] = []
        self._waiting: list[bytes] = []
        self._bytes = self._hashed_bytes = 0

    def append(self, rows: bytes) -> None:
        """One more, or several. Raises ValueError for a part of a row."""
        size = len(rows)
        if size % self.row_bytes:
            raise ValueError(f"{size} bytes are not whole rows of {self.row_bytes}")
        self._waiting.append(rows)
        self._bytes += size
        if self._bytes - self._hashed_bytes >= _MOST_WAITING_BYTES:
            self.hash()

    def data(self, start: int, end: int) -> bytes:
        """Rows [start, end), as far as there are."""
        first, last = start * self.row_bytes, min(end * self.row_bytes, self._bytes)
        found, begin = deque[bytes](), self._bytes
        for run in chain(reversed(self._waiting), reversed(self._hashed)):
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
        for kept in (self._waiting, self._hashed):
            while kept and self._bytes > keep:
                last = kept.pop()
                self._bytes -= len(last)
                if self._bytes < keep:
                    kept.append(last[: keep - self._bytes])
                    self._bytes = keep
        if self._hashed_bytes > keep:
            self._hashed_bytes = keep
            self._tree = self._tree.prefix(count)

    def prefix(self, count: int) -> Rows:
        """Rows of their own, the first `count` of these."""
        self.hash()
        rows = Rows(self.row_bytes)
        rows._hashed = [self.data(0, count)]
        rows._bytes = rows._hashed_bytes = len(rows._hashed[0])
        rows._tree = self._tree.prefix(count)
        return rows

    def __len__(self) -> int:
        return self._bytes // self.row_bytes

    def hash(self) -> None:
        """Nothing waits any more."""
        if not self._waiting:
            return
        rows = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting = []
        self._hashed.append(rows)
        self._hashed_bytes = self._bytes
        self._tree.extend(rows, self.row_bytes)
