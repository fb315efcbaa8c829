"""Honest players cannot lose a game, against liars of every kind and random players."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import pytest

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.referee import LeafKind
from core.dispute.trace.layout import Place
from core.dispute.trace.program import Form
from tests.twins.game import toy as toys
from tests.twins.game.game import GameError
from tests.twins.game.players import (
    ACCUSER,
    OPERATOR,
    OWNER,
    PARAMETERS,
    Accusation,
    Defence,
    LyingInParts,
    ended,
    play,
)
from tests.twins.game.traces import all_places

GAMES = 300


@lru_cache
def stage_of(name: str) -> toys.Stage:
    if name == "last":
        return toys.Toy.make(toys.LLAMA).stage(2, 3, 3, 1)
    toy = toys.Toy.make(toys.FAMILIES[name], biases=name == "qwen2")
    return toy.stage(1, 2, 2, 0)


@lru_cache
def true_accusation(name: str) -> Accusation:
    stage = stage_of(name)
    outputs = stage.lying_outputs(1.002)
    return Accusation(stage, outputs, stage.evaluate(outputs))


@lru_cache
def places_of(name: str) -> tuple[Place, ...]:
    return tuple(all_places(stage_of(name).layout))


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "last"])
def test_an_honest_accuser_wins_whatever_the_accused_does(name: str) -> None:
    rng = random.Random(name)
    places = places_of(name)
    for _ in range(GAMES):
        place = rng.choice(places)
        accusation = true_accusation(name)
        form = accusation.stage.layout.op(place.section, place.op).form
        descend = form != Form.VERDICT and rng.random() < 0.6
        game, moves = play(accusation, place, descend=descend, rng=rng)
        assert ended(game) == Verdict.FAULT
        assert moves <= 20
        done, paid = game.execute(game.payout_at)
        assert paid == {"accuser": PARAMETERS.bond}
        with pytest.raises(GameError, match="WrongPhase"):
            done.execute(game.payout_at)


def forgeries(name: str, rng: random.Random) -> Iterator[Accusation]:
    """False accusations of an honest stage, each by a trace that is wrong somewhere."""
    stage = stage_of(name)
    outputs = stage.honest_outputs
    honest = stage.evaluate(outputs)
    values = [p for p in places_of(name) if stage.layout.op(p.section, p.op).form != Form.VERDICT]
    judged = [
        p
        for p in values
        if math.isfinite(honest[p]) and stage.layout.op(p.section, p.op).kind != LeafKind.STABILISER
    ]
    for _ in range(12):  # one number, and nothing that follows from it
        place = rng.choice(judged)
        off = abs(honest[place]) * 10 ** rng.uniform(-9, 3) + 1e-9
        yield Accusation(stage, outputs, honest.replaced(place, honest[place] + off))
    made = 0
    while made < 3:  # one number, carried through to the verdict: every other leaf holds
        target = rng.choice(judged)
        scale = 1 + rng.choice((-1, 1)) * 10 ** rng.uniform(-3, 0)
        try:
            forged = stage.evaluate(
                outputs, lambda p, v, t=target, s=scale: v * s + 0.1 if p == t else v
            )
        except ArithmeticError:
            continue  # no number is right after such a lie
        made += 1
        yield Accusation(stage, outputs, forged)
    smear = 10 ** rng.uniform(
        -11, -6
    )  # a little everywhere, and still every score at most its row's M

    def smeared(place: Place, value: float) -> float:
        if stage.layout.op(place.section, place.op).kind == LeafKind.STABILISER:
            return value
        return value * (1 + smear * rng.uniform(-1, 1))

    yield Accusation(stage, outputs, stage.evaluate(outputs, smeared))


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "last"])
def test_an_honest_accused_finds_the_lie_and_wins(name: str) -> None:
    rng = random.Random(name)
    for accusation in forgeries(name, rng):
        defence = Defence(accusation)
        found = defence.first_fault(places_of(name))
        assert found is not None
        game, _ = play(accusation, found, defence=defence)
        assert ended(game) == Verdict.NO_FAULT
        _, paid = game.execute(game.payout_at)
        assert paid == {"accused": PARAMETERS.bond}


def test_partial_sums_that_only_add_up_do_not_help() -> None:
    stage = replace(stage_of("qwen2"))
    outputs = stage.honest_outputs
    honest = stage.evaluate(outputs)
    summed = [p for p in places_of("qwen2") if stage.derivation.trial(p).parts]
    for place in random.Random(2).sample(summed, 10):
        forged = honest.replaced(place, honest[place] + 0.5)
        accusation = LyingInParts(stage, outputs, forged)
        game, _ = play(accusation, place, defence=Defence(accusation))
        assert ended(game) == Verdict.NO_FAULT


def test_the_true_trace_of_an_honest_stage_loses_by_its_verdict() -> None:
    stage = stage_of("llama")
    outputs = stage.honest_outputs
    accusation = Accusation(stage, outputs, stage.evaluate(outputs))
    found = Defence(accusation).first_fault(places_of("llama"))
    assert found == places_of("llama")[-1]
    game, moves = play(accusation, found)
    assert (ended(game), moves) == (Verdict.NO_FAULT, 3)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_falls_silent_loses_and_clocks_never_overlap(seed: int) -> None:
    """Random moves, then silence at a random turn."""
    rng = random.Random(seed)
    accusation, places = true_accusation("qwen2"), places_of("qwen2")
    now, game = 0, accusation.open()
    for _ in range(rng.randrange(8)):
        now = game.ends_at - rng.randrange(PARAMETERS.turn_s)
        if game.phase == Phase.OPENED:
            game = accusation.accuse(game, now)
        elif game.phase == Phase.PICKING:
            node = game.node
            assert node is not None
            if node.level and rng.random() < 0.5:
                game = game.pick(now, rng.choice((OWNER, OPERATOR)), rng.choice(game.children()))
            else:
                game = game.point(now, OWNER, rng.choice(places))
        elif game.phase == Phase.PICKING_PART:
            game = game.pick_part(now, OPERATOR, 0)
        elif game.phase != Phase.RULED:
            game = accusation.answer(game, now)
        if game.phase == Phase.RULED:
            assert game.verdict == Verdict.FAULT
            return
    with pytest.raises(GameError, match="ClockRunning"):
        game.timeout(game.ends_at)
    silent_accused = game.phase in (Phase.PICKING, Phase.PICKING_PART)
    over = game.timeout(game.ends_at + 1)
    assert over.verdict == (Verdict.FAULT if silent_accused else Verdict.NO_FAULT)
    with pytest.raises(GameError, match="WrongPhase"):
        over.accuse(0, ACCUSER, accusation.case, 0, accusation.proof, [])
