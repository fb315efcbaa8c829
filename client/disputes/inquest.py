"""What does an accuser bring on chain where a stage's rows are withheld or malformed?"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.dispute.game.game_log import Opened, Seen
from core.dispute.play.loop import Move
from core.dispute.play.players import Accuser
from core.dispute.trace.calls import row_tuple, rows_tuple, signed_tuple
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import RowOpening
from core.dispute.trace.program import Program
from core.dispute.trace.rows import MAX_SPOTS, SignedRows, Spot
from core.dispute.trace.sources import CommittedRows, answer_rows, cut_rows
from core.protocol import commit
from core.protocol.errors import CheckFailed, HeadraceError
from core.protocol.types import LayerRange, RequestLeaf, SignedReceipt

MAX_ASKS = 3  # that a game takes


@dataclass(frozen=True)
class MalformedRow:
    """A part of a row that a stage signed as its own and that is no part of a row."""

    spot: Spot
    opening: RowOpening


@dataclass(frozen=True)
class Doubted:
    """The rows of one request that a stage signed for, and the receipt that it did it in.

    `leaf` is the request as its `layers` saw it: all of the stage's, or one of its spans. Of a span
    `inner` are the roots inside the stage.
    """

    accused: SignedReceipt
    program: Program
    leaf: RequestLeaf
    layers: LayerRange
    inner: tuple[bytes, ...] = ()

    @property
    def rows(self) -> SignedRows:
        return SignedRows(self.program, self.leaf, self.layers.start, self.layers.end)

    def malformed(self, held: Mapping[Boundary, bytes]) -> MalformedRow | None:
        """The first part of what the stage made that is no number or no token.

        None if there is none, or while some of its rows are missing.
        """
        rows, made = self.rows, self.rows.made
        if not all(boundary in held for boundary in made):
            return None
        each = {b: cut_rows(held[b], rows.row_bytes(b)) for b in made}
        for boundary, found in each.items():
            for number, row in enumerate(found):
                for part, start in enumerate(range(0, len(row), commit.PART_BYTES)):
                    spot = Spot(boundary, number, part)
                    if not _is_sound(rows, spot, row[start : start + commit.PART_BYTES]):
                        return MalformedRow(spot, _committed(each)[boundary].open(number, start))
        return None

    def spots(self, boundaries: Sequence[Boundary], rng: random.Random) -> list[Spot]:
        """As many random parts of these boundaries' rows as one question takes, no part twice."""
        rows = self.rows
        if Boundary.INNER in boundaries:
            return [Spot(Boundary.INNER, 0)]
        each = {b: -(-rows.row_bytes(b) // commit.PART_BYTES) for b in boundaries}
        total = sum(rows.count(b) * parts for b, parts in each.items())
        found = []
        for number in sorted(rng.sample(range(total), min(MAX_SPOTS, total))):
            for boundary, parts in each.items():
                size = rows.count(boundary) * parts
                if number < size:
                    found.append(Spot(boundary, number // parts, number % parts))
                    break
                number -= size
        return found


def proven_leaf(
    accused: SignedReceipt, leaf: RequestLeaf, inner: Sequence[bytes] = ()
) -> tuple[Any, ...]:
    """A request under its receipt's root, as the game takes it (`SignedRequest`).

    Of a span of the stage `inner` are the roots inside it. Raises CheckFailed where there is none.
    """
    indices = [one.request_index for one in accused.leaves]
    if leaf.request_index not in indices or not (inner or leaf in accused.leaves):
        why = f"request {leaf.request_index}"
        raise CheckFailed("the accused receipt is not over this request", why)
    position = indices.index(leaf.request_index)
    proof = commit.request_proof(accused.leaves, position)
    return signed_tuple(accused.leaves[position], position, proof, inner)


def _committed(made: Mapping[Boundary, Sequence[bytes]]) -> dict[Boundary, CommittedRows]:
    """A stage's work as it signed it."""
    if Boundary.STATES not in made:
        return {Boundary.OUT: CommittedRows(made[Boundary.OUT])}
    pair = answer_rows(made[Boundary.OUT], made[Boundary.STATES])
    return dict(zip((Boundary.OUT, Boundary.STATES), pair, strict=True))


def _is_sound(rows: SignedRows, spot: Spot, part: bytes) -> bool:
    from core.dispute.referee.formats import decode

    if rows.tokens(spot.boundary):
        return int.from_bytes(part, "little") < rows.program.vocab
    return decode(part, rows.program.row_format) is not None


@dataclass
class Inquest:
    """What comes before an accusation: a malformed row, or questions for rows that are withheld."""

    doubted: Doubted
    rng: random.Random
    missing: Sequence[Boundary] = ()
    malformed: MalformedRow | None = None
    #: Fetches again and returns an `Accusation`; it raises HeadraceError while it cannot.
    accuse: Callable[[], Awaitable[Any]] | None = None
    _accusation: Any = field(default=None, init=False)

    def then(self, accuse: Callable[[], Awaitable[Any]]) -> Inquest:
        """The same, with what makes an accusation of rows that have come after a question."""
        return replace(self, accuse=accuse)

    def describe(self) -> str:
        """What is done first."""
        request = self.doubted.leaf.request_index
        if self.malformed is not None:
            return f"prove that row {self.malformed.spot.row} of request {request} is none"
        sides = " and ".join(b.name.lower() for b in self.missing)
        return f"ask for random rows of request {request} ({sides}), up to {MAX_ASKS} times"

    @property
    def player(self) -> Accuser | None:
        """The one that opens the trace, once there is one."""
        return self._accusation.player if self._accusation is not None else None

    async def opening(self, opened: Opened, seen: Seen) -> Move | None:
        """The move of a game without an accusation; None when no move is left: the bond is lost."""
        doubted, accused = self.doubted, self.doubted.accused
        signed = proven_leaf(accused, doubted.leaf, doubted.inner)
        args = accused.receipt, rows_tuple(opened.model, doubted.rows), signed
        if self.malformed is not None:
            spot, found = self.malformed.spot, self.malformed.opening
            return Move("proveMalformed", (*args, _spot(spot), row_tuple(found)))
        asked = seen.moves.count("Asked")
        if asked and self.accuse is not None:
            try:
                self._accusation = await self.accuse()
            except HeadraceError:
                self._accusation = None  # still withheld, or nothing in them to accuse of
            if self._accusation is not None:
                first: Move | None = await self._accusation.opening(opened, seen)
                return first
        if asked >= MAX_ASKS or not self.missing:
            return None
        spots = [_spot(spot) for spot in doubted.spots(self.missing, self.rng)]
        return Move("ask", (*args, spots))


def _spot(spot: Spot) -> tuple[int, int, int]:
    return (int(spot.boundary), spot.row, spot.part)
