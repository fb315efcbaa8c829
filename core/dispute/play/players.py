"""What is the next move of an accuser that has the trace of its claim, and of an accused that has it too?

Both compute the same trace from what was signed, so the accused needs nothing from the accuser: it goes
down to the first hash that is not its own, and points at the first value that differs. Everything before
it is equal, so its operands are right and it is not.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from core.dispute.game.dispute import Phase
from core.dispute.game.game_log import Seen
from core.dispute.play.held import ShardSources, ShardTrace
from core.dispute.play.loop import Move
from core.dispute.referee import Ruling, rule
from core.dispute.trace import chunks
from core.dispute.trace.answer import place_among, wrong_part
from core.dispute.trace.calls import claim_tuple, evidence_tuple, opening_tuple, row_tuple
from core.dispute.trace.check import Checker
from core.dispute.trace.derive import Boundary, How
from core.dispute.trace.evaluate import Evaluator
from core.dispute.trace.evidence import Evidence, show_stated
from core.dispute.trace.held import evidence_for, referee_leaf
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import VALUE_BYTES, Place
from core.dispute.trace.program import Form
from core.protocol import commit

_TOKEN = struct.Struct(">I")


@dataclass(frozen=True)
class Player:
    """A claim with the trace of what it is about."""

    case: Case
    trace: ShardTrace
    sources: ShardSources
    listed: bytes = b""  # tokens that the claim says are ahead of one outside top-k

    @cached_property
    def checker(self) -> Checker:
        return Checker(self.case.derivation, self.case.layout, self.sources)

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.case.derivation, self.case.layout, self.sources)

    @property
    def verdict(self) -> Place:
        """Where the claim's comparison stands."""
        last = len(self.case.layout.section_types) - 1
        return Place(last, len(self.case.layout.section(last).ops) - 1)

    @property
    def below_root(self) -> list[bytes]:
        tree = self.trace.tree
        return tree.below(tree.height, 0)

    def is_convicting(self) -> bool:
        """Whether the claim's verdict stands, whatever the accused answers it with."""
        return self.answer_to_verdict() is None

    def answer_to_verdict(self) -> Move | None:
        """The pointing at the verdict by which a false claim about these values falls; None where it stands."""
        choice, place = self.case.claim.choice, self.verdict
        if choice is None:
            holds = self.checker.ruling(self.trace, place) == Ruling.HOLDS
            return None if holds else Move("point", (tuple(place),))
        if choice.how == How.OUTSIDE_TOP_K:
            return self._answer_to_list()
        logits = self._logits()
        largest = int(np.argmax(logits))
        if choice.how == How.AHEAD and choice.min_p_micro:
            place = place._replace(item=largest)
        if not self._holds(place, None):
            return Move("point", (tuple(place),))
        if choice.how != How.AHEAD or not choice.top_k:
            return None
        order = [int(i) for i in np.argsort(-logits, kind="stable") if i != choice.preferred]
        named = sorted(order[: choice.top_k])
        if len(named) < choice.top_k or any(self._holds(place, token) for token in named):
            return None
        return Move("pointWith", (tuple(place), b"".join(map(_TOKEN.pack, named))))

    def _answer_to_list(self) -> Move | None:
        """A token of the claim's list that is not ahead of the served one, or a list that proves nothing."""
        choice, place = self.case.claim.choice, self.verdict
        assert choice is not None
        ids = [_TOKEN.unpack_from(self.listed, at)[0] for at in range(0, len(self.listed), 4)]
        rising = len(ids) == choice.top_k and all(a < b for a, b in pairwise(ids))
        if not rising or ids[-1] >= self.case.program.vocab or choice.served in ids:
            return Move("point", (tuple(place),))
        for number, token in enumerate(ids):
            if not self._holds(place, token):
                return Move("point", (tuple(place._replace(item=number)),))
        return None

    def _holds(self, place: Place, named: int | None) -> bool:
        leaf = self.case.derivation.trial(place, 0, named).whole
        return rule(referee_leaf(self.trace, leaf, self.sources, b"")) == Ruling.HOLDS

    def _logits(self) -> Any:
        place = self.verdict
        op = self.case.layout.op(place.section, place.op)
        return self.trace.values.array(place.section, op.a)[0, 0]

    def value_at(self, place: Place) -> float | None:
        """Our own value there; None where a verdict stands, or nothing."""
        layout = self.case.layout
        if not layout.contains(place) or layout.op(place.section, place.op).form == Form.VERDICT:
            return None
        return self.trace[place]

    def partial_sums(self, place: Place) -> bytes:
        return self.evaluator.partial_sums(self.trace, place)


