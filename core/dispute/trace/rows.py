"""What do signed rows say when they are opened by themselves: that they are still held, or that they are no numbers?

A stage that serves its rows to nobody is made to show some of them on chain (`docs/trust.md` §6); one that signed what is no
number, no token or no whole row is convicted by that row alone. Twin: contracts/src/trace/RowJudge.sol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.dispute.referee.formats import decode
from core.dispute.trace import chunks
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import EvidenceError, RowOpening
from core.dispute.trace.program import Program
from core.protocol import commit
from core.protocol.types import RequestLeaf

TOKEN_BYTES = 4
#: Parts of rows that one question may name: with their siblings they fit a transaction of 500,000 gas.
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

    def half(self, boundary: Boundary) -> commit.Half:
        """Which half of the stage's `outRoot` the rows are under."""
        if boundary == Boundary.IN or not self.is_last:
            return commit.Half.NONE
        return commit.Half.TOKENS if boundary == Boundary.OUT else commit.Half.STATES

    def count(self, boundary: Boundary) -> int:
        if boundary == Boundary.STATES and not self.is_last:
            return 0
        if boundary != Boundary.IN and self.is_last:
            return self.leaf.tokens_out
        return self.leaf.tokens_in + self.leaf.tokens_out - 1

    def row_bytes(self, boundary: Boundary) -> int:
        if self.tokens(boundary):
            return TOKEN_BYTES
        return self.program.hidden * self.program.row_format.width_bytes

    def part_bytes(self, spot: Spot) -> int:
        """Length of the part, 0 if there is none."""
        left = self.row_bytes(spot.boundary) - spot.part * commit.PART_BYTES
        return max(min(left, commit.PART_BYTES), 0)

    def exists(self, spot: Spot) -> bool:
        return spot.row < self.count(spot.boundary) and self.part_bytes(spot) > 0

    def check_asked(self, spots: Sequence[Spot]) -> None:
        """Raises EvidenceError unless one to six places are named that there are."""
        if not 1 <= len(spots) <= MAX_SPOTS or not all(map(self.exists, spots)):
            raise EvidenceError("rows that there are not")

    def check_shown(self, spots: Sequence[Spot], openings: Sequence[RowOpening]) -> None:
        """Raises EvidenceError unless the openings are what the stage signed for, at these places and whole."""
        if len(openings) != len(spots):
            raise EvidenceError(f"{len(openings)} openings of {len(spots)} places")
        for spot, opening in zip(spots, openings, strict=True):
            self._check_under(spot, opening)
            if len(opening.part) != self.part_bytes(spot):
                raise EvidenceError("a part of another length")

    def is_malformed(self, spot: Spot, opening: RowOpening) -> bool:
        """Whether the stage signed, at this place of what it sent, something that is no part of a row of numbers or no token.

        Raises EvidenceError unless that is what it signed.
        """
        if spot.boundary == Boundary.IN or not self.exists(spot):
            raise EvidenceError("a row that the stage did not make")
        self._check_under(spot, opening)
        if len(opening.part) != self.part_bytes(spot):
            return True
        if self.tokens(spot.boundary):
            return int.from_bytes(opening.part, "little") >= self.program.vocab
        return decode(opening.part, self.program.row_format) is None

    def _check_under(self, spot: Spot, opening: RowOpening) -> None:
        payload = opening.part
        parts = -(-self.row_bytes(spot.boundary) // commit.PART_BYTES)
        if parts > 1:
            hashes, levels = [commit.leaf_hash(opening.part)], chunks.height(parts)
            top = chunks.climb(hashes, spot.part, parts, levels, opening.part_siblings)
            if top is None:
                raise EvidenceError("a part that is not in its row")
            payload = top
        elif opening.part_siblings:
            raise EvidenceError("siblings in a row of one part")
        leaf = commit.leaf_hash(spot.row.to_bytes(4, "big") + payload)
        root = self.leaf.in_root if spot.boundary == Boundary.IN else self.leaf.out_root
        count = self.count(spot.boundary)
        half, siblings = self.half(spot.boundary), opening.row_siblings
        if not commit.verify_proof(commit.unhex(root), count, spot.row, leaf, siblings, half):
            raise EvidenceError("a row that is not under its root")
