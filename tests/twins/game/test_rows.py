"""A stage shows withheld rows on chain or loses, and malformed ones convict it."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import replace

import msgspec
import pytest

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import RowOpening
from core.dispute.trace.rows import MAX_SPOTS, SignedRows, Spot
from core.dispute.trace.sources import CommittedRows, answer_rows
from core.protocol import commit
from tests.twins.game import toy as toys
from tests.twins.game.game import MAX_ASKS, Game, GameError, opened
from tests.twins.game.players import (
    ACCUSER,
    OPERATOR,
    PARAMETERS,
    REQUESTER,
    Accusation,
    ended,
    request_leaf,
)

#: 257 numbers: a row of two parts.
BROAD = replace(toys.LLAMA, hidden=264, layers=2, sliding=(0, 0))


def proof_of(rows: SignedRows) -> list[bytes]:
    """Of the request's leaf, alone under its receipt."""
    return commit.request_proof([rows.leaf], 0)


class Withheld:
    """A request through one stage, of which its auditor holds nothing."""

    def __init__(self, traits: toys.Traits = BROAD, layer_from: int = 0, seed: int = 1) -> None:
        self.toy = toys.Toy.make(traits)
        rng = random.Random(seed)
        self.inputs = self.toy.inputs(layer_from, 4, seed)
        width, last = traits.hidden, layer_from + 1 == traits.layers
        rows = [toys.f32([rng.uniform(-1, 1) for _ in range(width)]) for _ in range(4)]
        ids = [rng.randrange(traits.vocab).to_bytes(4, "little") for _ in range(3)]
        self.layer_from, self.is_last = layer_from, last
        self.out_rows, self.state_rows = (ids, rows[1:]) if last else (rows, [])
        self.sending(self.out_rows)

    def sending(self, rows: list[bytes], states: list[bytes] | None = None) -> Withheld:
        self.outputs, self.states = CommittedRows(rows), CommittedRows([])
        if self.is_last:
            self.outputs, self.states = answer_rows(rows, states or self.state_rows)
        return self

    @property
    def rows(self) -> SignedRows:
        half = commit.Half.TOKENS if self.is_last else commit.Half.NONE
        leaf = request_leaf(self.inputs, self.outputs, half=half)
        return SignedRows(self.toy.program, leaf, self.layer_from, self.layer_from + 1)

    def game(self) -> Game:
        root = commit.root_of_hashes(commit.request_hashes([self.rows.leaf]))
        return opened(PARAMETERS, 0, ACCUSER, frozenset((OPERATOR,)), REQUESTER, root, 1)

    def ask(self, game: Game, *spots: Spot, now: int = 0) -> Game:
        return game.ask(now, ACCUSER, self.rows, 0, proof_of(self.rows), spots)

    def show(self, spot: Spot) -> RowOpening:
        sides = {
            Boundary.IN: self.inputs,
            Boundary.OUT: self.outputs,
            Boundary.STATES: self.states,
        }
        return sides[spot.boundary].open(spot.row, spot.part * commit.PART_BYTES)

    def malformed(self, spot: Spot, opening: RowOpening | None = None) -> Game:
        shown = opening or self.show(spot)
        return self.game().prove_malformed(
            0, ACCUSER, self.rows, 0, proof_of(self.rows), spot, shown
        )


SPOTS = [Spot(Boundary.IN, 0), Spot(Boundary.OUT, 3, 1), Spot(Boundary.OUT, 0, 0)]


def test_a_stage_that_still_holds_its_rows_shows_them_and_the_accuser_goes_on() -> None:
    w = Withheld()
    game = w.ask(w.game(), *SPOTS)
    assert game.phase == Phase.ASKED
    game = game.reveal(0, OPERATOR, [w.show(spot) for spot in SPOTS])
    assert (game.phase, game.ends_at) == (Phase.OPENED, PARAMETERS.turn_s)
    assert game.timeout(PARAMETERS.turn_s + 1).execute(10**6)[1] == {"accused": PARAMETERS.bond}


@pytest.mark.parametrize("late_s", [0, 1])
def test_a_row_that_is_shown_late_is_withheld(late_s: int) -> None:
    w = Withheld()
    game = w.ask(w.game(), *SPOTS)
    shown = [w.show(spot) for spot in SPOTS]
    if late_s == 0:
        assert game.reveal(PARAMETERS.turn_s, OPERATOR, shown).phase == Phase.OPENED
        return
    with pytest.raises(GameError, match="ClockOver"):
        game.reveal(PARAMETERS.turn_s + late_s, OPERATOR, shown)
    assert ended(game.timeout(PARAMETERS.turn_s + late_s)) == Verdict.FAULT


