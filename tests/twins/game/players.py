"""Accusers and accused of toy games: honest ones, scripted liars, and ones that move at random."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.trace import answer, chunks
from core.dispute.trace.check import Checker
from core.dispute.trace.derive import How, TraceRun
from core.dispute.trace.evidence import Evidence, show_stated
from core.dispute.trace.judge import Case, Claim
from core.dispute.trace.layout import Place
from core.dispute.trace.operands import evidence_for
from core.dispute.trace.sources import CommittedRows
from core.protocol import commit
from core.protocol.commit import Half
from core.protocol.types import RequestLeaf
from tests.twins.game.game import Game, GameParameters, opened
from tests.twins.game.tokens import token_behind
from tests.twins.game.toy import TOKENS_IN, Stage
from tests.twins.game.traces import Evaluator, HeldTrace, all_places, faults

PARAMETERS = GameParameters(bond=20, turn_s=60, payout_delay_s=5)
ACCUSER, OWNER, OPERATOR, REQUESTER = "accuser", "owner", "operator", "requester"


def request_leaf(
    inputs: CommittedRows,
    outputs: CommittedRows,
    tokens_in: int = TOKENS_IN,
    half: Half = Half.NONE,
) -> RequestLeaf:
    """The leaf over these rows, of which `outputs` may be half of what a last stage signed."""
    rows, root = len(inputs.rows), outputs.root
    if half:
        pair = (root, outputs.beside) if half == Half.TOKENS else (outputs.beside, root)
        root = commit.answer_root(*pair)
    return RequestLeaf(
        0, commit.to_hex(inputs.root), commit.to_hex(root), tokens_in, rows + 1 - tokens_in
    )


@dataclass(frozen=True)
class Accusation:
    """What an accuser posts and answers with."""

    stage: Stage
    outputs: CommittedRows
    trace: HeldTrace
    tokens: bytes = b""  # listed against a token outside top-k

    @property
    def case(self) -> Case:
        toy, layout = self.stage.toy, self.stage.layout
        claim = Claim(
            request_leaf(self.stage.inputs, self.outputs, half=self.stage.half),
            *self.stage.span,
            self.stage.entry,
            self.trace.tree.root,
            self.stage.choice,
            layout.plea,
        )
        roots = tuple(toy.parts[number].root for number in range(-1, toy.traits.layers + 1))
        return Case(toy.program, roots, claim)

    def open(self, now: int = 0) -> Game:
        root = commit.root_of_hashes(commit.request_hashes([self.case.claim.leaf]))
        accused = frozenset((OWNER, OPERATOR))
        return opened(PARAMETERS, now, ACCUSER, accused, REQUESTER, root, 1)

    @property
    def proof(self) -> list[bytes]:
        """Of the request's leaf, alone under its receipt."""
        return commit.request_proof([self.case.claim.leaf], 0)

    @property
    def below_root(self) -> list[bytes]:
        """What an accusation shows below the root."""
        tree = self.trace.tree
        return tree.below(tree.height, 0)

    def accuse(self, game: Game, now: int) -> Game:
        return game.accuse(now, ACCUSER, self.case, 0, self.proof, self.below_root)

    def pleaded(self, seed: int) -> Self:
        """The same accusation with the trace that it is restated with."""
        stage = self.stage.pleaded(seed)
        return replace(self, stage=stage, trace=stage.evaluate(self.outputs))

    def answer(self, game: Game, now: int) -> Game:
        """The accuser's move: open what was picked, prove or expand what was pointed at."""
        sources = self.stage.sources(self.outputs)
        if game.phase == Phase.OPENING:
            child = game.picked_node()
            assert game.node is not None
            proof = self.trace.tree.proof(
                child.index, child.index + 1, child.level, game.node.level - child.level
            )
            if child.level > chunks.STEP_LEVELS:
                below = self.trace.tree.below(child.level, child.index)
                return game.open_node(now, ACCUSER, below, proof)
            shown = chunks_below(self.trace, child.level, child.index)
            return game.open_chunks(now, ACCUSER, shown, proof)
        assert game.place is not None
        if game.phase == Phase.PROVING_PART and game.part == game.parts:
            found = evidence_for(self.trace, self.stage.derivation, sources, game.place)
            return game.prove_sum(now, ACCUSER, found, game.stated)
        if game.phase == Phase.PROVING_PART:
            found = evidence_for(self.trace, self.stage.derivation, sources, game.place, game.part)
            return game.prove_part(now, ACCUSER, found, show_stated(game.stated, game.part))
        if self.stage.layout.contains(game.place) and self.stage.derivation.trial(game.place).parts:
            return game.expand(now, ACCUSER, self.partial_sums(game.place))
        tokens, number = self.listed(game)
        found = evidence_for(
            self.trace, self.stage.derivation, sources, game.place, None, tokens, number
        )
        return game.prove(now, ACCUSER, found)

    def listed(self, game: Game) -> tuple[bytes, int]:
        """The list that a place is judged with, and the number of the token that is looked at."""
        choice, layout, place = self.stage.choice, self.stage.layout, game.place
        assert place is not None
        if choice is not None and choice.how == How.OUTSIDE_TOP_K:
            return self.tokens, place.item
        if choice is None or place != layout.verdicts[0]._replace(item=place.item):
            return game.tokens, 0
        return game.tokens, token_behind(game.tokens, logits_of(self.trace))

    def partial_sums(self, place: Place) -> bytes:
        sources = self.stage.sources(self.outputs)
        return Checker(self.stage.derivation, sources).partial_sums(self.trace, place)


