"""An accused whose rows make rounding grow pleads and is free; a liar is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.trace.derive import Choice
from core.dispute.trace.judge import ClaimError
from core.dispute.trace.layout import Place
from core.dispute.trace.program import Tolerance
from tests.twins.game import toy as toys
from tests.twins.game.game import Game, GameError
from tests.twins.game.players import ACCUSER, OPERATOR, Accusation, Blind, ended, play

SEED = 200
#: So small that the rounding of honest rows lies above it: 10^-12.
HELD_TO_NOTHING = (Tolerance(30, 1, 1),)


def accused_of(off: float, *, strict: bool = True) -> Accusation:
    """An accusation of rows that are `off` times the exact ones, in float32."""
    toy = toys.Toy.make(toys.FAMILIES["llama"])
    if strict:
        toy = replace(toy, program=replace(toy.program, tolerances=HELD_TO_NOTHING))
    stage = toy.stage(1, 2, 3, 1)
    outputs = stage.lying_outputs(off)
    return Accusation(stage, outputs, stage.evaluate(outputs))


def pleaded(accusation: Accusation, seed: int = SEED) -> tuple[Game, Accusation]:
    """The game after a plea and its restatement."""
    game = accusation.accuse(accusation.open(), 0).plead(1, OPERATOR, seed)
    again = accusation.pleaded(seed)
    return game.restate(2, ACCUSER, again.case, again.below_root), again


def test_noise_that_the_rows_have_is_no_fault() -> None:
    accusation = accused_of(1.0)
    unpleaded, _ = play(accusation, accusation.stage.layout.verdicts[0])
    assert ended(unpleaded) == Verdict.FAULT  # what crafted rows did to honest stages
    game, again = pleaded(accusation)
    first, second = again.stage.layout.verdicts
    assert ended(again.answer(game.point(3, OPERATOR, second), 4)) == Verdict.NO_FAULT
    assert ended(again.answer(game.point(3, OPERATOR, first), 4)) == Verdict.FAULT


def test_a_lie_is_a_fault_wherever_its_author_points_after_its_plea() -> None:
    game, again = pleaded(accused_of(1.01, strict=False))
    once = again.stage.layout.once
    places = (*again.stage.layout.verdicts, Place(once, 0), Place(once + 1, 4, 1), Place(0, 0))
    for place in places:
        at = again.answer(game.point(3, OPERATOR, place), 4)
        if at.phase == Phase.PICKING_PART:
            at = again.answer(at.pick_part(5, OPERATOR, 0), 6)
        assert ended(at) == Verdict.FAULT, place


def test_a_restated_trace_that_is_not_shaken_as_named_is_found() -> None:
    accusation = accused_of(1.01, strict=False)
    game = accusation.accuse(accusation.open(), 0).plead(1, OPERATOR, SEED)
    other = accusation.pleaded(SEED + 1)
    named = accusation.stage.pleaded(SEED)
    forged = replace(other, stage=named)
    game = game.restate(2, ACCUSER, forged.case, forged.below_root)
    blind = Blind.of(named, accusation.outputs)
    tree = blind.own.tree
    child = next(
        i
        for i, pair in enumerate(zip(tree.below(tree.height, 0), forged.below_root, strict=True))
        if pair[0] != pair[1]
    )
    assert game.pick(3, OPERATOR, child).phase == Phase.OPENING
    wrong = next(
        place
        for place in (Place(accusation.stage.layout.once, 0, 0, 0, i) for i in range(8))
        if blind.own[place] != other.trace[place]
    )
    assert ended(forged.answer(game.point(3, OPERATOR, wrong), 4)) == Verdict.NO_FAULT


def refused(name: str, move: object, *args: object) -> None:
    with pytest.raises(GameError) as found:
        move(*args)  # type: ignore[operator]
    assert found.value.name == name


def test_a_plea_has_its_time_and_its_claim() -> None:
    accusation = accused_of(1.01, strict=False)
    game = accusation.accuse(accusation.open(), 0)
    refused("NotTurn", game.plead, 1, ACCUSER, SEED)
    picked = accusation.answer(game.pick(1, OPERATOR, 0), 2)
    refused("PleaOver", picked.plead, 3, OPERATOR, SEED)
    waiting = game.plead(1, OPERATOR, SEED)
    refused("WrongPhase", waiting.point, 2, OPERATOR, Place(0, 0))
    again, other = accusation.pleaded(SEED), accusation.pleaded(SEED + 1)
    refused("NotTurn", waiting.restate, 2, OPERATOR, again.case, again.below_root)
    refused("ClaimMismatch", waiting.restate, 2, ACCUSER, other.case, other.below_root)
    narrower = replace(again.case, claim=replace(again.case.claim, window_from=2))
    refused("ClaimMismatch", waiting.restate, 2, ACCUSER, narrower, again.below_root)
    refused("OpeningWrong", waiting.restate, 2, ACCUSER, again.case, again.below_root[1:])
    restated = waiting.restate(2, ACCUSER, again.case, again.below_root)
    refused("NoPlea", restated.plead, 3, OPERATOR, SEED)
    refused("WrongPhase", restated.restate, 3, ACCUSER, again.case, again.below_root)
    silent = waiting.timeout(waiting.ends_at + 1)
    assert silent.verdict == Verdict.NO_FAULT


def test_nobody_accuses_with_a_plea_and_a_token_is_not_pleaded_for() -> None:
    accusation = accused_of(1.01, strict=False)
    again = accusation.pleaded(SEED)
    refused("ClaimInvalid", accusation.open().accuse, 0, ACCUSER, again.case, 0, again.proof, [])
    stage = toys.Toy.make(toys.FAMILIES["llama"]).last_stage(1, 3, Choice(3, 8, 1, 0, (7, 9)))
    outputs = stage.honest_outputs
    token = Accusation(stage, outputs, stage.evaluate(outputs)).case
    with pytest.raises(ClaimError):
        replace(token, claim=replace(token.claim, plea=SEED)).check_claim()
