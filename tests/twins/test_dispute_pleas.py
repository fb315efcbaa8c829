"""Python and Solidity play pleas alike, and judge every kind of shaken value alike."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.trace.program import Form, Tolerance
from tests.twins.dispute_chain import TURN_S, Bench
from tests.twins.game import toy as toys
from tests.twins.game.game import GameError
from tests.twins.game.players import Accusation, Defence
from tests.twins.game.toy import LIE, make_stage
from tests.twins.test_dispute import Play, sampled

pytestmark = pytest.mark.chain
SEED = 200


def pleaded(bench: Bench, accusation: Accusation, tag: int, again: Accusation) -> Play:
    """A game after plea and restatement, going on with `again`."""
    play = Play(bench, accusation, tag)
    play.accuse()
    play.game.plead(SEED)
    play.game.restate(again.case, again.below_root)
    play.accusation = again
    return play


@pytest.mark.parametrize(
    "tag,name", enumerate(["llama", "qwen2", "gemma2", "gemma3", "last", "alone"], 70)
)
def test_a_liar_that_pleads_loses_wherever_it_points(bench: Bench, tag: int, name: str) -> None:
    rng = random.Random(tag)
    stage = make_stage(name)
    lie = stage.lying_outputs(LIE)
    accusation = Accusation(stage, lie, stage.evaluate(lie))
    again = accusation.pleaded(SEED)
    once = stage.layout.once
    places = [place for place in sampled(again.stage, rng) if place.section >= once]
    for number, place in enumerate(places):
        play = pleaded(bench, accusation, tag, again)
        is_verdict = again.stage.layout.op(place.section, place.op).form == Form.VERDICT
        if number % 8 == 0 and not is_verdict:
            play.descend(again.stage.layout.first_chunk(place) + place.item // 8)
        play.judge(place, rng)
        assert play.game.game.verdict == Verdict.FAULT, place
        play.game.execute()


@pytest.mark.parametrize("tag,name", enumerate(["llama", "gemma3"], 80))
def test_a_value_that_is_not_shaken_as_named_loses(bench: Bench, tag: int, name: str) -> None:
    """One that is shaken by another seed's sign, or not at all."""
    rng = random.Random(tag)
    stage = make_stage(name)
    lie = stage.lying_outputs(LIE)
    accusation = Accusation(stage, lie, stage.evaluate(lie))
    again, layout = accusation.pleaded(SEED), accusation.stage.layout
    for place in sampled(again.stage, rng):
        if not again.stage.layout.is_shaken(place.section, place.op):
            continue
        if again.trace[place] in (0.0, float("-inf")):
            continue
        unshaken = accusation.trace[place._replace(section=place.section - layout.once)]
        forged = again.trace.replaced(place, unshaken)
        false = replace(again, trace=forged)
        play = pleaded(bench, accusation, tag, false)
        play.judge(place, rng, Defence(false))
        assert play.game.game.verdict == Verdict.NO_FAULT, place
        play.game.execute()


def test_noise_that_the_rows_have_is_no_fault_on_chain(bench: Bench) -> None:
    toy = toys.Toy.make(toys.FAMILIES["llama"])
    toy = replace(toy, program=replace(toy.program, tolerances=(Tolerance(30, 1, 1),)))
    stage = toy.stage(1, 2, 4, 1)
    outputs = stage.honest_outputs
    accusation = Accusation(stage, outputs, stage.evaluate(outputs))
    again = accusation.pleaded(SEED)
    rng = random.Random(0)
    for verdict, end in zip(
        again.stage.layout.verdicts, (Verdict.FAULT, Verdict.NO_FAULT), strict=True
    ):
        play = pleaded(bench, accusation, 90, again)
        play.judge(verdict, rng)
        assert play.game.game.verdict == end
        play.game.execute()


def test_a_plea_has_its_time_its_side_and_its_claim_on_chain(bench: Bench, lie: Accusation) -> None:
    again = lie.pleaded(SEED)
    play = Play(bench, lie, 91)
    with pytest.raises(GameError, match="WrongPhase"):
        play.game.plead(SEED)
    play.accuse()
    with pytest.raises(GameError, match="NotTurn"):
        play.game.plead(SEED, bench.accuser)
    with pytest.raises(GameError, match="WrongPhase"):
        play.game.restate(again.case, again.below_root)
    play.game.plead(SEED)
    for name in ("pick", "point", "plead", "open_node", "prove", "accuse"):
        with pytest.raises(GameError, match="WrongPhase"):
            play.as_caller(name, "")
    with pytest.raises(GameError, match="NotTurn"):
        play.game.restate(again.case, again.below_root, bench.owner)
    other = lie.pleaded(SEED + 1)
    with pytest.raises(GameError, match="ClaimMismatch"):
        play.game.restate(other.case, other.below_root)
    claim = again.case.claim
    for changed in (replace(claim, window_from=2), replace(claim, positions=3)):
        with pytest.raises(GameError, match="ClaimMismatch"):
            play.game.restate(replace(again.case, claim=changed), again.below_root)
    with pytest.raises(GameError, match="OpeningWrong"):
        play.game.restate(again.case, again.below_root[:-1])
    play.game.restate(again.case, again.below_root)
    with pytest.raises(GameError, match="NoPlea"):
        play.game.plead(SEED)


def test_an_accuser_that_does_not_restate_loses(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 92)
    play.accuse()
    play.game.plead(255)
    with pytest.raises(GameError, match="ClockRunning"):
        play.game.timeout()
    play.game.timeout(at_s=bench.now + TURN_S + 1)
    assert (play.game.game.phase, play.game.game.verdict) == (Phase.RULED, Verdict.NO_FAULT)
    play.game.execute()


def test_nothing_was_opened_where_a_plea_is_made(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 93)
    play.accuse()
    play.game.pick(0)
    with pytest.raises(GameError, match="WrongPhase"):
        play.game.plead(SEED)
    play.open()
    with pytest.raises(GameError, match="PleaOver"):
        play.game.plead(SEED)
