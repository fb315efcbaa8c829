"""What is the next move of an accuser, and of an accused, that has the trace of the claim?

Both compute the same trace from what was signed, so the accused needs nothing from the accuser: it
goes down to the first hash that is not its own, and points at the first value that differs.
Everything before it is equal, so its operands are right and it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np

from core.dispute.game.dispute import Phase
from core.dispute.game.game_log import Seen
from core.dispute.play.held import ShardSources, ShardTrace, pleaded_trace
from core.dispute.play.loop import Move
from core.dispute.play.plea import winning_seed
from core.dispute.play.values import Floats
from core.dispute.referee import LeafKind, Ruling, rule
from core.dispute.trace import chunks
from core.dispute.trace.answer import (
    differing,
    likeliest,
    place_among,
    to_ids,
    to_tokens,
    wrong_part,
)
from core.dispute.trace.calls import claim_tuple, evidence_tuple, opening_tuple, row_tuple
from core.dispute.trace.check import Checker
from core.dispute.trace.derive import Boundary, Choice, How
from core.dispute.trace.evidence import Evidence, show_stated
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import VALUE_BYTES, Place
from core.dispute.trace.operands import evidence_for, referee_leaf
from core.dispute.trace.program import Form
from core.protocol import commit


@dataclass(frozen=True)
class Player:
    """A claim with the trace of what it is about."""

    case: Case
    trace: ShardTrace
    sources: ShardSources
    listed: bytes = b""  # tokens that the claim says are ahead of one outside top-k

    _pleaded: dict[int, Self] = field(default_factory=dict, repr=False, compare=False)

    def at(self, plea: int | None) -> Self:
        """The same side where the claim was restated after this plea, with a trace of its own."""
        if plea is None or plea == self.case.claim.plea:
            return self
        if plea not in self._pleaded:
            case = replace(self.case, claim=replace(self.case.claim, plea=plea))
            folder = self.trace.folder and self.trace.folder / f"plea-{plea}"
            trace = pleaded_trace(case.layout, self.sources, self.trace, folder=folder)
            self._pleaded[plea] = replace(self, case=with_trace(case, trace), trace=trace)
        return self._pleaded[plea]

    @cached_property
    def checker(self) -> Checker:
        return Checker(self.case.derivation, self.sources)

    @property
    def below_root(self) -> list[bytes]:
        tree = self.trace.tree
        return tree.below(tree.height, 0)

    def is_convicting(self) -> bool:
        """Whether the claim's verdict stands, whatever the accused answers it with."""
        return self.answer_to_verdict() is None

    def answer_to_verdict(self) -> Move | None:
        """The pointing by which a false claim about these values falls; None where it stands."""
        choice, places = self.case.claim.choice, self.case.layout.verdicts
        place = places[0]
        if choice is not None and choice.how == How.OUTSIDE_TOP_K:
            return self._answer_to_list(choice, place)
        if choice is None or choice.how != How.AHEAD:
            false = next((place for place in places if not self._holds(place)), None)
            return None if false is None else _point(false)
        logits = self._logits()
        if choice.min_p_micro:
            place = place._replace(item=int(np.argmax(logits)))
        if not self._holds(place):
            return _point(place)
        named = likeliest(logits, choice.preferred, choice.top_k)
        if not named or any(self._holds(place, token) for token in named):
            return None
        return Move("pointWith", (tuple(place), to_tokens(named)))

    def _answer_to_list(self, choice: Choice, place: Place) -> Move | None:
        """Names a token of the claim's list that is not ahead of the served one."""
        ids = to_ids(self.listed)
        rising = len(ids) == choice.top_k and all(a < b for a, b in pairwise(ids))
        if not rising or ids[-1] >= self.case.program.vocab or choice.served in ids:
            return _point(place)
        behind = (n for n, token in enumerate(ids) if not self._holds(place, token))
        number = next(behind, None)
        return None if number is None else _point(place._replace(item=number))

    def _holds(self, place: Place, named: int | None = None) -> bool:
        """Whether the verdict at `place` holds, of token `named` of a list if there is one."""
        leaf = self.case.derivation.trial(place, 0, named).whole
        return rule(referee_leaf(self.trace, leaf, self.sources, b"")) == Ruling.HOLDS

    def _logits(self) -> Floats:
        """[V], of the position whose token is accused."""
        (place,) = self.case.layout.verdicts
        op = self.case.layout.op(place.section, place.op)
        return self.trace.values.array(place.section, op.a)[0, 0]

    def value_at(self, place: Place) -> float | None:
        """Our own value there; None where a verdict stands, or nothing."""
        layout = self.case.layout
        if not layout.contains(place) or layout.op(place.section, place.op).form == Form.VERDICT:
            return None
        return self.trace[place]