@dataclass(frozen=True)
class LyingInParts(Accusation):
    """States partial sums that add up to a forged value."""

    def partial_sums(self, place: Place) -> bytes:
        import struct

        right = struct.unpack(
            "<" + "d" * (len(super().partial_sums(place)) // 8), super().partial_sums(place)
        )
        leaf = self.stage.derivation.trial(place).whole
        off = self.trace[place] - sum(right)
        if leaf.weights is not None:
            off = 0.0  # with a bias the test forges the sum only
        return struct.pack(f"<{len(right)}d", right[0] + off, *right[1:])


@dataclass(frozen=True)
class Defence:
    """An accused that has the accuser's trace and checks every leaf of it."""

    accusation: Accusation

    def first_fault(self, places: Iterable[Place] | None = None) -> Place | None:
        a = self.accusation
        checker = Checker(a.stage.derivation, a.stage.sources(a.outputs))
        return next(faults(checker, a.trace, places), None)

    def bad_part(self, place: Place, stated: bytes) -> int:
        a = self.accusation
        checker = Evaluator(a.stage.derivation, a.stage.sources(a.outputs))
        parts = range(len(stated) // 8)
        wrong = (k for k in parts if checker.part_ruling(a.trace, place, k, stated) != 1)
        return next(wrong, len(parts))


@dataclass(frozen=True)
class Blind:
    """An accused that is shown nothing but what stands on chain, and knows its own trace."""

    own: HeldTrace
    checker: Checker

    @classmethod
    def of(cls, stage: Stage, outputs: CommittedRows) -> Blind:
        own = stage.evaluate(outputs)
        return cls(own, Checker(stage.derivation, stage.sources(outputs)))

    def move(self, game: Game, now: int, shown: list[bytes]) -> Game:
        """`shown` are the hashes below the node that was opened last, or the chunks."""
        node = game.node
        assert node is not None
        if node.level == 0:
            return game.point(now, OPERATOR, answer.place_among(self.own, node.index, shown))
        child = answer.differing(self.own.tree.below(node.level, node.index), shown)
        if child is None:
            return game.point(now, OPERATOR, self.own.layout.verdicts[0])
        return game.pick(now, OPERATOR, child)

    def pick_part(self, game: Game, now: int) -> Game:
        """The first partial sum that is not the right one."""
        assert game.place is not None
        right = self.checker.partial_sums(self.own, game.place)
        return game.pick_part(now, OPERATOR, answer.wrong_part(right, game.stated))


def logits_of(trace: HeldTrace) -> list[float]:
    """The numbers that a token's verdict is about."""
    layout = trace.layout
    verdict = layout.verdicts[0]
    op = layout.op(verdict.section, verdict.op).a
    return [trace[Place(verdict.section, op, 0, 0, i)] for i in range(layout.program.vocab)]


def play_blind(
    accusation: Accusation, blind: Blind, silent_after: int | None = None
) -> tuple[Game, int]:
    """A game against an accused that is handed nothing off chain.

    The accuser falls silent after some moves, if at all.
    """
    now, moves, answers = 0, 1, 0
    game = accusation.accuse(accusation.open(now), now)
    while game.phase not in (Phase.RULED, Phase.EXECUTED):
        moves += 1
        if game.phase == Phase.PICKING:
            game = blind.move(game, now, shown_in(accusation, game))
        elif game.phase == Phase.PICKING_PART:
            game = blind.pick_part(game, now)
        elif answers == silent_after:
            game = game.timeout(game.ends_at + 1)
        else:
            answers += 1
            game = accusation.answer(game, now)
    return game, moves


def chunks_below(trace: HeldTrace, level: int, index: int) -> list[bytes]:
    """The chunks below a node."""
    return trace.chunks[index << level : (index + 1) << level]


def shown_in(accusation: Accusation, game: Game) -> list[bytes]:
    """What the accuser's last move showed."""
    node, trace = game.node, accusation.trace
    assert node is not None
    if node.level == 0:
        level = lowest(trace.tree.height)
        return chunks_below(trace, level, node.index >> level)
    return trace.tree.below(node.level, node.index)


def lowest(height: int) -> int:
    """Level of the nodes that are opened to their values, in a tree of this height."""
    level = max(height - chunks.STEP_LEVELS, 0)
    while level > chunks.STEP_LEVELS:
        level -= chunks.STEP_LEVELS
    return level


def play(
    accusation: Accusation,
    place: Place,
    *,
    descend: bool = False,
    defence: Defence | None = None,
    rng: random.Random | None = None,
) -> tuple[Game, int]:
    """A game in which the accused points at `place`, straight away or after a descent to it.

    Returns its end and its moves.
    """
    now, moves = 0, 1
    game = accusation.accuse(accusation.open(now), now)
    if descend:
        chunk = accusation.stage.layout.first_chunk(place) + place.item // 8
        while game.node is not None and game.node.level:
            step = min(chunks.STEP_LEVELS, game.node.level)
            child = (chunk >> (game.node.level - step)) - (game.node.index << step)
            game = game.pick(now, OPERATOR, child)
            game = accusation.answer(game, now)
            moves += 2
    game = accusation.answer(game.point(now, OWNER, place), now)
    moves += 2
    if game.phase == Phase.PICKING_PART:
        part = 0
        if defence is not None:
            part = defence.bad_part(place, game.stated)
        elif rng is not None:
            part = rng.randrange(game.parts + 1)
        game = accusation.answer(game.pick_part(now, OPERATOR, part), now)
        moves += 2
    return game, moves


def ended(game: Game) -> Verdict:
    assert game.phase == Phase.RULED
    return game.verdict


__all__ = [
    "ACCUSER",
    "Accusation",
    "Blind",
    "Defence",
    "Evidence",
    "LyingInParts",
    "OPERATOR",
    "OWNER",
    "REQUESTER",
    "TraceRun",
    "PARAMETERS",
    "all_places",
    "ended",
    "play",
    "play_blind",
    "replace",
    "request_leaf",
]
