"""Whose move is it in a tolerance game, what may it be, and who pays in the end?

A pure state machine: every move takes the time and the caller, and returns the next state or raises
GameError where the contract reverts, with the same name. Twin: contracts/src/ToleranceGame.sol. See
`docs/trust.md`, moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.dispute.game.dispute import ACCUSED_TURNS, ACCUSER_TURNS, Phase, Verdict
from core.dispute.referee import Ruling
from core.dispute.trace import chunks
from core.dispute.trace.derive import MAX_LISTED, How
from core.dispute.trace.draw import DrawError
from core.dispute.trace.evidence import Evidence, EvidenceError, RowOpening, RunOpening
from core.dispute.trace.judge import Case, ClaimError
from core.dispute.trace.layout import VALUE_BYTES, Place
from core.dispute.trace.rows import SignedRows, Spot
from core.protocol import commit
from core.protocol.types import RequestOpening
from tests.twins.game import judge, rows
from tests.twins.game.draw import Drawn, check_drawn
from tests.twins.game.packing import packed_place, shown_statement, statement
from tests.twins.game.rows import SignedSpan

#: How often an accuser may have rows shown on chain in one dispute.
MAX_ASKS = 3
MAX_PARTS = 2**16 - 1
#: Turns of a game at most: three questions and answers, the accusation, plea and restatement, eight
#: rounds of 32 down to values, then element and part.
MAX_TURNS = 29


class GameError(Exception):
    """A move that the contract refuses; `name` is its error there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class GameParameters:
    """What a deployed game was made with: base units, seconds, basis points."""

    bond: int
    turn_s: int
    payout_delay_s: int
    slash_bps: int = 10_000

    @property
    def max_dispute_s(self) -> int:
        return MAX_TURNS * self.turn_s + self.payout_delay_s


@dataclass(frozen=True)
class Node:
    """A node of the trace's tree whose children are known: number `index` of `level`.

    At level 0 chunks are known, from `index` on: all that are below the node whose hash it is.
    """

    level: int
    index: int
    hash: bytes


