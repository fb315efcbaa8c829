"""Which rows may be asked for, are these what was signed, and is one of them none at all?

Twin: contracts/src/trace/RowJudge.sol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.dispute.referee.formats import decode
from core.dispute.trace import chunks
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import EvidenceError, RowOpening
from core.dispute.trace.rows import MAX_SPOTS, SignedRows, Spot
from core.protocol import commit
from core.protocol.types import LayerRange, RequestLeaf


class SignedSpan(NamedTuple):
    """Of rows of one span, what the stage signed of all its layers."""

    leaf: RequestLeaf
    layers: LayerRange
    inner: tuple[bytes, ...]  # roots at the boundaries inside the stage

    def holds(self, rows: SignedRows) -> bool:
        """Whether these rows and layers are one of its spans."""
        spans = self.layers.spans(rows.program.span_layers)
        of = LayerRange(rows.layer_from, rows.layer_to)
        is_signed = commit.to_hex(commit.inner_root(self.inner)) == self.leaf.inner_root
        if of not in spans or len(self.inner) != len(spans) - 1 or not is_signed:
            return False
        roots = [commit.to_hex(root) for root in self.inner]
        return rows.leaf == self.leaf.span(roots, spans.index(of))


def exists(rows: SignedRows, spot: Spot) -> bool:
    return spot.row < rows.count(spot.boundary) and part_bytes(rows, spot) > 0


def part_bytes(rows: SignedRows, spot: Spot) -> int:
    """Length of the part, 0 if there is none. Roots inside a stage are one part, however long."""
    if spot.boundary == Boundary.INNER:
        return 0 if spot.part else rows.row_bytes(spot.boundary)
    left = rows.row_bytes(spot.boundary) - spot.part * commit.PART_BYTES
    return max(min(left, commit.PART_BYTES), 0)


def half(rows: SignedRows, boundary: Boundary) -> commit.Half:
    """Which half of the stage's `outRoot` the rows are under."""
    if boundary == Boundary.IN or not rows.is_last:
        return commit.Half.NONE
    return commit.Half.TOKENS if boundary == Boundary.OUT else commit.Half.STATES


def check_asked(rows: SignedRows, spots: Sequence[Spot]) -> None:
    """Raises EvidenceError unless one to six places are named that exist."""
    if not 1 <= len(spots) <= MAX_SPOTS or not all(exists(rows, spot) for spot in spots):
        raise EvidenceError("rows that there are not")


def is_inner_root(rows: SignedRows, part: bytes) -> bool:
    """Whether these are the roots inside the stage that it signed."""
    inner = [part[at : at + 32] for at in range(0, len(part), 32)]
    right = len(part) == rows.row_bytes(Boundary.INNER)
    return right and commit.to_hex(commit.inner_root(inner)) == rows.leaf.inner_root


def check_shown(rows: SignedRows, spots: Sequence[Spot], openings: Sequence[RowOpening]) -> None:
    """Raises EvidenceError unless these are what the stage signed at these places, whole."""
    if len(openings) != len(spots):
        raise EvidenceError(f"{len(openings)} openings of {len(spots)} places")
    for spot, opening in zip(spots, openings, strict=True):
        if spot.boundary == Boundary.INNER:
            if not is_inner_root(rows, opening.part):
                raise EvidenceError("other roots than were signed")
            continue
        _check_under(rows, spot, opening)
        if len(opening.part) != part_bytes(rows, spot):
            raise EvidenceError("a part of another length")


def is_malformed(rows: SignedRows, spot: Spot, opening: RowOpening) -> bool:
    """Whether what the stage signed there is no part of a row of numbers, or no token.

    Raises EvidenceError unless that is what it signed.
    """
    if spot.boundary not in rows.made or not exists(rows, spot):
        raise EvidenceError("a row that the stage did not make")
    _check_under(rows, spot, opening)
    if len(opening.part) != part_bytes(rows, spot):
        return True
    if rows.tokens(spot.boundary):
        return int.from_bytes(opening.part, "little") >= rows.program.vocab
    return decode(opening.part, rows.program.row_format) is None


def _check_under(rows: SignedRows, spot: Spot, opening: RowOpening) -> None:
    payload = opening.part
    parts = -(-rows.row_bytes(spot.boundary) // commit.PART_BYTES)
    if parts > 1:
        hashes, levels = [commit.leaf_hash(opening.part)], chunks.height(parts)
        top = chunks.climb(hashes, spot.part, parts, levels, opening.part_siblings)
        if top is None:
            raise EvidenceError("a part that is not in its row")
        payload = top
    elif opening.part_siblings:
        raise EvidenceError("siblings in a row of one part")
    leaf = commit.leaf_hash(spot.row.to_bytes(4, "big") + payload)
    root = rows.leaf.in_root if spot.boundary == Boundary.IN else rows.leaf.out_root
    count = rows.count(spot.boundary)
    under, siblings = half(rows, spot.boundary), opening.row_siblings
    if not commit.verify_proof(commit.unhex(root), count, spot.row, leaf, siblings, under):
        raise EvidenceError("a row that is not under its root")