class Accuser(Player):
    """Opens what it is asked for."""

    def answer(self, seen: Seen) -> Move | None:
        """The accuser's move where it is its turn after the accusation."""
        if seen.phase == Phase.PLEADED:
            again = self.at(seen.plea)
            claim = claim_tuple(again.case.claim)
            return Move("restate", (seen.opened.model, claim, again.below_root))
        assert seen.claim is not None
        if seen.claim.plea != self.case.claim.plea:
            return self.at(seen.claim.plea).answer(seen)
        if seen.phase == Phase.OPENING:
            return self._open(seen)
        model, claim, place = seen.opened.model, claim_tuple(self.case.claim), seen.place
        if seen.phase == Phase.PROVING:
            assert place is not None
            if self.case.layout.contains(place) and self.case.derivation.trial(place).parts:
                return Move("expand", (self.checker.partial_sums(self.trace, place),))
            return Move("prove", (model, claim, evidence_tuple(self._evidence(seen, place))))
        if seen.phase != Phase.PROVING_PART:
            return None
        assert place is not None
        is_sum = seen.part == len(seen.stated) // VALUE_BYTES
        part = None if is_sum else seen.part
        found = evidence_for(self.trace, self.case.derivation, self.sources, place, part)
        proof = (model, claim, tuple(place), evidence_tuple(found))
        if is_sum:
            return Move("proveSum", (*proof, seen.stated))
        return Move("provePart", (*proof, opening_tuple(show_stated(seen.stated, seen.part))))

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

    def _evidence(self, seen: Seen, place: Place) -> Evidence:
        """For the value at `place`, with the list that it is judged with.

        The contract takes no proof without the accused's own list, wherever it pointed with it.
        """
        layout, choice = self.case.layout, self.case.claim.choice
        tokens, number = seen.tokens, 0
        if not layout.contains(place):
            return Evidence(tokens=tokens)
        is_choice = layout.op(place.section, place.op).kind == LeafKind.GREEDY
        if is_choice and choice is not None and choice.how == How.OUTSIDE_TOP_K:
            tokens, number = self.listed, place.item
        elif is_choice:
            # One that does not keep the preferred token out. Without one, any list loses or wins.
            known = ((n, token) for n, token in enumerate(to_ids(tokens)))
            vocab = self.case.program.vocab
            fitting = (n for n, token in known if token < vocab and self._holds(place, token))
            number = next(fitting, 0)
        derivation = self.case.derivation
        return evidence_for(self.trace, derivation, self.sources, place, None, tokens, number)


class Accused(Player):
    """Finds the first value that is not its own."""

    def answer(self, seen: Seen) -> Move | None:
        """The accused's move where it is its turn.

        None: nothing is wrong with the accusation, and no move can win.
        """
        if seen.claim is not None and seen.claim.plea != self.case.claim.plea:
            return self.at(seen.claim.plea).answer(seen)
        if seen.phase == Phase.PICKING_PART:
            assert seen.place is not None
            own = self.checker.partial_sums(self.trace, seen.place)
            return Move("pickPart", (wrong_part(own, seen.stated),))
        if seen.phase != Phase.PICKING:
            return None
        if seen.claim is not None and seen.claim.trace_root == self.trace.tree.root:
            return self.answer_to_verdict() or self._plead(seen)
        level, index = seen.node
        if level == 0:
            return _point(place_among(self.trace, index, seen.chunks))
        child = differing(self.trace.tree.below(level, index), seen.below)
        return self.answer_to_verdict() if child is None else Move("pick", (child,))

    def _plead(self, seen: Seen) -> Move | None:
        """Names a seed by which the noise of these rows explains the deviation, if one does."""
        if seen.plea is not None or self.case.claim.choice is not None:
            return None
        seed = winning_seed(self.case.layout, self.sources)
        return None if seed is None else Move("plead", (seed,))


def reveal(asked: Mapping[str, Any], sources: ShardSources) -> Move:
    """The answer to a question for rows: the parts that it names."""
    spots = [(spot["side"], spot["row"], spot["part"]) for spot in asked["spots"]]
    openings: Sequence[Any] = [
        row_tuple(sources.open_row(Boundary(side), row, part * commit.PART_BYTES))
        for side, row, part in spots
    ]
    return Move("reveal", (asked["rows"], spots, openings))


def with_trace(case: Case, trace: ShardTrace) -> Case:
    """The case with this trace's root as its claim's."""
    return replace(case, claim=replace(case.claim, trace_root=trace.tree.root))


def _point(place: Place) -> Move:
    return Move("point", (tuple(place),))
