"""What does a trace read, and how is it opened: the model's tensors, and signed rows?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from core.dispute.trace import chunks
from core.dispute.trace.derive import Boundary, Weights
from core.dispute.trace.evidence import RowOpening, WeightOpening
from core.protocol import commit


class Sources(Protocol):
    """Reads and opens what is committed outside the trace."""

    def weights(self, want: Weights) -> bytes: ...
    def row(self, boundary: Boundary, row: int, start: int, count: int) -> bytes: ...
    def open_weights(self, want: Weights) -> WeightOpening: ...
    def open_row(self, boundary: Boundary, row: int, start: int) -> RowOpening: ...


@dataclass(frozen=True, eq=False)
class CommittedRows:
    """Numbered rows and their tree: a tensor's, or a boundary's.

    `beside` is the root that a last stage signed together with this one: of its state rows, or of
    its tokens.
    """

    rows: Sequence[bytes]
    beside: bytes = b""

    @cached_property
    def _hashes(self) -> list[bytes]:
        return [commit.row_hash(i, row) for i, row in enumerate(self.rows)]

    @cached_property
    def root(self) -> bytes:
        return commit.root_of_hashes(self._hashes)

    def open(self, row: int, start: int) -> RowOpening:
        """The part of a row that holds byte `start`."""
        found = open_part(self._hashes, row, self.rows[row], start)
        if not self.beside:
            return found
        return replace(found, row_siblings=(*found.row_siblings, self.beside))


def cut_rows(data: bytes, row_bytes: int) -> list[bytes]:
    """Consecutive rows one by one."""
    return [data[at : at + row_bytes] for at in range(0, len(data), row_bytes)]


def answer_rows(
    tokens: Sequence[bytes], states: Sequence[bytes]
) -> tuple[CommittedRows, CommittedRows]:
    """What a last stage signed under one root: its token ids, and its state rows."""
    ids, rows = CommittedRows(tokens), CommittedRows(states)
    return replace(ids, beside=rows.root), replace(rows, beside=ids.root)


def open_part(hashes: Sequence[bytes], row: int, data: bytes, start: int) -> RowOpening:
    """The part with byte `start` of row `row`, which is `data`, among rows of these hashes."""
    part = start // commit.PART_BYTES
    siblings: tuple[bytes, ...] = ()
    if len(data) > commit.PART_BYTES:
        siblings = tuple(chunks.ChunkTree(commit.part_hashes(data)).proof(part, part + 1))
    return RowOpening(
        data[part * commit.PART_BYTES : (part + 1) * commit.PART_BYTES],
        siblings,
        tuple(commit.merkle_proof(hashes, row)),
    )
