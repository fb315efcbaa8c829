"""Was another token ahead, greedy or seeded, and inside the filters?

A logit divided by the temperature plus the token's noise is its score (`docs/protocol.md` §5).
Margins δ and the temperature τ are whole numbers of 10^-6, and every inequality is multiplied
through by 10^12·τ. A filter is narrowed by δ for the token that the accuser prefers, and widened by
δ for the token that was served, so the filters never turn on an honest machine's rounding. Twin:
contracts/src/referee/SelectCheck.sol.
"""

from __future__ import annotations

from core.dispute.referee.leaf import LeafError, split, words
from core.dispute.referee.noise import gumbel
from core.dispute.referee.real import Real, add, at_most, sub, times
from core.dispute.referee.transcend import POINT, ln_fixed

MICRO = 10**6
_MAX_WORD = 2**32 - 1


def greedy(params: tuple[int, ...], operands: bytes) -> bool:
    """l_j − l_tok > δ. Parameters: δ. Operands: l_j, l_tok."""
    (delta,) = words(params, 1)
    margin = to_micro(delta)
    preferred, served = split(operands, 2).trace
    return exceeds(times(sub(preferred, served), MICRO), margin)


def gumbel_max(params: tuple[int, ...], operands: bytes) -> bool:
    """score_j − score_tok > δ, with j inside the filters even after narrowing them by δ.

    Parameters: δ, τ > 0, Philox key (2 words), step, j, tok, min-p (0: off), top-k (0: off).
    Operands: l_j, l_tok, L, θ, c: with min-p, (l_j − L)/τ − ln p > δ; with top-k, (l_j − θ)/τ ≥ δ
    and c ≤ k, where c counts logits of at least θ.
    """
    delta, tau, key0, key1, step, j, token, min_p, top_k = words(params, 9)
    margin = to_micro(delta) * to_temperature(tau)
    for word in (key0, key1, step, j, token, top_k):
        if word > _MAX_WORD:
            raise LeafError(f"a word of {word}")
    least = to_micro(min_p)
    preferred, served, largest, threshold, counted = split(operands, 5).trace
    key = (key0, key1)
    noise = gumbel(key, step, j) - gumbel(key, step, token)
    if not exceeds(scores(sub(preferred, served), noise, tau), margin):
        return False
    if least and not exceeds(scores(sub(preferred, largest), depth(least), tau), margin):
        return False
    if top_k == 0:
        return True
    above = at_most(Real(margin, 0), scores(sub(preferred, threshold), 0, tau))
    return above and at_most(counted, Real(top_k, 0))


def outside_min_p(params: tuple[int, ...], operands: bytes) -> bool:
    """(l_k − l_tok)/τ + ln p > δ: the served token is outside.

    Parameters: δ, τ > 0, p > 0. Operands: l_k, l_tok.
    """
    delta, tau, min_p = words(params, 3)
    margin = to_micro(delta) * to_temperature(tau)
    if to_micro(min_p) == 0:
        raise LeafError("min-p is off")
    likelier, served = split(operands, 2).trace
    return exceeds(scores(sub(likelier, served), -depth(min_p), tau), margin)


def depth(min_p: int) -> int:
    """−ln(p) in Q120 for p in 10^-6."""
    return ln_fixed(MICRO, 0) - ln_fixed(min_p, 0)


def to_micro(word: int) -> int:
    if word > _MAX_WORD:
        raise LeafError(f"{word} millionths")
    return word


def to_temperature(tau: int) -> int:
    if not 1 <= tau <= _MAX_WORD:
        raise LeafError(f"a temperature of {tau} millionths")
    return tau


def scores(logits: Real, noise: int, tau: int) -> Real:
    """Difference of scores times 10^12·τ, from a difference of logits and one of noise."""
    return add(times(logits, MICRO * MICRO), times(Real(noise, -POINT), tau * MICRO))


def exceeds(value: Real, margin: int) -> bool:
    return not at_most(value, Real(margin, 0))
