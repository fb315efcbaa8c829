"""Whose move is it in a tolerance game, what may it be, and who pays in the end? (`docs/trust.md` §3)

A pure state machine: every move takes the time and the caller, and returns the next state or raises GameError where the
contract reverts, with the same name. Twin: contracts/src/ToleranceGame.sol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from core.protocol import commit
from core.protocol.referee import Ruling
from core.protocol.trace import chunks
from core.protocol.trace.evidence import Evidence, EvidenceError
from core.protocol.trace.judge import Case, ClaimError, at_fault
from core.protocol.trace.layout import Place

#: Moves of a game at most, `open` and `execute` not counted: seven rounds of 32, then element and part.
MAX_TURNS = 20


class Phase(IntEnum):
    """`IToleranceGame.Phase`."""

    NONE = 0
    OPENED = 1
    PICKING = 2
    OPENING = 3
    PROVING = 4
    PICKING_PART = 5
    PROVING_PART = 6
    RULED = 7
    EXECUTED = 8


#: Who loses by silence in which phase: the accuser, or the accused.
ACCUSER_TURNS = frozenset({Phase.OPENED, Phase.OPENING, Phase.PROVING, Phase.PROVING_PART})
ACCUSED_TURNS = frozenset({Phase.PICKING, Phase.PICKING_PART})


class Verdict(IntEnum):
    """`IArbitrator.Status`."""

    NONE = 0
    OPEN = 1
    FAULT = 2
    NO_FAULT = 3
    NO_RULING = 4


class GameError(Exception):
    """A move that the contract refuses; `name` is its error there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Terms:
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
    """A node of the trace's tree whose children are known: number `index` of `level`."""

    level: int
    index: int
    hash: bytes