class Accuser(Player):
    """Opens what it is asked for."""

    def answer(self, seen: Seen) -> Move | None:
        """The accuser's move where it is its turn after the accusation."""
        claim = claim_tuple(self.case.claim)
        match seen.phase:
            case Phase.OPENING:
                return self._open(seen)
            case Phase.PROVING:
                assert seen.place is not None
                return self._prove(seen, seen.place, claim)
            case Phase.PROVING_PART:
                assert seen.place is not None
                if seen.part == len(seen.stated) // VALUE_BYTES:
                    found = evidence_for(self.trace, self.case.derivation, self.sources, seen.place)
                    return Move(
                        "proveSum", (seen.opened.model, claim, tuple(seen.place), evidence_tuple(found), seen.stated)
                    )  # fmt: skip
                found = evidence_for(
                    self.trace, self.case.derivation, self.sources, seen.place, seen.part
                )
                return Move(
                    "provePart", (seen.opened.model, claim, tuple(seen.place), evidence_tuple(found), opening_tuple(show_stated(seen.stated, seen.part)))
                )  # fmt: skip
        return None

    def _open(self, seen: Seen) -> Move:
        level, index = seen.node
        step = min(chunks.STEP_LEVELS, level)
        child_level, child = level - step, (index << step) + seen.child
        tree = self.trace.tree
        proof = tree.proof(child, child + 1, child_level, step)
        if child_level > chunks.STEP_LEVELS:
            return Move("openNode", (tree.below(child_level, child), proof))
        first, last = child << child_level, min((child + 1) << child_level, tree.count)
        sizes = bytes(self.case.layout.chunk_bytes(chunk) for chunk in range(first, last))
        return Move("openChunks", (self.trace.values.chunk_bytes(first, last), sizes, proof))

    def _prove(self, seen: Seen, place: Place, claim: tuple[Any, ...]) -> Move:
        model = seen.opened.model
        if not self.case.layout.contains(place):
            return Move("prove", (model, claim, evidence_tuple(Evidence(tokens=seen.tokens))))
        if self.case.layout.op(place.section, place.op).form == Form.VERDICT and seen.tokens:
            return Move("prove", (model, claim, evidence_tuple(self._against_list(seen, place))))
        if self.case.trial(place).parts:
            return Move("expand", (self.partial_sums(place),))
        found = evidence_for(self.trace, self.case.derivation, self.sources, place)
        return Move("prove", (model, claim, evidence_tuple(found)))

    def _against_list(self, seen: Seen, place: Place) -> Evidence:
        """One token of the accused's list that does not keep the preferred one out."""
        ids = [_TOKEN.unpack_from(seen.tokens, at)[0] for at in range(0, len(seen.tokens), 4)]
        vocab = self.case.program.vocab
        number = next((i for i, t in enumerate(ids) if t < vocab and self._holds(place, t)), 0)
        if not ids or ids[number] >= vocab:
            return Evidence(tokens=seen.tokens)
        leaf = self.case.derivation.trial(place, 0, ids[number]).whole
        runs = tuple(self.trace.open(run) for run in leaf.runs)
        return Evidence(runs=runs, witness=number, tokens=seen.tokens)


class Accused(Player):
    """Finds the first value that is not its own."""

    def answer(self, seen: Seen) -> Move | None:
        """The accused's move where it is its turn. None: nothing is wrong with the accusation, and no move can win."""
        if seen.phase == Phase.PICKING_PART:
            assert seen.place is not None
            return Move("pickPart", (wrong_part(self.partial_sums(seen.place), seen.stated),))
        if seen.phase != Phase.PICKING:
            return None
        if seen.claim is not None and seen.claim.trace_root == self.trace.tree.root:
            return self.answer_to_verdict()
        level, index = seen.node
        if level == 0:
            return Move("point", (tuple(place_among(self.trace, index, seen.chunks)),))
        mine_below = self.trace.tree.below(level, index)
        for child, (ours, theirs) in enumerate(zip(mine_below, seen.below, strict=True)):
            if ours != theirs:
                return Move("pick", (child,))
        return self.answer_to_verdict()


def reveal(asked: Mapping[str, Any], sources: ShardSources) -> Move:
    """The answer to a question for rows: the parts that it names."""
    spots = [(spot["side"], spot["row"], spot["part"]) for spot in asked["spots"]]
    openings = [
        row_tuple(sources.open_row(Boundary(side), row, part * commit.PART_BYTES))
        for side, row, part in spots
    ]
    return Move("reveal", (asked["rows"], spots, openings))


def with_trace(case: Case, trace: ShardTrace) -> Case:
    """The case with this trace's root as its claim's."""
    return replace(case, claim=replace(case.claim, trace_root=trace.tree.root))
