"""Whose rows are those of one span of a stage, and what of a stage's inside can be asked for?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import RowOpening
from core.dispute.trace.rows import SignedRows, Spot
from core.protocol import commit
from core.protocol.types import LayerRange, RequestLeaf
from tests.twins.game import toy
from tests.twins.game.game import Game, GameError, opened
from tests.twins.game.players import ACCUSER, OPERATOR, PARAMETERS, REQUESTER
from tests.twins.game.rows import SignedSpan

OTHER = "0x" + "77" * 32
STAGE = LayerRange(1, 8)
PROGRAM = replace(toy.Toy.make(toy.LLAMA).program, span_layers=3, layer_types=bytes(10))
ROOTS = bytes([5]) * 32, bytes([6]) * 32
LEAF = RequestLeaf(
    0, "0x" + "11" * 32, "0x" + "22" * 32, 4, 3, commit.to_hex(commit.inner_root(ROOTS))
)
SIGNED = SignedSpan(LEAF, STAGE, ROOTS)


def rows_of(number: int, **changes: object) -> SignedRows:
    span = STAGE.spans(3)[number]
    leaf = LEAF.span([commit.to_hex(root) for root in ROOTS], number)
    return SignedRows(PROGRAM, msgspec.structs.replace(leaf, **changes), span.start, span.end)


def test_a_stage_is_cut_from_where_it_begins() -> None:
    assert STAGE.spans(3) == [LayerRange(1, 4), LayerRange(4, 7), LayerRange(7, 8)]
    assert STAGE.spans(0) == STAGE.spans(7) == STAGE.spans(100) == [STAGE]
    for start in range(4):
        for end in range(start + 1, 12):
            for every in range(1, 13):
                spans = LayerRange(start, end).spans(every)
                assert [layer for span in spans for layer in range(span.start, span.end)] == list(
                    range(start, end)
                )
                assert all(len(span) == every for span in spans[:-1])


def test_each_span_is_what_was_signed_and_nothing_else_is() -> None:
    for number in range(3):
        rows = rows_of(number)
        assert SIGNED.holds(rows)
        for changes in (
            {"in_root": OTHER},
            {"out_root": OTHER},
            {"tokens_in": 5},
            {"tokens_out": 4},
            {"request_index": 1},
            {"inner_root": LEAF.inner_root},
        ):
            assert not SIGNED.holds(rows_of(number, **changes))
        for layers in ((1, 5), (0, 3), (4, 8), (1, 8)):
            assert not SIGNED.holds(SignedRows(PROGRAM, rows.leaf, *layers))
        assert not SIGNED._replace(inner=ROOTS[:1]).holds(rows)
        assert not SIGNED._replace(inner=ROOTS[::-1]).holds(rows)
        other = msgspec.structs.replace(LEAF, inner_root=OTHER)
        assert not SIGNED._replace(leaf=other).holds(rows)


def game() -> Game:
    root = commit.root_of_hashes(commit.request_hashes([LEAF]))
    return opened(PARAMETERS, 0, ACCUSER, frozenset((OPERATOR,)), REQUESTER, root, 1)


def test_a_span_is_asked_for_as_a_stage_is() -> None:
    proof = commit.request_proof([LEAF], 0)
    spots = [Spot(Boundary.OUT, 2)]
    assert game().ask(0, ACCUSER, rows_of(1), 0, proof, spots, SIGNED).asked
    with pytest.raises(GameError, match="SpanUnproven"):
        game().ask(0, ACCUSER, rows_of(1, out_root=OTHER), 0, proof, spots, SIGNED)
    with pytest.raises(GameError, match="RequestUnproven"):
        game().ask(0, ACCUSER, rows_of(1), 0, proof, spots)


def test_the_roots_inside_are_shown_or_the_stage_loses() -> None:
    whole = SignedRows(PROGRAM, LEAF, STAGE.start, STAGE.end)
    proof, spots = commit.request_proof([LEAF], 0), [Spot(Boundary.INNER, 0)]
    asked = game().ask(0, ACCUSER, whole, 0, proof, spots)
    assert asked.reveal(0, OPERATOR, [RowOpening(b"".join(ROOTS))]).asked is None
    for part in (ROOTS[0], b"".join(ROOTS) + bytes(32), b"".join(ROOTS[::-1]), b""):
        with pytest.raises(GameError, match="EvidenceWrong"):
            asked.reveal(0, OPERATOR, [RowOpening(part)])
    for rows, spot in (
        (whole, Spot(Boundary.INNER, 1)),
        (whole, Spot(Boundary.INNER, 0, 1)),
        (rows_of(0), Spot(Boundary.INNER, 0)),
    ):
        span = None if rows is whole else SIGNED
        with pytest.raises(GameError, match="EvidenceWrong"):
            game().ask(0, ACCUSER, rows, 0, proof, [spot], span)
    with pytest.raises(GameError, match="EvidenceWrong"):
        opening = RowOpening(b"".join(ROOTS))
        game().prove_malformed(0, ACCUSER, whole, 0, proof, spots[0], opening)
