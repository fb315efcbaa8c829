"""What does the contract's referee rule on any leaf, those included that no program holds?

The product's referee (`core/dispute/referee`) knows the kinds that a program or a derivation names.
The contract knows three more, about counts of logits. Twin: contracts/src/referee/SelectCheck.sol.
"""

from __future__ import annotations

from core.dispute import referee
from core.dispute.referee import Leaf, LeafError, LeafKind, Ruling
from core.dispute.referee.check import VERDICTS as HELD
from core.dispute.referee.check import Predicate
from core.dispute.referee.leaf import MalformedOperand, split, to_terms, words
from core.dispute.referee.real import Real, at_most, sub
from core.dispute.referee.selection import exceeds, scores, to_micro, to_temperature

_MAX_WORD = 2**32 - 1


def rule(leaf: Leaf) -> Ruling:
    """What the contract rules. Raises LeafError where it reverts."""
    verdict = _OTHERS.get(leaf.kind)
    if verdict is None:
        return referee.rule(leaf)
    try:
        holds = verdict(leaf.params, leaf.operands)
    except MalformedOperand as found:
        return found.ruling
    return Ruling.HOLDS if holds else Ruling.FAILS


def params_bytes(leaf: Leaf) -> bytes:
    """A leaf's parameters as the contract takes them: one 32-byte word each."""
    return b"".join(word.to_bytes(32, "big") for word in leaf.params)


def _count(params: tuple[int, ...], operands: bytes) -> bool:
    """c = #{l ≥ θ}, exactly. Parameters: n. Operands: c, θ, l[n]."""
    (n,) = words(params, 1)
    counted, threshold, *logits = split(operands, 2 + to_terms(n)).trace
    found = sum(at_most(threshold, logit) for logit in logits)
    return sub(counted, Real(found, 0)).m == 0


def _maximum(params: tuple[int, ...], operands: bytes) -> bool:
    """l ≤ L, for one logit that the accused names. Operands: L, l.

    A larger L than the largest logit only makes the accuser's case harder.
    """
    words(params, 0)
    largest, logit = split(operands, 2).trace
    return at_most(logit, largest)


def _outside_top_k(params: tuple[int, ...], operands: bytes) -> bool:
    """(θ − l_tok)/τ > δ and c ≥ k, where c counts logits of at least θ.

    Parameters: δ, τ > 0, k > 0. Operands: l_tok, θ, c.
    """
    delta, tau, top_k = words(params, 3)
    margin = to_micro(delta) * to_temperature(tau)
    if not 1 <= top_k <= _MAX_WORD:
        raise LeafError(f"a top-k of {top_k}")
    served, threshold, counted = split(operands, 3).trace
    below = exceeds(scores(sub(threshold, served), 0, tau), margin)
    return below and at_most(Real(top_k, 0), counted)


_OTHERS: dict[LeafKind, Predicate] = {
    LeafKind.COUNT: _count,
    LeafKind.MAXIMUM: _maximum,
    LeafKind.OUTSIDE_TOP_K: _outside_top_k,
}
VERDICTS = HELD | _OTHERS
