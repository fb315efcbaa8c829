"""Python and Solidity have the same phase, clock, node and verdict after every move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from core.dispute.game.dispute import ACCUSED_TURNS, ACCUSER_TURNS, Phase, Verdict
from core.dispute.referee import LeafKind
from core.dispute.trace import chunks
from core.dispute.trace.derive import Boundary
from core.dispute.trace.evidence import Evidence, RunOpening, WeightOpening, show_stated
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import Place
from core.dispute.trace.operands import evidence_for
from core.dispute.trace.program import Form
from core.dispute.trace.rows import Spot
from core.dispute.trace.sources import CommittedRows, answer_rows
from core.protocol import commit
from core.protocol.types import RequestLeaf
from tests.twins.dispute_chain import Bench, TwinGame, blank_rows
from tests.twins.game import toy as toys
from tests.twins.game.game import GameError
from tests.twins.game.players import (
    OPERATOR,
    Accusation,
    Blind,
    Defence,
    chunks_below,
    shown_in,
)
from tests.twins.game.toy import LIE, make_stage
from tests.twins.game.traces import HeldTrace, all_places

pytestmark = pytest.mark.chain


class Play:
    """One accusation played on both twins."""

    def __init__(self, bench: Bench, accusation: Accusation, tag: int) -> None:
        self.bench, self.accusation = bench, accusation
        case = accusation.case
        self.leaf = commit.leaf_hash(commit.request_leaf_bytes(case.claim.leaf))
        others = [commit.leaf_hash(bytes((i,))) for i in range(7)]
        self.leaves = [*others[:4], self.leaf, *others[4:]]  # of four requests and their sums
        self.model = bench.register(case, tag)
        self.game = TwinGame.open(bench, case, self.leaves, self.model)

    @property
    def case(self) -> Case:
        return self.accusation.case

    def accuse(self) -> None:
        proof = commit.merkle_proof(self.leaves, 4)
        self.game.accuse(self.case, 2, proof, self.accusation.below_root)

    def descend(self, chunk: int) -> None:
        """Pick down to the values of `chunk`."""
        while self.game.game.node is not None and self.game.game.node.level:
            node = self.game.game.node
            step = min(chunks.STEP_LEVELS, node.level)
            self.game.pick((chunk >> (node.level - step)) - (node.index << step))
            self.open()

    def open(self) -> None:
        child, node = self.game.game.picked_node(), self.game.game.node
        assert node is not None
        tree = self.accusation.trace.tree
        proof = tree.proof(child.index, child.index + 1, child.level, node.level - child.level)
        if child.level > chunks.STEP_LEVELS:
            self.game.open_node(tree.below(child.level, child.index), proof)
        else:
            shown = chunks_below(self.accusation.trace, child.level, child.index)
            self.game.open_chunks(shown, proof)

    def as_caller(self, name: str, caller: str, at_s: int | None = None) -> None:
        """A move whose arguments do not matter, because it is refused before they are looked at."""
        self.game.blank(name, self.case, caller, at_s)

    def judge(self, place: Place, rng: random.Random, defence: Defence | None = None) -> None:
        """Point, and let the accuser prove."""
        a = self.accusation
        sources = a.stage.sources(a.outputs)
        self.game.point(place)
        if not a.stage.derivation.trial(place).parts:
            self.game.prove(evidence_for(a.trace, a.stage.derivation, sources, place))
            return
        self.game.expand(a.partial_sums(place))
        game = self.game.game
        part = defence.bad_part(place, game.stated) if defence else rng.randrange(game.parts + 1)
        self.game.pick_part(part)
        self.prove_part(part)

    def prove(self) -> None:
        """The accuser's answer to a place."""
        a, place = self.accusation, self.game.game.place
        assert place is not None
        if a.stage.derivation.trial(place).parts:
            self.game.expand(a.partial_sums(place))
        else:
            sources = a.stage.sources(a.outputs)
            self.game.prove(evidence_for(a.trace, a.stage.derivation, sources, place))

    def prove_part(self, part: int) -> None:
        a, place = self.accusation, self.game.game.place
        assert place is not None
        sources = a.stage.sources(a.outputs)
        if part == self.game.game.parts:
            self.game.prove_sum(evidence_for(a.trace, a.stage.derivation, sources, place))
            return
        self.game.prove_part(evidence_for(a.trace, a.stage.derivation, sources, place, part))


