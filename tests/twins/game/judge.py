"""What does the chain rule on opened evidence?

Twin: contracts/src/trace/TraceJudge.sol.
"""

from __future__ import annotations

from itertools import pairwise

from eth_utils.crypto import keccak

from core.dispute.referee import LeafKind, Ruling, rule
from core.dispute.trace.answer import to_ids
from core.dispute.trace.derive import DerivedLeaf, How
from core.dispute.trace.evidence import Evidence, EvidenceError
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import VALUE_BYTES, Place


class Forfeit(Exception):
    """A list of tokens that proves nothing: its author loses by it, with this ruling."""

    def __init__(self, ruling: Ruling) -> None:
        super().__init__(ruling.name)
        self.ruling = ruling


def rule_value(case: Case, place: Place, evidence: Evidence, stated: bytes = b"") -> Ruling:
    """On the value at `place` and its operands.

    Of many terms, on whether the `stated` parts add up to it. Raises EvidenceError where the
    contract reverts, IndexError if there is no such place.
    """
    named, witness = None, evidence.witness
    if case.layout.op(place.section, place.op).kind == LeafKind.GREEDY:
        try:
            named, witness = token_of(case, place, evidence), 0
        except Forfeit as found:
            return found.ruling
    elif not 0 <= witness < case.claim.positions:
        raise IndexError(f"no position {witness}")
    trial = case.derivation.trial(place, witness, named)
    if len(stated) != trial.parts * VALUE_BYTES:
        raise EvidenceError(f"{len(stated)} bytes of {trial.parts} partial sums")
    return _rule(case, trial.whole, case.open_value(place, evidence) + stated, evidence)


def rule_part(case: Case, place: Place, part: int, evidence: Evidence, stated: bytes) -> Ruling:
    """On partial sum `part` of those stated for the value at `place`.

    Raises EvidenceError where the contract reverts.
    """
    parts = case.derivation.trial(place).parts
    if part >= parts:
        raise EvidenceError(f"partial sum {part} of {parts}")
    first = stated[part * VALUE_BYTES : (part + 1) * VALUE_BYTES]
    return _rule(case, case.derivation.part(place, part), first, evidence)


def token_of(case: Case, place: Place, evidence: Evidence) -> int | None:
    """The token of a list that is looked at; None if there is no list.

    The accused names one of the accuser's list, the accuser one of the accused's. Raises Forfeit
    where the list is none of `top_k` tokens in ascending order.
    """
    choice, tokens = case.claim.choice, evidence.tokens
    outside = choice is not None and choice.how == How.OUTSIDE_TOP_K
    if choice is None or not (outside or (choice.how == How.AHEAD and tokens)):
        return None
    if outside and keccak(tokens) != choice.listed:
        raise EvidenceError("another list")
    ids = to_ids(tokens)
    own = choice.served if outside else choice.preferred
    rising = len(tokens) == 4 * choice.top_k > 0 and all(a < b for a, b in pairwise(ids))
    if not rising or ids[-1] >= case.program.vocab or own in ids:
        raise Forfeit(Ruling.FAILS if outside else Ruling.HOLDS)
    number = place.item if outside else evidence.witness
    if number < len(ids):
        return ids[number]
    if outside:
        raise Forfeit(Ruling.HOLDS)  # the accused named none of them
    raise EvidenceError(f"token {number} of a list of {len(ids)}")


def at_fault(ruling: Ruling, kind: LeafKind, of_token: bool) -> bool | None:
    """Whether the accused is at fault; `of_token` where a token is accused.

    None where nobody is: the model, or what it was sent, is no number. What enters a token's trace
    is a row that the accused signed itself.
    """
    if ruling == Ruling.ROW_MALFORMED:
        return True if of_token or kind == LeafKind.WHITEN_DIFFERENCE else None
    return {Ruling.HOLDS: True, Ruling.FAILS: False, Ruling.MODEL_MALFORMED: None}[ruling]


def _rule(case: Case, leaf: DerivedLeaf, first: bytes, evidence: Evidence) -> Ruling:
    found = case.open_leaf(leaf, first, evidence)
    return Ruling.ROW_MALFORMED if found is None else rule(found)
