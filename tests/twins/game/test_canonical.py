"""An accused that is shown nothing cannot lose to a lie, and cannot escape the truth."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass
from functools import lru_cache

import pytest

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.referee import LeafKind, Ruling
from core.dispute.trace.layout import Place
from core.dispute.trace.program import Form
from tests.twins.game import toy as toys
from tests.twins.game.game import MAX_TURNS, GameError
from tests.twins.game.players import (
    OPERATOR,
    PARAMETERS,
    Accusation,
    Blind,
    ended,
    play,
    play_blind,
    shown_in,
)
from tests.twins.game.traces import HeldTrace, all_places

FAMILIES = ("llama", "qwen2", "gemma3")
FORGERIES = 400


@lru_cache
def stage_of(name: str) -> toys.Stage:
    toy = toys.Toy.make(toys.FAMILIES[name], biases=name == "qwen2")
    return toy.stage(1, 2, 2, 0)


@lru_cache
def honest(name: str) -> Blind:
    return Blind.of(stage_of(name), stage_of(name).honest_outputs)


@lru_cache
def values_of(name: str) -> tuple[Place, ...]:
    layout = stage_of(name).layout
    return tuple(p for p in all_places(layout) if layout.op(p.section, p.op).form != Form.VERDICT)


@lru_cache
def true_accusation(name: str) -> Accusation:
    stage = stage_of(name)
    outputs = stage.lying_outputs(1.002)
    return Accusation(stage, outputs, stage.evaluate(outputs))


def other_bits(value: float, rng: random.Random) -> float:
    """Another value of a trace: next to it, near it, anywhere, or none at all."""
    if rng.random() < 0.3:
        return math.nextafter(value, rng.choice((-math.inf, math.inf)))
    if rng.random() < 0.1:
        return rng.choice((math.nan, math.inf, -math.inf, -0.0 if value == 0.0 else 0.0))
    changed = value + (abs(value) + 1e-300) * 10 ** rng.uniform(-15, 3) * rng.choice((-1, 1))
    return changed if changed != value else math.nextafter(value, math.inf)


# --- the trace ---


@pytest.mark.parametrize("name", FAMILIES)
def test_no_other_bits_hold_where_its_operands_are_right(name: str) -> None:
    rng = random.Random(name)
    blind, stage = honest(name), stage_of(name)
    for place in rng.sample(values_of(name), 150):
        kind = stage.layout.op(place.section, place.op).kind
        if kind == LeafKind.STABILISER:
            continue  # another score is one too; its exponentials say so
        value = other_bits(blind.own[place], rng)
        assert blind.checker.ruling(blind.own.replaced(place, value), place) == Ruling.FAILS


# --- an honest accused against every liar ---


@pytest.mark.parametrize("name", FAMILIES)
def test_an_accused_that_is_shown_nothing_finds_any_forged_number(name: str) -> None:
    rng = random.Random(name)
    stage, blind = stage_of(name), honest(name)
    most = 0
    for _ in range(FORGERIES):
        forged = blind.own
        for place in rng.sample(values_of(name), rng.choice((1, 1, 2, 9))):
            forged = forged.replaced(place, other_bits(forged[place], rng))
        game, moves = play_blind(Accusation(stage, stage.honest_outputs, forged), blind)
        assert ended(game) == Verdict.NO_FAULT
        assert game.execute(game.payout_at)[1] == {"accused": PARAMETERS.bond}
        most = max(most, moves)
    assert most <= 20


@pytest.mark.parametrize("name", FAMILIES)
def test_a_lie_that_is_carried_through_to_the_verdict_is_found(name: str) -> None:
    """Every other leaf holds: the accuser computed on from its lie."""
    rng = random.Random(name)
    stage, blind = stage_of(name), honest(name)
    for _ in range(12):
        target, scale = rng.choice(values_of(name)), 1 + rng.choice((-1, 1)) * rng.uniform(0.1, 1)
        try:
            forged = stage.evaluate(
                stage.honest_outputs,
                lambda p, v, t=target, s=scale: v * s + 0.1 if p == t else v,  # type: ignore[misc]
            )
        except ArithmeticError:
            continue
        accusation = Accusation(stage, stage.honest_outputs, forged)
        assert ended(play_blind(accusation, blind)[0]) == Verdict.NO_FAULT


@pytest.mark.parametrize("stop", range(6))
def test_an_accuser_that_falls_silent_loses(stop: int) -> None:
    stage, blind = stage_of("qwen2"), honest("qwen2")
    summed = next(p for p in values_of("qwen2") if stage.derivation.trial(p).parts)
    trace = blind.own.replaced(summed, blind.own[summed] + 1)
    accusation = Accusation(stage, stage.honest_outputs, trace)
    game, _ = play_blind(accusation, blind, silent_after=stop)
    assert ended(game) == Verdict.NO_FAULT


def test_partial_sums_that_only_add_up_do_not_help() -> None:
    @dataclass(frozen=True)
    class Adding(Accusation):
        def partial_sums(self, place: Place) -> bytes:
            right = super().partial_sums(place)
            parts = list(struct.unpack(f"<{len(right) // 8}d", right))
            parts[rng.randrange(len(parts))] += self.trace[place] - blind.own[place]
            return struct.pack(f"<{len(parts)}d", *parts)

    rng = random.Random(5)
    stage, blind = stage_of("qwen2"), honest("qwen2")
    summed = [p for p in values_of("qwen2") if stage.derivation.trial(p).parts]
    reached = 0
    for place in summed:
        trace = blind.own.replaced(place, blind.own[place] + 0.5)
        game, _ = play_blind(Adding(stage, stage.honest_outputs, trace), blind)
        assert ended(game) == Verdict.NO_FAULT
        reached += bool(game.stated)
    assert reached > len(summed) // 2


def test_a_stabiliser_below_the_largest_score_falls_by_an_exponential() -> None:
    stage, blind = stage_of("llama"), honest("llama")
    rows = [
        p
        for p in values_of("llama")
        if stage.layout.op(p.section, p.op).kind == LeafKind.STABILISER and p.row > 0
    ]
    assert rows
    for place in rows:
        scores = stage.layout.op(place.section, place.op).a
        others = [blind.own[Place(place.section, scores, place.row, place.item, k)] for k in (0, 1)]
        lower = min(others)
        if lower == blind.own[place]:
            continue
        # Every leaf of the stabiliser itself holds: it is one of the scores.
        trace = blind.own.replaced(place, lower)
        game, _ = play_blind(Accusation(stage, stage.honest_outputs, trace), blind)
        assert ended(game) == Verdict.NO_FAULT
        assert game.place is not None
        assert stage.layout.op(game.place.section, game.place.op).kind == LeafKind.EXP


def test_a_chunk_of_another_length_loses() -> None:
    stage, blind = stage_of("llama"), honest("llama")

    class Long(HeldTrace):
        @property
        def chunks(self) -> list[bytes]:
            found = list(super().chunks)
            found[7] += bytes(8)
            return found

    trace = Long(stage.layout, blind.own._values)
    accusation = Accusation(stage, stage.honest_outputs, trace)
    now, game = 0, accusation.accuse(accusation.open(), 0)
    while game.phase != Phase.PROVING:
        if game.phase == Phase.PICKING:
            node = game.node
            assert node is not None
            game = blind.move(game, now, shown_in(accusation, game))
        else:
            game = accusation.answer(game, now)
    with pytest.raises(GameError, match="EvidenceWrong"):
        accusation.answer(game, now)


def test_the_truth_about_an_honest_stage_loses_by_its_verdict() -> None:
    stage, blind = stage_of("llama"), honest("llama")
    game, moves = play_blind(Accusation(stage, stage.honest_outputs, blind.own), blind)
    assert (ended(game), moves, game.place) == (Verdict.NO_FAULT, 3, stage.layout.verdicts[0])


# --- an honest accuser against every griefer ---


@pytest.mark.parametrize("name", FAMILIES)
def test_an_honest_accuser_wins_wherever_the_accused_points(name: str) -> None:
    rng = random.Random(name)
    accusation, places = true_accusation(name), list(all_places(stage_of(name).layout))
    for _ in range(FORGERIES):
        place = rng.choice(places)
        form = accusation.stage.layout.op(place.section, place.op).form
        descend = form != Form.VERDICT and rng.random() < 0.3
        game, _ = play(accusation, place, descend=descend, rng=rng)
        assert ended(game) == Verdict.FAULT


@pytest.mark.parametrize("seed", range(60))
def test_an_honest_accuser_wins_against_whoever_wanders(seed: int) -> None:
    """The accused picks anything, points anywhere, or says nothing."""
    rng = random.Random(seed)
    name = FAMILIES[seed % 3]
    accusation = true_accusation(name)
    places = list(all_places(accusation.stage.layout))
    now, game = 0, accusation.accuse(accusation.open(), 0)
    turns = 1
    while game.phase != Phase.RULED:
        turns += 1
        now = game.ends_at
        if game.phase == Phase.PICKING:
            choice = rng.random()
            if choice < 0.1:
                game = game.timeout(now + 1)
            elif choice < 0.8 and game.node is not None and game.node.level:
                game = game.pick(now, OPERATOR, rng.choice(game.children()))
            else:
                game = game.point(now, OPERATOR, rng.choice(places))
        elif game.phase == Phase.PICKING_PART:
            game = game.pick_part(now, OPERATOR, rng.randrange(game.parts + 1))
        else:
            game = accusation.answer(game, now)
    assert game.verdict == Verdict.FAULT
    assert turns <= MAX_TURNS
