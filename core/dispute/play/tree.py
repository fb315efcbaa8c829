"""How is a trace of millions of chunks committed and opened without holding a hash of each?

The nodes from level 5 on are kept; what is below them is hashed again from the 32 chunks concerned
when it is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from core.dispute.kernels.cores import on_all_cores, slices
from core.dispute.kernels.native import hashing
from core.dispute.play.values import Floats, TraceValues
from core.dispute.trace import chunks
from core.dispute.trace.layout import CHUNK_VALUES, VALUE_BYTES
from core.protocol import commit
from core.protocol.whole_file import write_whole

_HASH_BYTES = 32
#: Chunks whose hashes are held at a time, and how many of them one core makes at a time.
_BLOCK_CHUNKS, _CORE_CHUNKS = 1 << 20, 1 << 14


class TraceTree(chunks.HashTree):
    """The SHA-256 tree over a trace's chunks (`core.dispute.trace.chunks`)."""

    def __init__(self, values: TraceValues, file: Path | None = None) -> None:
        """Hashes every chunk, unless `file` keeps the nodes of an earlier time."""
        super().__init__(values.layout.chunks)
        self._values = values
        self._kept = min(chunks.STEP_LEVELS, self.height)
        self._levels = [self._read(file) or self._hash(file)]
        while len(self._levels[-1]) > _HASH_BYTES:
            self._levels.append(_above(bytearray(self._levels[-1]), 1))
        self._below = lru_cache(maxsize=64)(self._hash_group)

    @property
    def root(self) -> bytes:
        return self._levels[-1]

    def node(self, level: int, index: int) -> bytes:
        """Node `index` of `level`, the leaves being level 0."""
        if level >= self._kept:
            at = index * _HASH_BYTES
            return self._levels[level - self._kept][at : at + _HASH_BYTES]
        group = index >> (self._kept - level)
        return self._below(group)[level][index - (group << (self._kept - level))]

    def _hash_group(self, group: int) -> list[list[bytes]]:
        first = group << self._kept
        last = min((group + 1) << self._kept, self.count)
        levels = [[commit.leaf_hash(chunk) for chunk in self._values.chunks(first, last)]]
        while len(levels) < self._kept:
            levels.append(chunks.parents(levels[-1]))
        return levels

    def _read(self, file: Path | None) -> bytes:
        if file is None or not file.exists():
            return b""
        data = file.read_bytes()
        wide = chunks.width(self.count, self._kept)
        return data if len(data) == wide * _HASH_BYTES else b""

    def _hash(self, file: Path | None) -> bytes:
        """The nodes of the lowest level that is kept."""
        group = _HASH_BYTES << self._kept
        found, waiting = bytearray(), bytearray()
        for section, op in self._values.keys:
            for lines in self._values.lines(section, op, _BLOCK_CHUNKS):
                waiting += _leaves(lines)
                whole = len(waiting) - len(waiting) % group
                found += _above(waiting[:whole], self._kept)
                del waiting[:whole]
        found += _above(waiting, self._kept)
        if file is not None:
            write_whole(file, found)
        return bytes(found)


def _leaves(lines: Floats) -> bytearray:
    """Hashes of the chunks of segments [segments, length]."""
    library, (count, length) = hashing(), lines.shape
    if library is None:
        return _leaves_in_python(lines)
    each = -(-length // CHUNK_VALUES)
    found = bytearray(count * each * _HASH_BYTES)
    into = np.frombuffer(found, np.uint8).reshape(count, -1)

    def some(at: slice) -> None:
        here = lines[at]
        library.leaves(here.ctypes.data, len(here), VALUE_BYTES * length, into[at].ctypes.data)

    on_all_cores(some, slices(count, max(1, _CORE_CHUNKS // each)))
    return found


def _leaves_in_python(lines: Floats) -> bytearray:
    wide, found = CHUNK_VALUES * VALUE_BYTES, bytearray()
    for line in lines:
        row = line.tobytes()
        for at in range(0, len(row), wide):
            found += commit.leaf_hash(row[at : at + wide])
    return found


def _above(nodes: bytearray, levels: int) -> bytes:
    """The nodes `levels` above these; an unpaired last one moves up as it is."""
    library = hashing()
    if library is None:
        for _ in range(levels):
            nodes = _parents(nodes)
        return bytes(nodes)
    lines = np.frombuffer(nodes, np.uint8).reshape(-1, _HASH_BYTES)
    parts = slices(len(lines), _CORE_CHUNKS)

    def some(at: slice) -> None:
        library.parents_above(lines[at].ctypes.data, at.stop - at.start, levels)

    on_all_cores(some, parts)
    kept = [lines[at.start : at.start + chunks.width(at.stop - at.start, levels)] for at in parts]
    return b"".join(part.tobytes() for part in kept)


def _parents(nodes: bytearray) -> bytearray:
    pair = 2 * _HASH_BYTES
    whole = len(nodes) - len(nodes) % pair
    found = [sha256(b"\x01" + nodes[at : at + pair]).digest() for at in range(0, whole, pair)]
    return bytearray(b"".join(found)) + nodes[whole:]