@dataclass(frozen=True)
class Game:
    """One dispute. The case appears with `accuse`; `node` is the deepest that was opened, `child` what was picked under it."""

    terms: Terms
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
    stated: bytes = b""
    part: int = 0
    payout_at: int = 0

    # --- the accuser's moves ---

    def accuse(
        self,
        now: int,
        caller: str,
        case: Case,
        position: int,
        proof: Sequence[bytes],
        below: Sequence[bytes],
    ) -> Game:
        """Post the claim, its request's place among the receipt's, and what is below the trace's root."""
        self._accuser_turn(now, caller, Phase.OPENED)
        try:
            case.check_claim()
        except ClaimError:
            raise GameError("ClaimInvalid") from None
        leaf = commit.leaf_hash(commit.request_leaf_bytes(case.claim.leaf))
        if not commit.verify_proof(self.requests_root, self.requests, position, leaf, proof):
            raise GameError("RequestUnproven")
        level = chunks.height(case.layout.chunks)
        root = Node(level, 0, case.claim.trace_root)
        if self._folded(case, root, below) != root.hash:
            raise GameError("OpeningWrong")
        return replace(self._turn(now, Phase.PICKING), case=case, node=root)

    def open_node(
        self, now: int, caller: str, below: Sequence[bytes], proof: Sequence[bytes]
    ) -> Game:
        """Open the picked child: what is below it, and its siblings up to the node before."""
        self._accuser_turn(now, caller, Phase.OPENING)
        node = self._child()
        if node.level <= chunks.STEP_LEVELS:
            raise GameError("ValuesDue")
        node = replace(node, hash=self._folded(self._case(), node, below))
        self._check_child(node, proof)
        return replace(self._turn(now, Phase.PICKING), node=node)

    def open_values(self, now: int, caller: str, data: bytes, proof: Sequence[bytes]) -> Game:
        """Show the values of the picked child: at most 32 chunks."""
        self._accuser_turn(now, caller, Phase.OPENING)
        case, node = self._case(), self._child()
        first = node.index << node.level
        last = min((node.index + 1) << node.level, case.layout.chunks)
        if node.level > chunks.STEP_LEVELS:
            raise GameError("HashesDue")
        hashes, at = [], 0
        for chunk in range(first, last):
            size = case.layout.chunk_bytes(chunk)
            hashes.append(commit.leaf_hash(data[at : at + size]))
            at += size
        if at != len(data):
            raise GameError("OpeningWrong")
        self._check_child(replace(node, hash=chunks.fold(hashes, node.level)), proof)
        return replace(self._turn(now, Phase.PICKING), node=Node(0, first, b""))

    def prove(self, now: int, caller: str, evidence: Evidence) -> Game:
        """Open the operands of the element that was pointed at."""
        self._accuser_turn(now, caller, Phase.PROVING)
        case, place = self._case(), self._place()
        if not case.layout.contains(place):
            return self._verdict(now, Verdict.FAULT)  # who points at nothing has found nothing
        if case.trial(place).parts:
            raise GameError("PartsDue")
        return self._rule(now, evidence, b"")

    def expand(self, now: int, caller: str, evidence: Evidence, stated: bytes) -> Game:
        """State the partial sums of an element of many terms. If they do not add up to it, that is the ruling."""
        self._accuser_turn(now, caller, Phase.PROVING)
        case, place = self._case(), self._place()
        if not case.layout.contains(place) or not case.trial(place).parts:
            raise GameError("NoParts")
        ruled = self._rule(now, evidence, stated)
        if ruled.verdict != Verdict.FAULT:
            return ruled
        return replace(self._turn(now, Phase.PICKING_PART), stated=stated)

    def prove_part(self, now: int, caller: str, evidence: Evidence) -> Game:
        """Open the operands of the partial sum that was picked."""
        self._accuser_turn(now, caller, Phase.PROVING_PART)
        case, place = self._case(), self._place()
        try:
            ruling = case.rule_part(place, self.part, evidence, self.stated)
        except EvidenceError:
            raise GameError("EvidenceWrong") from None
        return self._ruled(now, ruling)

    # --- the accused's moves ---

    def pick(self, now: int, caller: str, child: int) -> Game:
        """Name a child of the node that was opened last."""
        self._accused_turn(now, caller, Phase.PICKING)
        assert self.node is not None
        if self.node.level == 0 or child not in self._children():
            raise GameError("ChildUnknown")
        return replace(self._turn(now, Phase.OPENING), child=child)

    def point(self, now: int, caller: str, place: Place) -> Game:
        """Name an element, wherever it is, or the verdict. Who names none that there is loses when the accuser next moves."""
        self._accused_turn(now, caller, Phase.PICKING)
        return replace(self._turn(now, Phase.PROVING), place=place)

    def pick_part(self, now: int, caller: str, part: int) -> Game:
        self._accused_turn(now, caller, Phase.PICKING_PART)
        if not 0 <= part < self._case().trial(self._place()).parts:
            raise GameError("PartUnknown")
        return replace(self._turn(now, Phase.PROVING_PART), part=part)

    # --- anyone ---

    def timeout(self, now: int) -> Game:
        """Whoever was silent loses."""
        if self.phase not in ACCUSER_TURNS | ACCUSED_TURNS:
            raise GameError("WrongPhase")
        if now <= self.ends_at:
            raise GameError("ClockRunning")
        silent_accused = self.phase in ACCUSED_TURNS
        return self._verdict(now, Verdict.FAULT if silent_accused else Verdict.NO_FAULT)

    def execute(self, now: int) -> tuple[Game, dict[str, int]]:
        """Move the money: who is credited how much of the bond. A fault also slashes `slash_bps` of the miner."""
        if self.phase != Phase.RULED:
            raise GameError("WrongPhase")
        if now < self.payout_at:
            raise GameError("PayoutNotReady")
        to_accused = self.verdict == Verdict.NO_FAULT
        return (
            replace(self, phase=Phase.EXECUTED),
            {"accused" if to_accused else "accuser": self.terms.bond},
        )

    # --- internals ---

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
        return replace(self, phase=phase, ends_at=now + self.terms.turn_s)

    def _case(self) -> Case:
        assert self.case is not None
        return self.case

    def _place(self) -> Place:
        assert self.place is not None
        return self.place

    def _child(self) -> Node:
        """The picked child, its hash not yet known."""
        assert self.node is not None
        step = min(chunks.STEP_LEVELS, self.node.level)
        return Node(self.node.level - step, (self.node.index << step) + self.child, b"")

    def _children(self) -> range:
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

    def _rule(self, now: int, evidence: Evidence, stated: bytes) -> Game:
        try:
            ruling = self._case().rule(self._place(), evidence, stated)
        except (EvidenceError, IndexError):
            raise GameError("EvidenceWrong") from None
        return self._ruled(now, ruling)

    def _ruled(self, now: int, ruling: Ruling) -> Game:
        place = self._place()
        kind = self._case().layout.op(place.section, place.op).kind
        fault = at_fault(ruling, kind)
        if fault is None:
            return self._verdict(now, Verdict.NO_RULING)
        return self._verdict(now, Verdict.FAULT if fault else Verdict.NO_FAULT)

    def _verdict(self, now: int, verdict: Verdict) -> Game:
        payout_at = now + self.terms.payout_delay_s
        return replace(self, phase=Phase.RULED, verdict=verdict, payout_at=payout_at)


def opened(
    terms: Terms,
    now: int,
    accuser: str,
    accused: frozenset[str],
    requester: str,
    requests_root: bytes,
    requests: int,
) -> Game:
    """A game as `TaskRegistry.dispute` opens it: the bond is taken, the accuser's clock runs."""
    return Game(
        terms,
        accuser,
        accused,
        requester,
        requests_root,
        requests,
        Phase.OPENED,
        now + terms.turn_s,
    )