@dataclass(frozen=True)
class Game:
    """One dispute.

    The case appears with `accuse`; `node` is the deepest that was opened, `child` what was picked
    under it.
    """

    parameters: GameParameters
    accuser: str
    accused: frozenset[str]  # the miner's owner and its operator
    requester: str
    requests_root: bytes
    requests: int
    phase: Phase
    ends_at: int
    verdict: Verdict = Verdict.OPEN
    case: Case | None = None
    node: Node | None = None
    child: int = 0
    place: Place | None = None
    tokens: bytes = b""  # the list that the accused pointed with
    stated: bytes = b""
    part: int = 0
    payout_at: int = 0
    asks: int = 0
    asked: tuple[SignedRows, tuple[Spot, ...]] | None = None
    opening: RequestOpening | None = None  # of an open order's accused token
    may_plead: bool = False
    seed: int | None = None  # that the accused named
    order_hash: str = ""

    @property
    def parts(self) -> int:
        """How many partial sums were stated."""
        return len(self.stated) // VALUE_BYTES

    # --- the accuser's moves ---

    def accuse(
        self,
        now: int,
        caller: str,
        case: Case,
        position: int,
        proof: Sequence[bytes],
        below: Sequence[bytes],
        span: SignedSpan | None = None,
    ) -> Game:
        """Post the claim, its request's place in the receipt, and the hashes below the root."""
        self._accuser_turn(now, caller, Phase.OPENED)
        if case.claim.choice is not None or case.claim.plea is not None:
            raise GameError("ClaimInvalid")  # a token is accused with its order
        accused = self._accuse(now, case, position, proof, below, span)
        return replace(accused, may_plead=True)

    def accuse_token(
        self,
        now: int,
        caller: str,
        case: Case,
        position: int,
        proof: Sequence[bytes],
        below: Sequence[bytes],
        drawn: Drawn,
    ) -> Game:
        """The same of a served token, with the sampling bytes that it was ordered with."""
        self._accuser_turn(now, caller, Phase.OPENED)
        if case.claim.choice is None:
            raise GameError("ClaimInvalid")
        accused = self._accuse(now, case, position, proof, below)
        try:
            check_drawn(case.claim, self.order_hash, drawn)
        except DrawError as error:
            raise GameError(error.name) from None
        except EvidenceError:
            raise GameError("EvidenceWrong") from None
        return replace(accused, opening=drawn.opening)

    def ask(
        self,
        now: int,
        caller: str,
        signed: SignedRows,
        position: int,
        proof: Sequence[bytes],
        spots: Sequence[Spot],
        span: SignedSpan | None = None,
    ) -> Game:
        """Have the accused show parts of rows of a request: at most six at a time, three times."""
        self._accuser_turn(now, caller, Phase.OPENED)
        if self.asks == MAX_ASKS:
            raise GameError("AskedEnough")
        self._check_request(signed, position, proof, span)
        try:
            rows.check_asked(signed, spots)
        except EvidenceError:
            raise GameError("EvidenceWrong") from None
        return replace(
            self._turn(now, Phase.ASKED), asked=(signed, tuple(spots)), asks=self.asks + 1
        )

    def prove_malformed(
        self,
        now: int,
        caller: str,
        signed: SignedRows,
        position: int,
        proof: Sequence[bytes],
        spot: Spot,
        opening: RowOpening,
        span: SignedSpan | None = None,
    ) -> Game:
        """Show that what the accused signed there is no row. That is the ruling."""
        self._accuser_turn(now, caller, Phase.OPENED)
        self._check_request(signed, position, proof, span)
        try:
            if not rows.is_malformed(signed, spot, opening):
                raise GameError("RowSound")
        except EvidenceError:
            raise GameError("EvidenceWrong") from None
        return self._verdict(now, Verdict.FAULT)

    def restate(self, now: int, caller: str, case: Case, below: Sequence[bytes]) -> Game:
        """Post the trace with a second pass, shaken by the seed that the accused named."""
        self._accuser_turn(now, caller, Phase.PLEADED)
        before = self._case().claim
        same = replace(case.claim, plea=None, trace_root=before.trace_root) == before
        if case.claim.plea != self.seed or not same:
            raise GameError("ClaimMismatch")
        restated = self._state(now, case, below)
        return replace(restated, may_plead=False)

    def open_node(
        self, now: int, caller: str, below: Sequence[bytes], proof: Sequence[bytes]
    ) -> Game:
        """Open the picked child: what is below it, and its siblings up to the node before."""
        self._accuser_turn(now, caller, Phase.OPENING)
        node = self.picked_node()
        if node.level <= chunks.STEP_LEVELS:
            raise GameError("ValuesDue")
        node = replace(node, hash=self._folded(self._case(), node, below))
        self._check_child(node, proof)
        return replace(self._turn(now, Phase.PICKING), node=node)

    def open_chunks(
        self, now: int, caller: str, shown: Sequence[bytes], proof: Sequence[bytes]
    ) -> Game:
        """Open the picked child to its values: the chunks below it, 32 or fewer."""
        self._accuser_turn(now, caller, Phase.OPENING)
        node = self.picked_node()
        if node.level > chunks.STEP_LEVELS:
            raise GameError("HashesDue")
        # Of another length than the layout has, none of a chunk's values can ever be proven.
        first, count = node.index << node.level, self._case().layout.chunks
        if len(shown) != min(1 << node.level, count - first):
            raise GameError("OpeningWrong")
        node = replace(node, hash=chunks.fold(list(map(commit.leaf_hash, shown)), node.level))
        self._check_child(node, proof)
        return replace(self._turn(now, Phase.PICKING), node=Node(0, first, node.hash))

    def prove(self, now: int, caller: str, evidence: Evidence) -> Game:
        """Open the operands of the element that was pointed at."""
        self._accuser_turn(now, caller, Phase.PROVING)
        case, place = self._case(), self._place()
        self._check_list(evidence)
        if not case.layout.contains(place):
            return self._verdict(now, Verdict.FAULT)  # what was pointed at is nothing
        if case.derivation.trial(place).parts:
            raise GameError("PartsDue")
        return self._rule(now, evidence, b"")

    def expand(self, now: int, caller: str, stated: bytes) -> Game:
        """State the partial sums of an element of many terms."""
        self._accuser_turn(now, caller, Phase.PROVING)
        # Of sums that are not those of the place, none can be proven, nor that they add up.
        if not 0 < len(stated) // VALUE_BYTES <= MAX_PARTS or len(stated) % VALUE_BYTES:
            raise GameError("NoParts")
        return replace(self._turn(now, Phase.PICKING_PART), stated=stated)

    def prove_sum(self, now: int, caller: str, evidence: Evidence, stated: bytes) -> Game:
        """Open the element, where the accused says that what was stated does not add up to it."""
        self._accuser_turn(now, caller, Phase.PROVING_PART)
        if self.part != self.parts:
            raise GameError("PartDue")
        if stated != self.stated:
            raise GameError("StatedMismatch")
        if not self._case().layout.contains(self._place()):
            return self._verdict(now, Verdict.FAULT)
        return self._rule(now, evidence, stated)

    def prove_part(self, now: int, caller: str, evidence: Evidence, shown: RunOpening) -> Game:
        """Open the operands of the partial sum that was picked, and itself.

        `shown` are the sixteen stated sums that it is one of.
        """
        self._accuser_turn(now, caller, Phase.PROVING_PART)
        if self.part == self.parts:
            raise GameError("SumDue")
        case, place = self._case(), self._place()
        packed = packed_place(place)
        if shown_statement(packed, self.part, shown) != statement(packed, self.stated):
            raise GameError("StatedMismatch")
        try:
            ruling = judge.rule_part(case, place, self.part, evidence, self.stated)
        except EvidenceError:
            raise GameError("EvidenceWrong") from None
        return self._ruled(now, ruling)

    # --- the accused's moves ---

    def pick(self, now: int, caller: str, child: int) -> Game:
        """Name a child of the node that was opened last."""
        self._accused_turn(now, caller, Phase.PICKING)
        assert self.node is not None
        if self.node.level == 0 or child not in self.children():
            raise GameError("ChildUnknown")
        return replace(self._turn(now, Phase.OPENING), child=child)

    def plead(self, now: int, caller: str, seed: int) -> Game:
        """Have the noise of these rows measured, by shakes that follow from one of 256 seeds."""
        self._accused_turn(now, caller, Phase.PICKING)
        assert self.node is not None
        at_root = self.node.level == chunks.height(self._case().layout.chunks)
        if not self.may_plead:
            raise GameError("NoPlea")
        if not at_root:
            raise GameError("PleaOver")
        return replace(self._turn(now, Phase.PLEADED), seed=seed)

    def point(self, now: int, caller: str, place: Place) -> Game:
        """Name an element, wherever it is, or the verdict.

        An accused that names none that exists loses when the accuser next moves.
        """
        self._accused_turn(now, caller, Phase.PICKING)
        return replace(self._turn(now, Phase.PROVING), place=place, tokens=b"")

    def point_with(self, now: int, caller: str, place: Place, tokens: bytes) -> Game:
        """Point, with `top_k` tokens that keep the preferred one out of a token's verdict.

        The accuser must name one that does not.
        """
        self._accused_turn(now, caller, Phase.PICKING)
        if not 0 < len(tokens) <= 4 * MAX_LISTED:
            raise GameError("ListInvalid")
        return replace(self._turn(now, Phase.PROVING), place=place, tokens=tokens)

    def show_opening(self, now: int, caller: str, opening: RequestOpening, is_signed: bool) -> Game:
        """Show that the requester opened the request twice, with other parameters.

        That is the ruling.
        """
        self._accused_turn(now, caller, Phase.PICKING)
        shown = self.opening
        if shown is None:
            raise GameError("OpeningUnrelated")
        same = (opening.order_hash, opening.request_index) == (
            shown.order_hash,
            shown.request_index,
        )
        if not same or opening.sampling_leaf == shown.sampling_leaf:
            raise GameError("OpeningUnrelated")
        if not is_signed:
            raise GameError("OpeningUnsigned")
        return self._verdict(now, Verdict.NO_FAULT)

    def reveal(self, now: int, caller: str, openings: Sequence[RowOpening]) -> Game:
        """Show the parts of rows that were asked for. The accuser goes on from where it was."""
        self._accused_turn(now, caller, Phase.ASKED)
        assert self.asked is not None
        signed, spots = self.asked
        try:
            rows.check_shown(signed, spots, openings)
        except EvidenceError:
            raise GameError("EvidenceWrong") from None
        return replace(self._turn(now, Phase.OPENED), asked=None)

    def pick_part(self, now: int, caller: str, part: int) -> Game:
        """Name a partial sum that was stated; or, by their number, that they do not add up."""
        self._accused_turn(now, caller, Phase.PICKING_PART)
        if not 0 <= part <= self.parts:
            raise GameError("PartUnknown")
        return replace(self._turn(now, Phase.PROVING_PART), part=part)

    # --- anyone ---

    def timeout(self, now: int) -> Game:
        """The side that was silent loses."""
        if self.phase not in ACCUSER_TURNS | ACCUSED_TURNS:
            raise GameError("WrongPhase")
        if now <= self.ends_at:
            raise GameError("ClockRunning")
        silent_accused = self.phase in ACCUSED_TURNS
        return self._verdict(now, Verdict.FAULT if silent_accused else Verdict.NO_FAULT)

    def execute(self, now: int) -> tuple[Game, dict[str, int]]:
        """Move the money: which side is credited how much of the bond.

        A fault also slashes `slash_bps` of the miner.
        """
        if self.phase != Phase.RULED:
            raise GameError("WrongPhase")
        if now < self.payout_at:
            raise GameError("PayoutNotReady")
        to_accused = self.verdict == Verdict.NO_FAULT
        return (
            replace(self, phase=Phase.EXECUTED),
            {"accused" if to_accused else "accuser": self.parameters.bond},
        )

    # --- internals ---

    def _accuse(
        self,
        now: int,
        case: Case,
        position: int,
        proof: Sequence[bytes],
        below: Sequence[bytes],
        span: SignedSpan | None = None,
    ) -> Game:
        claim = case.claim
        signed = SignedRows(case.program, claim.leaf, claim.layer_from, claim.layer_to)
        try:
            case.check_claim()
        except ClaimError:
            raise GameError("ClaimInvalid") from None
        self._check_request(signed, position, proof, span)
        return self._state(now, case, below)

    def _state(self, now: int, case: Case, below: Sequence[bytes]) -> Game:
        level = chunks.height(case.layout.chunks)
        root = Node(level, 0, case.claim.trace_root)
        if self._folded(case, root, below) != root.hash:
            raise GameError("OpeningWrong")
        return replace(self._turn(now, Phase.PICKING), case=case, node=root)

    def _check_request(
        self,
        signed: SignedRows,
        position: int,
        proof: Sequence[bytes],
        span: SignedSpan | None = None,
    ) -> None:
        """The rows are those of a request that was signed, or of a span of it."""
        leaf = signed.leaf if span is None else span.leaf
        hashed = commit.leaf_hash(commit.request_leaf_bytes(leaf))
        count, index = 2 * self.requests, 2 * position  # beside each request stand its sums
        if not commit.verify_proof(self.requests_root, count, index, hashed, proof):
            raise GameError("RequestUnproven")
        if span is not None and not span.holds(signed):
            raise GameError("SpanUnproven")

    def _accuser_turn(self, now: int, caller: str, phase: Phase) -> None:
        self._in_time(now, phase)
        if caller != self.accuser:
            raise GameError("NotTurn")

    def _accused_turn(self, now: int, caller: str, phase: Phase) -> None:
        self._in_time(now, phase)
        if caller not in self.accused:
            raise GameError("NotTurn")

    def _in_time(self, now: int, phase: Phase) -> None:
        if self.phase != phase:
            raise GameError("WrongPhase")
        if now > self.ends_at:
            raise GameError("ClockOver")

    def _turn(self, now: int, phase: Phase) -> Game:
        return replace(self, phase=phase, ends_at=now + self.parameters.turn_s)

    def _case(self) -> Case:
        assert self.case is not None
        return self.case

    def _place(self) -> Place:
        assert self.place is not None
        return self.place

    def picked_node(self) -> Node:
        """The picked child, its hash not yet known."""
        assert self.node is not None
        step = min(chunks.STEP_LEVELS, self.node.level)
        return Node(self.node.level - step, (self.node.index << step) + self.child, b"")

    def children(self) -> range:
        assert self.node is not None
        step = min(chunks.STEP_LEVELS, self.node.level)
        wide = chunks.width(self._case().layout.chunks, self.node.level - step)
        return range(min(1 << step, wide - (self.node.index << step)))

    @staticmethod
    def _folded(case: Case, node: Node, below: Sequence[bytes]) -> bytes:
        """The hash of `node` by what is said to be below it."""
        step = min(chunks.STEP_LEVELS, node.level)
        wide = chunks.width(case.layout.chunks, node.level - step)
        if len(below) != min(1 << step, wide - (node.index << step)):
            raise GameError("OpeningWrong")
        return chunks.fold(below, step)

    def _check_child(self, child: Node, proof: Sequence[bytes]) -> None:
        """`child` is under the node that was opened before."""
        assert self.node is not None
        count = chunks.width(self._case().layout.chunks, child.level)
        levels = self.node.level - child.level
        top = chunks.climb([child.hash], child.index, count, levels, proof)
        if top != self.node.hash:
            raise GameError("OpeningWrong")

    def _check_list(self, evidence: Evidence) -> None:
        """An accuser answers the accused's list, and brings none of its own."""
        choice = self._case().claim.choice
        if (choice is None or choice.how == How.AHEAD) and evidence.tokens != self.tokens:
            raise GameError("ListMismatch")

    def _rule(self, now: int, evidence: Evidence, stated: bytes) -> Game:
        try:
            ruling = judge.rule_value(self._case(), self._place(), evidence, stated)
        except (EvidenceError, IndexError):
            raise GameError("EvidenceWrong") from None
        return self._ruled(now, ruling)

    def _ruled(self, now: int, ruling: Ruling) -> Game:
        place = self._place()
        case = self._case()
        kind = case.layout.op(place.section, place.op).kind
        fault = judge.at_fault(ruling, kind, case.claim.choice is not None)
        if fault is None:
            return self._verdict(now, Verdict.NO_RULING)
        return self._verdict(now, Verdict.FAULT if fault else Verdict.NO_FAULT)

    def _verdict(self, now: int, verdict: Verdict) -> Game:
        payout_at = now + self.parameters.payout_delay_s
        return replace(self, phase=Phase.RULED, verdict=verdict, payout_at=payout_at)


def opened(
    parameters: GameParameters,
    now: int,
    accuser: str,
    accused: frozenset[str],
    requester: str,
    requests_root: bytes,
    requests: int,
    order_hash: str = "",
) -> Game:
    """A game as `TaskRegistry.dispute` opens it: the bond is taken, the accuser's clock runs."""
    return Game(
        parameters,
        accuser,
        accused,
        requester,
        requests_root,
        requests,
        Phase.OPENED,
        now + parameters.turn_s,
        order_hash=order_hash,
    )