def test_neither_some_rows_nor_others_nor_bytes_that_do_not_hash_will_do() -> None:
    w = Withheld()
    right = [w.show(spot) for spot in SPOTS]
    wrong_part = replace(right[1], part=bytes(len(right[1].part)))
    for openings in (
        right[:-1],
        [],
        [*right, right[0]],
        [right[0], right[2], right[1]],
        [right[0], wrong_part, right[2]],
        [right[0], replace(right[1], part_siblings=()), right[2]],
        [right[0], replace(right[1], row_siblings=right[1].row_siblings[:-1]), right[2]],
        [replace(right[0], part=right[0].part[:-1]), *right[1:]],
    ):
        with pytest.raises(GameError, match="EvidenceWrong"):
            w.ask(w.game(), *SPOTS).reveal(0, OPERATOR, openings)


def test_who_lost_a_row_is_found_by_chance_and_who_lost_all_at_once() -> None:
    """A stage with a share s of its rows escapes a random question of n places with s^n."""
    rng = random.Random(3)
    w = Withheld()
    lost = {Spot(Boundary.OUT, 2, part) for part in (0, 1)}
    caught = 0
    every = [Spot(Boundary.OUT, row, part) for row in range(4) for part in (0, 1)]
    for _ in range(400):
        spots = rng.sample(every, 3)
        game = w.ask(w.game(), *spots)
        if lost & set(spots):
            caught += ended(game.timeout(PARAMETERS.turn_s + 1)) == Verdict.FAULT
        else:
            assert game.reveal(0, OPERATOR, [w.show(s) for s in spots]).phase == Phase.OPENED
    assert 220 < caught < 300  # 1 − C(6,3)/C(8,3) = 64 %


def test_questions_are_bounded_and_about_rows_that_there_are() -> None:
    w = Withheld()
    game = w.game()
    for spots in (
        [],
        [SPOTS[0]] * (MAX_SPOTS + 1),
        [Spot(Boundary.OUT, 4)],
        [Spot(Boundary.OUT, 0, 2)],
        [Spot(Boundary.IN, 0, 1)],
        [Spot(Boundary.STATES, 0)],
    ):
        with pytest.raises(GameError, match="EvidenceWrong"):
            w.ask(game, *spots)
    for number in range(MAX_ASKS):
        assert game.asks == number
        game = w.ask(game, SPOTS[0]).reveal(0, OPERATOR, [w.show(SPOTS[0])])
    with pytest.raises(GameError, match="AskedEnough"):
        w.ask(game, SPOTS[0])


def test_an_accusation_after_a_question_goes_on_as_ever() -> None:
    stage = toys.Toy.make(toys.LLAMA).stage(1, 2, 2, 0)
    outputs = stage.lying_outputs(1.002)
    accusation = Accusation(stage, outputs, stage.evaluate(outputs))
    case = accusation.case
    rows = SignedRows(case.program, case.claim.leaf, 1, 2)
    spot = Spot(Boundary.OUT, 1)
    game = accusation.open().ask(0, ACCUSER, rows, 0, proof_of(rows), [spot])
    game = game.reveal(0, OPERATOR, [outputs.open(1, 0)])
    assert accusation.accuse(game, 0).phase == Phase.PICKING


def test_only_the_accused_shows_and_only_the_accuser_asks() -> None:
    w = Withheld()
    with pytest.raises(GameError, match="NotTurn"):
        w.game().ask(0, OPERATOR, w.rows, 0, proof_of(w.rows), SPOTS)
    with pytest.raises(GameError, match="NotTurn"):
        w.ask(w.game(), *SPOTS).reveal(0, ACCUSER, [])
    with pytest.raises(GameError, match="RequestUnproven"):
        w.game().ask(0, ACCUSER, w.rows, 1, [], SPOTS)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_row_of_no_numbers_convicts_without_a_game(number: float) -> None:
    w = Withheld()
    rows = list(w.out_rows)
    rows[2] = rows[2][:1028] + struct.pack("<f", number) + rows[2][1032:]
    w.sending(rows)
    assert ended(w.malformed(Spot(Boundary.OUT, 2, 1))) == Verdict.FAULT
    for spot in (Spot(Boundary.OUT, 2, 0), Spot(Boundary.OUT, 1, 1)):
        with pytest.raises(GameError, match="RowSound"):
            w.malformed(spot)


@pytest.mark.parametrize("cut", [1, 4, -4])
def test_a_row_of_another_length_convicts_without_a_game(cut: int) -> None:
    w = Withheld(toys.LLAMA, 1)
    rows = list(w.out_rows)
    rows[1] = rows[1][:-cut] if cut > 0 else rows[1] + bytes(-cut)
    w.sending(rows)
    assert ended(w.malformed(Spot(Boundary.OUT, 1))) == Verdict.FAULT


