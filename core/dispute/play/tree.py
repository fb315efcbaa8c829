"""How is a trace of millions of chunks committed and opened without holding a hash of each?

The nodes from level 5 on are kept; what is below them is hashed again from the 32 chunks concerned
when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from core.dispute.play.values import TraceValues
from core.dispute.trace import chunks
from core.protocol import commit

_HASH_BYTES = 32


class TraceTree(chunks.HashTree):
    """The SHA-256 tree over a trace's chunks (`core.dispute.trace.chunks`)."""

    def __init__(self, values: TraceValues, file: Path | None = None) -> None:
        """Hashes every chunk, unless `file` keeps the nodes of an earlier time."""
        super().__init__(values.layout.chunks)
        self._values = values
        self._kept = min(chunks.STEP_LEVELS, self.height)
        self._levels = [self._read(file) or self._hash(file)]
        while len(self._levels[-1]) > _HASH_BYTES:
            self._levels.append(_parents(self._levels[-1]))
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
        found, waiting = bytearray(), b""
        for section, op in self._values.keys:
            for buffer, each, tail in self._values.tagged(section, op):
                waiting += _leaves(buffer.data.cast("B"), buffer.shape[1], each, tail)
                whole = len(waiting) - len(waiting) % group
                found += _up(waiting[:whole], self._kept)
                waiting = waiting[whole:]
        found += _up(waiting, self._kept)
        if file is not None:
            draft = file.with_suffix(".draft")
            draft.write_bytes(found)
            draft.replace(file)
        return bytes(found)


def _leaves(data: memoryview, width: int, each: int, tail: int) -> bytes:
    """Hashes of tagged chunks; every `each`-th of them has `tail` bytes only."""
    ends = [width] * (each - 1) + [tail]
    rows = range(0, len(data), width)
    if tail == width:
        return b"".join([sha256(data[at : at + width]).digest() for at in rows])
    lines = range(0, len(data), width * each)
    return b"".join(
        [
            sha256(data[line + i * width : line + i * width + end]).digest()
            for line in lines
            for i, end in enumerate(ends)
        ]
    )


def _up(nodes: bytes, levels: int) -> bytes:
    for _ in range(levels):
        nodes = _parents(nodes)
    return nodes


def _parents(nodes: bytes) -> bytes:
    pair = 2 * _HASH_BYTES
    whole = len(nodes) - len(nodes) % pair
    found: Sequence[bytes] = [
        sha256(b"\x01" + nodes[at : at + pair]).digest() for at in range(0, whole, pair)
    ]
    return b"".join(found) + nodes[whole:]
