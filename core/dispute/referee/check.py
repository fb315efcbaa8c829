"""Does this leaf hold, and who is at fault where the bytes are no numbers?

What the programs and the chain ask alike: contracts/src/referee/Referee.sol gives the same answer
to the same leaf.
"""

from __future__ import annotations

from collections.abc import Callable

from core.dispute.referee import selection, window
from core.dispute.referee.exact import exact_value
from core.dispute.referee.leaf import Leaf, LeafKind, MalformedOperand, Ruling

Predicate = Callable[[tuple[int, ...], bytes], bool]

#: The comparisons at a trace's end; every other kind has one right result.
VERDICTS: dict[LeafKind, Predicate] = {
    LeafKind.EXCEEDS: window.exceeds,
    LeafKind.GREEDY: selection.greedy,
    LeafKind.GUMBEL: selection.gumbel_max,
    LeafKind.OUTSIDE_MIN_P: selection.outside_min_p,
}


def rule(leaf: Leaf) -> Ruling:
    """What the referee rules on this leaf.

    Raises LeafError where the contract reverts: parameters or lengths that no leaf of this kind can
    have. Those come from the model's operator program, not from a party, so no move of a dispute
    can cause one. KeyError for a kind that no program holds.
    """
    verdict = VERDICTS.get(leaf.kind)
    try:
        if verdict is None:
            holds = exact_value(leaf) == leaf.operands[:8]
        else:
            holds = verdict(leaf.params, leaf.operands)
    except MalformedOperand as found:
        return found.ruling
    return Ruling.HOLDS if holds else Ruling.FAILS