def sampled(stage: toys.Stage, rng: random.Random) -> list[Place]:
    """A place of every operator of every section."""
    found: dict[tuple[int, int], list[Place]] = {}
    for place in all_places(stage.layout):
        found.setdefault((place.section, place.op), []).append(place)
    return [rng.choice(places) for places in found.values()]


@pytest.mark.parametrize(
    "tag,name", enumerate(["llama", "qwen2", "qwen3", "gemma2", "gemma3", "wide", "last", "alone"])
)
def test_an_honest_accuser_wins_wherever_the_accused_points(
    bench: Bench, tag: int, name: str
) -> None:
    rng = random.Random(tag)
    stage = make_stage(name)
    lie = stage.lying_outputs(LIE)
    accusation = Accusation(stage, lie, stage.evaluate(lie))
    for number, place in enumerate(sampled(stage, rng)):
        play = Play(bench, accusation, tag)
        play.accuse()
        if number % 8 == 0 and stage.layout.op(place.section, place.op).form != Form.VERDICT:
            play.descend(stage.layout.first_chunk(place) + place.item // 8)
        play.judge(place, rng)
        assert play.game.game.verdict == Verdict.FAULT, place
        play.game.execute()


@pytest.mark.parametrize(
    "tag,name", enumerate(["llama", "qwen2", "qwen3", "gemma2", "gemma3", "wide", "last", "alone"])
)
def test_a_forged_number_loses_wherever_it_is(bench: Bench, tag: int, name: str) -> None:
    rng = random.Random(100 + tag)
    stage = make_stage(name)
    outputs = stage.honest_outputs
    honest = stage.evaluate(outputs)
    for place in sampled(stage, rng):
        if stage.layout.op(place.section, place.op).form == Form.VERDICT or honest[place] in (
            0.0,
            float("-inf"),
        ):
            continue
        stabiliser = stage.layout.op(place.section, place.op).kind == LeafKind.STABILISER
        off = 99.0 if stabiliser else abs(honest[place]) * 1e-6 + 1e-9
        forged: HeldTrace = honest.replaced(place, honest[place] + off)
        accusation = Accusation(stage, outputs, forged)
        play = Play(bench, accusation, tag)
        play.accuse()
        play.judge(place, rng, Defence(accusation))
        assert play.game.game.verdict == Verdict.NO_FAULT, place
        play.game.execute()


Move = Callable[["Play"], None]


def every_move(play: Play) -> dict[str, tuple[Phase, Move]]:
    """Each function with arguments that are right in the phase that it is for."""
    a, game = play.accusation, play.game
    proof = commit.merkle_proof(play.leaves, 4)
    verdict = Place(len(a.stage.layout.section_types) - 1, 6)
    found = evidence_for(a.trace, a.stage.derivation, a.stage.sources(a.outputs), verdict)

    def accuse(_: Play) -> None:
        game.accuse(a.case, 2, proof, a.below_root)

    rows = blank_rows(play.case)
    spot = Spot(Boundary.OUT, 1)
    return {
        "accuse": (Phase.OPENED, accuse),
        "ask": (Phase.OPENED, lambda _: game.ask(rows, 2, proof, [spot])),
        "prove_malformed": (
            Phase.OPENED,
            lambda _: game.prove_malformed(rows, 2, proof, spot, a.outputs.open(1, 0)),
        ),
        "reveal": (Phase.ASKED, lambda _: game.reveal([a.outputs.open(1, 0)], rows=rows)),
        "point_with": (Phase.PICKING, lambda _: game.point(verdict, tokens=b"1234")),
        "plead": (Phase.PICKING, lambda _: game.plead(0)),
        "restate": (Phase.PLEADED, lambda p: game.restate(p.case, [])),
        "pick": (Phase.PICKING, lambda _: game.pick(0)),
        "point": (Phase.PICKING, lambda _: game.point(verdict)),
        "open_node": (Phase.OPENING, lambda p: p.game.open_node([], [])),
        "open_chunks": (Phase.OPENING, lambda _: game.open_chunks([], [])),
        "prove": (Phase.PROVING, lambda p: game.prove(found, case=p.case)),
        "expand": (Phase.PROVING, lambda _: game.expand(b"")),
        "prove_sum": (Phase.PROVING_PART, lambda p: game.prove_sum(found, b"", case=p.case)),
        "pick_part": (Phase.PICKING_PART, lambda _: game.pick_part(0)),
        "prove_part": (
            Phase.PROVING_PART,
            lambda p: game.prove_part(found, RunOpening(), case=p.case),
        ),
        "timeout": (Phase.NONE, lambda _: game.timeout()),
        "execute": (Phase.RULED, lambda _: game.execute()),
    }


def stages_of_a_game(play: Play) -> Iterator[Phase]:
    """Every phase of a game on the way to its end, one after another."""
    a = play.accusation
    sources = a.stage.sources(a.outputs)
    yield Phase.OPENED
    spot = Spot(Boundary.OUT, 1)
    play.game.ask(blank_rows(play.case), 2, commit.merkle_proof(play.leaves, 4), [spot])
    yield Phase.ASKED
    play.game.reveal([a.outputs.open(1, 0)])
    play.accuse()
    yield Phase.PICKING
    play.game.plead(9)
    yield Phase.PLEADED
    a = play.accusation = a.pleaded(9)
    play.game.restate(a.case, a.below_root)
    play.game.pick(0)
    yield Phase.OPENING
    play.open()
    place = next(p for p in all_places(a.stage.layout) if a.stage.derivation.trial(p).parts)
    play.game.point(place)
    yield Phase.PROVING
    play.game.expand(a.partial_sums(place))
    yield Phase.PICKING_PART
    play.game.pick_part(0)
    yield Phase.PROVING_PART
    play.game.prove_part(evidence_for(a.trace, a.stage.derivation, sources, place, 0))
    yield Phase.RULED
    play.game.execute()
    yield Phase.EXECUTED


@pytest.fixture(scope="module")
def parted(bench: Bench) -> Accusation:
    """A true accusation of a toy whose biases make partial sums."""
    stage = make_stage("qwen2")
    outputs = stage.lying_outputs(LIE)
    return Accusation(stage, outputs, stage.evaluate(outputs))


def test_no_function_works_in_another_phase(bench: Bench, parted: Accusation) -> None:
    play = Play(bench, parted, 1)
    moves = every_move(play)
    seen = set()
    for phase in stages_of_a_game(play):
        assert play.game.game.phase == phase
        seen.add(phase)
        for name, (belongs, move) in moves.items():
            if belongs == phase:
                continue
            with pytest.raises(GameError) as refused:
                move(play)
            clock_runs = name == "timeout" and phase < Phase.RULED
            assert refused.value.name == ("ClockRunning" if clock_runs else "WrongPhase"), name
    assert seen == set(Phase) - {Phase.NONE}


def test_only_whose_turn_it_is_moves(bench: Bench, parted: Accusation) -> None:
    play = Play(bench, parted, 1)
    accuser_moves = ACCUSER_TURNS
    strangers = {
        True: [bench.owner, bench.operator, bench.requester],
        False: [bench.accuser, bench.requester],
    }
    for phase in stages_of_a_game(play):
        if phase >= Phase.RULED:
            break
        names = [n for n, (p, _) in every_move(play).items() if p == phase]
        for caller in strangers[phase in accuser_moves]:
            for name in names:
                with pytest.raises(GameError, match="NotTurn"):
                    play.as_caller(name, caller)


@pytest.mark.parametrize("stop", [p for p in Phase if Phase.NONE < p < Phase.RULED])
def test_a_clock_ends_after_its_last_second(bench: Bench, parted: Accusation, stop: Phase) -> None:
    play = Play(bench, parted, 1)
    for phase in stages_of_a_game(play):
        if phase == stop:
            break
    ends = play.game.game.ends_at
    for at_s in (ends - 1, ends):
        with pytest.raises(GameError, match="ClockRunning"):
            play.game.timeout(at_s)
    name = next(n for n, (p, _) in every_move(play).items() if p == stop)
    with pytest.raises(GameError, match="ClockOver"):
        play.as_caller(name, "", ends + 1)
    play.game.timeout(ends + 1)
    silent_accused = stop in ACCUSED_TURNS
    assert play.game.game.verdict == (Verdict.FAULT if silent_accused else Verdict.NO_FAULT)
    play.game.execute()


def test_a_move_at_the_last_second_is_in_time(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 0)
    play.accuse()
    play.game.point(Place(0, 0), at_s=play.game.game.ends_at)
    assert play.game.game.phase == Phase.PROVING


def test_what_was_not_committed_is_refused(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 0)
    a, tree = lie, lie.trace.tree
    below, proof = tree.below(tree.height, 0), commit.merkle_proof(play.leaves, 4)
    other = replace(play.case, claim=replace(play.case.claim, leaf=replace_leaf(play.case)))
    for case, position, siblings, shown, name in (
        (play.case, 1, proof, below, "RequestUnproven"),
        (play.case, 2, proof[:-1], below, "RequestUnproven"),
        (other, 2, proof, below, "RequestUnproven"),
        (play.case, 2, proof, below[:-1], "OpeningWrong"),
        (play.case, 2, proof, [below[1], below[0], *below[2:]], "OpeningWrong"),
        (claiming(play.case, positions=99), 2, proof, below, "ClaimInvalid"),
        (claiming(play.case, positions=0), 2, proof, below, "ClaimInvalid"),
        (
            claiming(play.case, window_from=play.case.claim.positions),
            2,
            proof,
            below,
            "ClaimInvalid",
        ),
        (claiming(play.case, tolerance_entry=0), 2, proof, below, "ClaimInvalid"),
        (claiming(play.case, tolerance_entry=200), 2, proof, below, "ClaimInvalid"),
    ):
        with pytest.raises(GameError, match=name):
            play.game.accuse(case, position, siblings, shown)
    play.accuse()
    with pytest.raises(GameError, match="ChildUnknown"):
        play.game.pick(32)
    play.game.pick(1)
    while play.game.game.picked_node().level > chunks.STEP_LEVELS:
        with pytest.raises(GameError, match="HashesDue"):
            play.game.open_chunks([], [])
        play.open()
        play.game.pick(0)
    with pytest.raises(GameError, match="ValuesDue"):
        play.game.open_node([], [])
    child, node = play.game.game.picked_node(), play.game.game.node
    assert node is not None
    way = tree.proof(child.index, child.index + 1, child.level, node.level - child.level)
    data = chunks_below(a.trace, child.level, child.index)
    one, *others = data
    for wrong, siblings in (
        ([one[:-1], *others], way),
        ([one + b"\0", *others], way),
        ([bytes(len(one)), *others], way),
        (data[:-1], way),
        ([*data, one], way),
        ([b"".join(data)[:255]], way),
        (data, way[:-1]),
        (data, [*way, way[0]]),
    ):
        with pytest.raises(GameError, match="OpeningWrong"):
            play.game.open_chunks(wrong, siblings)
    play.game.open_chunks(data, way)
    place = Place(1, 3, 1, 0, 2)
    play.game.point(place)
    sources = a.stage.sources(a.outputs)
    right = evidence_for(a.trace, a.stage.derivation, sources, place)
    elsewhere = evidence_for(a.trace, a.stage.derivation, sources, Place(1, 3, 2, 0, 2))
    for evidence in (
        elsewhere,
        replace(right, result=elsewhere.result),
        replace(right, runs=elsewhere.runs),
        replace(right, runs=()),
        replace(
            right,
            weights=elsewhere.weights if elsewhere.weights != right.weights else other_weights(a),
        ),
        replace(right, witness=99),
        replace(right, weights=replace(right.weights, name=right.weights.name + b"x")),
    ):
        with pytest.raises(GameError, match="EvidenceWrong"):
            play.game.prove(evidence)
    play.game.prove(right)
    assert play.game.game.verdict == Verdict.FAULT


def test_who_points_at_nothing_has_found_nothing(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 0)
    play.accuse()
    play.game.point(Place(1, 3, 400, 0, 0))
    play.game.prove(Evidence())
    assert play.game.game.verdict == Verdict.FAULT


def claiming(case: Case, **changed: int) -> Case:
    return replace(case, claim=replace(case.claim, **changed))


def replace_leaf(case: Case) -> RequestLeaf:
    import msgspec

    return msgspec.structs.replace(case.claim.leaf, tokens_in=case.claim.leaf.tokens_in + 1)


def other_weights(a: Accusation) -> WeightOpening:
    """The same place of another tensor."""
    place = Place(1, 4, 1, 0, 2)
    return evidence_for(a.trace, a.stage.derivation, a.stage.sources(a.outputs), place).weights


@pytest.mark.parametrize("tag,name", [(0, "llama"), (1, "qwen2"), (4, "gemma3")])
def test_an_accused_that_was_shown_nothing_descends_to_the_lie_on_chain(
    bench: Bench, tag: int, name: str
) -> None:
    """The accuser keeps its trace to itself."""
    rng = random.Random(200 + tag)
    stage = make_stage(name)
    outputs = stage.honest_outputs
    blind = Blind.of(stage, outputs)
    summed = [
        p for p in sampled(stage, rng) if stage.layout.op(p.section, p.op).form != Form.VERDICT
    ]
    for place in rng.sample(summed, 6):
        if not math.isfinite(blind.own[place]):
            continue
        forged = blind.own.replaced(place, math.nextafter(blind.own[place], math.inf))
        accusation = Accusation(stage, outputs, forged)
        play = Play(bench, accusation, tag)
        play.accuse()
        while play.game.game.phase != Phase.RULED:
            # What it decides does not depend on who it is or on the clock.
            game = replace(play.game.game, accused=frozenset((OPERATOR,)))
            if game.phase == Phase.PICKING_PART:
                part = blind.pick_part(game, 0).part
                play.game.pick_part(part)
                play.prove_part(part)
                continue
            moved = blind.move(game, 0, shown_in(accusation, game))
            if moved.phase == Phase.OPENING:
                play.game.pick(moved.child)
                play.open()
            else:
                assert moved.place is not None
                play.game.point(moved.place)
                play.prove()
        assert play.game.game.verdict == Verdict.NO_FAULT, place
        play.game.execute()


def test_a_partial_sum_is_one_of_those_that_were_stated(bench: Bench) -> None:
    """Statements of one group and of several."""
    for tag, name in ((1, "qwen2"), (5, "wide")):
        stage = make_stage(name)
        outputs = stage.lying_outputs(LIE)
        a = Accusation(stage, outputs, stage.evaluate(outputs))
        sources = stage.sources(outputs)
        parts = {p: stage.derivation.trial(p).parts for p in all_places(stage.layout)}
        place = max(parts, key=parts.__getitem__)
        play = Play(bench, a, tag)
        play.accuse()
        play.game.point(place)
        stated, part = a.partial_sums(place), parts[place] - 1
        play.game.expand(stated)
        play.game.pick_part(part)
        found = evidence_for(a.trace, stage.derivation, sources, place, part)
        right = show_stated(stated, part)
        for wrong in (
            RunOpening(),
            RunOpening(stated + bytes(8)),
            RunOpening(right.data[:-1], right.siblings),
            RunOpening(bytes(8) + right.data[8:], right.siblings),
            RunOpening(right.data, (*right.siblings, bytes(32))),
            RunOpening(right.data, tuple(bytes(32) for _ in right.siblings) or (bytes(32),)),
        ):
            with pytest.raises(GameError, match="StatedMismatch"):
                play.game.prove_part(found, wrong)
        play.game.prove_part(found)
        assert play.game.game.verdict == Verdict.FAULT


def test_sums_that_were_not_stated_or_are_not_the_places_prove_nothing(
    bench: Bench, parted: Accusation
) -> None:
    """More sums than the value has, or fewer: nothing of them is ever proven."""
    stage = parted.stage
    place = next(p for p in all_places(stage.layout) if stage.derivation.trial(p).parts)
    sources, right = stage.sources(parted.outputs), parted.partial_sums(place)
    whole = evidence_for(parted.trace, stage.derivation, sources, place)
    for stated in (right + bytes(8), right[:-8] or right * 3):
        play = Play(bench, parted, 1)
        play.accuse()
        play.game.point(place)
        for wrong in (b"", bytes(12), bytes(8 << 16)):
            with pytest.raises(GameError, match="NoParts"):
                play.game.expand(wrong)
        play.game.expand(stated)
        with pytest.raises(GameError, match="PartUnknown"):
            play.game.pick_part(len(stated) // 8 + 1)
        play.game.pick_part(len(stated) // 8)
        with pytest.raises(GameError, match="SumDue"):
            play.game.prove_part(evidence_for(parted.trace, stage.derivation, sources, place, 0))
        with pytest.raises(GameError, match="StatedMismatch"):
            play.game.prove_sum(whole, right)
        with pytest.raises(GameError, match="EvidenceWrong"):
            play.game.prove_sum(whole)
        play.game.timeout(play.game.game.ends_at + 1)
        assert play.game.game.verdict == Verdict.NO_FAULT


def test_a_sum_is_proven_where_it_was_picked(bench: Bench, parted: Accusation) -> None:
    stage = parted.stage
    place = next(p for p in all_places(stage.layout) if stage.derivation.trial(p).parts)
    whole = evidence_for(parted.trace, stage.derivation, stage.sources(parted.outputs), place)
    play = Play(bench, parted, 1)
    play.accuse()
    play.game.point(place)
    play.game.expand(parted.partial_sums(place))
    play.game.pick_part(0)
    with pytest.raises(GameError, match="PartDue"):
        play.game.prove_sum(whole)
    play.prove_part(0)
    assert play.game.game.verdict == Verdict.FAULT


def test_a_list_beside_a_sum_keeps_nobody_from_proving_it(bench: Bench, parted: Accusation) -> None:
    play, stage = Play(bench, parted, 1), parted.stage
    place = next(p for p in all_places(stage.layout) if stage.derivation.trial(p).parts)
    play.accuse()
    play.game.point(place, tokens=b"1234")
    play.game.expand(parted.partial_sums(place))
    play.game.pick_part(0)
    play.prove_part(0)
    assert play.game.game.verdict == Verdict.FAULT


def test_a_value_that_was_named_with_a_list_is_proven_with_it(
    bench: Bench, lie: Accusation
) -> None:
    layout = lie.stage.layout
    for place in (Place(1, 0, 0, 0, 1), Place(1, 3, 1, 0, 2), layout.verdicts[0]):
        play = Play(bench, lie, 0)
        play.accuse()
        play.game.point(place, tokens=b"1234")
        sources = lie.stage.sources(lie.outputs)
        found = evidence_for(lie.trace, lie.stage.derivation, sources, place)
        with pytest.raises(GameError, match="ListMismatch"):
            play.game.prove(found)
        play.game.prove(replace(found, tokens=b"1234"))
        assert play.game.game.verdict == Verdict.FAULT


def test_a_descent_leads_to_a_sum_and_its_part(bench: Bench, parted: Accusation) -> None:
    play, stage = Play(bench, parted, 1), parted.stage
    play.accuse()
    place = next(p for p in all_places(stage.layout) if stage.derivation.trial(p).parts)
    play.descend(stage.layout.first_chunk(place) + place.item // 8)
    play.judge(place, random.Random(3))
    assert play.game.game.verdict == Verdict.FAULT


def test_rows_are_shown_or_refused_alike(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 0)
    rows, proof = blank_rows(play.case), commit.merkle_proof(play.leaves, 4)
    spots = [Spot(Boundary.IN, 0), Spot(Boundary.OUT, 1)]
    for wrong in ([], [spots[0]] * 7, [Spot(Boundary.OUT, 99)], [Spot(Boundary.IN, 0, 1)]):
        with pytest.raises(GameError, match="EvidenceWrong"):
            play.game.ask(rows, 2, proof, wrong)
    play.game.ask(rows, 2, proof, spots)
    shown = [lie.stage.inputs.open(0, 0), lie.outputs.open(1, 0)]
    for openings in (shown[::-1], shown[:1], [shown[0], replace(shown[1], part=bytes(32))]):
        with pytest.raises(GameError, match="EvidenceWrong"):
            play.game.reveal(openings)
    play.game.reveal(shown)
    with pytest.raises(GameError, match="RowSound"):
        play.game.prove_malformed(rows, 2, proof, spots[1], shown[1])
    with pytest.raises(GameError, match="EvidenceWrong"):
        play.game.prove_malformed(rows, 2, proof, spots[0], shown[0])


def test_a_window_of_a_last_stage_is_over_rows_that_it_signed(bench: Bench) -> None:
    """None of the prompt but its last position's."""
    stage = make_stage("last")
    lie = stage.lying_outputs(LIE)
    play = Play(bench, Accusation(stage, lie, stage.evaluate(lie)), 6)
    tree, proof = play.accusation.trace.tree, commit.merkle_proof(play.leaves, 4)
    early = replace(play.case, claim=replace(play.case.claim, window_from=0))
    with pytest.raises(GameError, match="ClaimInvalid"):
        play.game.accuse(early, 2, proof, tree.below(tree.height, 0))
    play.accuse()


def test_tokens_and_state_rows_are_shown_or_refused_alike(bench: Bench) -> None:
    stage = make_stage("last")
    ids = [bytes([i, 0, 0, 0]) for i in (3, 19, 5)]  # the second is no token of the model's
    bad = [b"\0\0\xc0\x7f" + row[4:] for row in stage.honest_outputs.rows]
    states = [stage.honest_outputs.rows[0], bad[1], stage.honest_outputs.rows[2]]
    tokens, rows_of_state = answer_rows(ids, states)
    play = Play(bench, Accusation(stage, rows_of_state, stage.evaluate(stage.honest_outputs)), 6)
    rows, proof = blank_rows(play.case), commit.merkle_proof(play.leaves, 4)
    spots = [Spot(Boundary.STATES, 2), Spot(Boundary.OUT, 0), Spot(Boundary.IN, 3)]
    for wrong in (Spot(Boundary.STATES, 3), Spot(Boundary.STATES, 0, 1), Spot(Boundary.OUT, 3)):
        with pytest.raises(GameError, match="EvidenceWrong"):
            play.game.ask(rows, 2, proof, [wrong])
    play.game.ask(rows, 2, proof, spots)
    shown = [rows_of_state.open(2, 0), tokens.open(0, 0), stage.inputs.open(3, 0)]
    siblings = shown[0].row_siblings
    for other in (siblings[:-1], (), (*siblings[:-1], rows_of_state.root), (*siblings, bytes(32))):
        with pytest.raises(GameError, match="EvidenceWrong"):
            play.game.reveal([replace(shown[0], row_siblings=other), *shown[1:]])
    play.game.reveal(shown)
    for spot, held in ((spots[0], shown[0]), (spots[1], shown[1])):
        with pytest.raises(GameError, match="RowSound"):
            play.game.prove_malformed(rows, 2, proof, spot, held)
    for boundary, held in ((Boundary.STATES, rows_of_state), (Boundary.OUT, tokens)):
        convicting = Play(bench, play.accusation, 6)
        convicting.game.prove_malformed(rows, 2, proof, Spot(boundary, 1), held.open(1, 0))
        assert convicting.game.game.verdict == Verdict.FAULT
        convicting.game.execute()


def test_a_stage_that_is_not_the_last_has_no_state_rows(bench: Bench, lie: Accusation) -> None:
    play = Play(bench, lie, 0)
    with pytest.raises(GameError, match="EvidenceWrong"):
        play.game.ask(
            blank_rows(play.case),
            2,
            commit.merkle_proof(play.leaves, 4),
            [Spot(Boundary.STATES, 0)],
        )


@pytest.mark.parametrize("bad", [b"\0\0\xc0\x7f", b""])
def test_a_malformed_row_convicts_on_chain(bench: Bench, bad: bytes) -> None:
    stage = make_stage("llama")
    rows = list(stage.honest_outputs.rows)
    rows[1] = bad + rows[1][4:]
    outputs = CommittedRows(rows)
    play = Play(bench, Accusation(stage, outputs, stage.evaluate(stage.honest_outputs)), 0)
    spot = Spot(Boundary.OUT, 1)
    play.game.prove_malformed(
        blank_rows(play.case), 2, commit.merkle_proof(play.leaves, 4), spot, outputs.open(1, 0)
    )
    assert play.game.game.verdict == Verdict.FAULT
    play.game.execute()
