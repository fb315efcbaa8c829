"""Does this leaf hold? One predicate for each operator kind, and who is at fault where the bytes are no numbers.

The miner's self-test and the dispute engine ask here what the chain would rule: contracts/src/referee/Referee.sol gives the
same answer to the same leaf.
"""

from __future__ import annotations

from collections.abc import Callable

from core.dispute.referee import activation, attention, linear, norm, selection, window
from core.dispute.referee.leaf import Kind, Leaf, Malformed, Ruling

Predicate = Callable[[tuple[int, ...], bytes], bool]

PREDICATES: dict[Kind, Predicate] = {
    Kind.COPY: linear.copy,
    Kind.INPUT: linear.input_copy,
    Kind.EMBED: linear.embed,
    Kind.LINEAR: linear.linear,
    Kind.SUM: linear.sum_of_parts,
    Kind.BIAS_SUM: linear.bias_sum,
    Kind.SQUARES: linear.squares,
    Kind.NORM_SCALE: norm.norm_scale,
    Kind.NORM: norm.norm,
    Kind.ROPE: attention.rope,
    Kind.SCORE: attention.score,
    Kind.STABILISER: attention.stabiliser,
    Kind.EXP: attention.exponential,
    Kind.PROBABILITY: attention.probability,
    Kind.MIX: linear.mix,
    Kind.SILU: activation.silu,
    Kind.GELU_TANH: activation.gelu_tanh,
    Kind.PRODUCT: linear.product,
    Kind.ADD: linear.addition,
    Kind.SCALE: linear.scale,
    Kind.SOFTCAP: activation.softcap,
    Kind.WHITEN_DIFFERENCE: window.whiten_difference,
    Kind.WHITEN_REFERENCE: window.whiten_reference,
    Kind.EXCEEDS: window.exceeds,
    Kind.COUNT: selection.count,
    Kind.MAXIMUM: selection.maximum,
    Kind.GREEDY: selection.greedy,
    Kind.GUMBEL: selection.gumbel_max,
    Kind.OUTSIDE_MIN_P: selection.outside_min_p,
    Kind.OUTSIDE_TOP_K: selection.outside_top_k,
}


def check(leaf: Leaf) -> Ruling:
    """What the referee rules on this leaf.

    Raises LeafError where the contract reverts: parameters or lengths that no leaf of this kind can have. Those come
    from the model's operator program, not from a party, so no move of a dispute can cause one.
    """
    try:
        holds = PREDICATES[leaf.kind](leaf.params, leaf.operands)
    except Malformed as found:
        return found.ruling
    return Ruling.HOLDS if holds else Ruling.FAILS
