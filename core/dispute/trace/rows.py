"""Which rows did a stage sign, how many, and how long is each?

A stage that serves its rows to no auditor is made to show some of them on chain, and one that
signed a malformed row is convicted by it (`docs/trust.md` §7). Twin:
contracts/src/trace/RowJudge.sol.
"""

from __future__ import annotations

from typing import NamedTuple

from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import TOKEN_BYTES
from core.dispute.trace.program import Program
from core.protocol.types import LayerRange, RequestLeaf

#: Parts of rows that one question may name: with their siblings they fit a transaction of 500,000
#: gas.
MAX_SPOTS = 6


class Spot(NamedTuple):
    """One part of 1 KiB of one row; a shorter row is its own only part."""

    boundary: Boundary
    row: int
    part: int = 0


class SignedRows(NamedTuple):
    """The rows of one request that a stage signed for, and what they are rows of."""

    program: Program
    leaf: RequestLeaf
    layer_from: int
    layer_to: int

    @property
    def is_last(self) -> bool:
        return self.program.ends_at(self.layer_to)

    @property
    def made(self) -> tuple[Boundary, ...]:
        """The boundaries whose rows are the stage's own work."""
        return (Boundary.OUT, Boundary.STATES) if self.is_last else (Boundary.OUT,)

    def tokens(self, boundary: Boundary) -> bool:
        """Whether the rows are token ids."""
        if boundary == Boundary.IN:
            return self.layer_from == 0
        return boundary == Boundary.OUT and self.is_last

    @property
    def spans(self) -> int:
        """How many spans these layers have, between whose boundaries rows are signed."""
        return len(LayerRange(self.layer_from, self.layer_to).spans(self.program.span_layers))

    def count(self, boundary: Boundary) -> int:
        if boundary == Boundary.INNER:
            return int(self.spans > 1)
        if boundary == Boundary.STATES and not self.is_last:
            return 0
        if boundary != Boundary.IN and self.is_last:
            return self.leaf.tokens_out
        return self.leaf.tokens_in + self.leaf.tokens_out - 1

    def row_bytes(self, boundary: Boundary) -> int:
        if self.tokens(boundary):
            return TOKEN_BYTES
        if boundary == Boundary.INNER:
            return 32 * (self.spans - 1)
        return self.program.hidden * self.program.row_format.width_bytes