def test_a_token_that_the_model_has_not_convicts_the_last_stage() -> None:
    w = Withheld(toys.LLAMA, 2)
    with pytest.raises(GameError, match="RowSound"):
        w.malformed(Spot(Boundary.OUT, 1))
    w.sending([w.out_rows[0], (19).to_bytes(4, "little"), w.out_rows[2]])
    assert ended(w.malformed(Spot(Boundary.OUT, 1))) == Verdict.FAULT


LAST_SPOTS = [Spot(Boundary.STATES, 2, 1), Spot(Boundary.OUT, 1), Spot(Boundary.STATES, 0)]


def test_a_last_stage_shows_its_tokens_and_its_state_rows_each_as_what_it_is() -> None:
    w = Withheld(BROAD, 1)
    game, shown = w.ask(w.game(), *LAST_SPOTS), [w.show(spot) for spot in LAST_SPOTS]
    assert game.reveal(0, OPERATOR, shown).phase == Phase.OPENED
    swapped = w.states.root, w.outputs.root
    for number, beside in zip((0, 1), swapped, strict=True):
        siblings = shown[number].row_siblings
        for other in ((*siblings[:-1], beside), siblings[:-1], (*siblings, beside), ()):
            openings = list(shown)
            openings[number] = replace(shown[number], row_siblings=other)
            with pytest.raises(GameError, match="EvidenceWrong"):
                game.reveal(0, OPERATOR, openings)
    for spots in ([Spot(Boundary.STATES, 3)], [Spot(Boundary.OUT, 0, 1)]):
        with pytest.raises(GameError, match="EvidenceWrong"):
            w.ask(w.game(), *spots)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_state_row_of_no_numbers_convicts_the_last_stage(number: float) -> None:
    w = Withheld(BROAD, 1)
    rows = list(w.state_rows)
    rows[2] = rows[2][:1028] + struct.pack("<f", number) + rows[2][1032:]
    w.sending(w.out_rows, rows)
    assert ended(w.malformed(Spot(Boundary.STATES, 2, 1))) == Verdict.FAULT
    for spot in (Spot(Boundary.STATES, 2, 0), Spot(Boundary.STATES, 1, 1), Spot(Boundary.OUT, 2)):
        with pytest.raises(GameError, match="RowSound"):
            w.malformed(spot)


def test_a_state_row_of_another_length_convicts_the_last_stage() -> None:
    w = Withheld(toys.LLAMA, 2)
    w.sending(w.out_rows, [w.state_rows[0], w.state_rows[1][:-4], w.state_rows[2]])
    assert ended(w.malformed(Spot(Boundary.STATES, 1))) == Verdict.FAULT


def test_what_a_last_stage_signed_alone_is_under_no_answer() -> None:
    """A root of tokens alone opens nothing: its signer cannot show what it is asked for."""
    w = Withheld(toys.LLAMA, 2)
    alone = replace_leaf(w.rows, commit.to_hex(w.outputs.root))
    hashes = commit.request_hashes([alone.leaf])
    game = replace(w.game(), requests_root=commit.root_of_hashes(hashes))
    game = game.ask(0, ACCUSER, alone, 0, proof_of(alone), [Spot(Boundary.OUT, 1)])
    siblings = w.show(Spot(Boundary.OUT, 1)).row_siblings
    for shown in (siblings, siblings[:-1]):
        opening = replace(w.show(Spot(Boundary.OUT, 1)), row_siblings=shown)
        with pytest.raises(GameError, match="EvidenceWrong"):
            game.reveal(0, OPERATOR, [opening])
    assert ended(game.timeout(PARAMETERS.turn_s + 1)) == Verdict.FAULT


def replace_leaf(rows: SignedRows, out_root: str) -> SignedRows:
    return rows._replace(leaf=msgspec.structs.replace(rows.leaf, out_root=out_root))


def test_nobody_is_convicted_for_rows_that_it_was_sent_or_did_not_sign() -> None:
    w = Withheld(toys.LLAMA, 1)
    bad = toys.f32([math.nan] * 8)
    w.inputs = CommittedRows([bad] * 4)
    with pytest.raises(GameError, match="EvidenceWrong"):
        w.malformed(Spot(Boundary.IN, 1))
    with pytest.raises(GameError, match="EvidenceWrong"):
        w.malformed(Spot(Boundary.OUT, 1), replace(w.show(Spot(Boundary.OUT, 1)), part=bad))
