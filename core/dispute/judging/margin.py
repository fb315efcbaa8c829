"""How far is a served token from being the answer?

What an auditor with its own logits may hold against a machine. A filter is widened by the margin
for the token that was served and narrowed by it for a better one, so nothing turns on which side of
a boundary an honest machine's rounding fell (`docs/protocol.md` §5).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

from core.engine.sampling.drawing import contenders
from core.engine.sampling.filters import PARTS, min_p_depth
from core.engine.sampling.noise import gumbel_noise
from core.engine.sampling.sampler import Sampler
from core.protocol.types import MICRO, SamplingParams

Floats = npt.NDArray[np.float64]
_PART = 1 / PARTS


def margin_of(logits: Any, token: int, sampler: Sampler) -> float:
    """The least δ at which `token` may be the answer to logits [V]: 0 when it is, in nats.

    In logits if greedy. At δ the token may be the answer unless a better one is surely allowed and
    more than δ ahead, or it is surely left out itself. Sure is what holds for all logits whose
    differences, divided by the temperature, are at most δ from these. Raises ValueError for an id
    that does not exist.
    """
    row = sampler.edited(logits)
    if not 0 <= token < len(row):
        raise ValueError(f"token {token} of a vocabulary of {len(row)}")
    if row[token] == -np.inf:
        return math.inf
    params = sampler.params
    if params.temperature_micro == 0:
        return float(row.max() - row[token])
    scaled = row * (MICRO / params.temperature_micro)
    bounds = _Bounds(scaled, params)
    score = float(scaled[token] + gumbel_noise(np.array([token]), sampler.key, sampler.step)[0])
    rivals, scores = contenders(row, sampler, score)
    found = max(0.0, bounds.outside(float(scaled[token])))
    ahead = np.where(scaled[rivals] >= bounds.least_inside, scores - score, 0.0)
    for place in np.argsort(-ahead, kind="stable"):
        if ahead[place] <= found:
            break
        found = max(found, min(float(ahead[place]), bounds.inside(float(scaled[rivals[place]]))))
    return found


def gain(params: SamplingParams) -> float:
    """How many times an error of a logit may be larger in a score (`margin_of`'s unit); at least 1.

    A penalty that divides or multiplies logits grows their errors as much, and so does a
    temperature below 1.
    """
    repetition = params.repetition_penalty_micro / MICRO
    heat = params.temperature_micro / MICRO or 1.0
    return max(repetition, 1 / repetition) * max(1.0, 1 / heat)


class _Bounds:
    """The filters over scaled logits, as far as one can be sure of them."""

    def __init__(self, scaled: Floats, params: SamplingParams) -> None:
        k = params.top_k if 0 < params.top_k < len(scaled) else 0
        self._largest = float(scaled.max())
        self._kth = self._next = -math.inf
        if k:
            self._next, self._kth = map(float, np.partition(scaled, [-k - 1, -k])[[-k - 1, -k]])
        self._depth = min_p_depth(params) if params.min_p_micro else math.inf
        #: Less likely tokens are allowed at no δ above 0.
        self.least_inside = max(self._kth, self._largest - self._depth)
        self._odds = None
        if params.top_p_micro < MICRO:
            self._odds = math.log(params.top_p_micro / (MICRO - params.top_p_micro))
            self._sorted = np.sort(scaled[scaled >= self._kth])[::-1][: k or None]
            # Not in whole parts: a token too unlikely to have one may gain one when weights move,
            # and what is lost to them is reckoned below. Summed from both ends, because what is
            # ahead and what is left can each be tiny.
            mass = np.exp(self._sorted - self._largest)
            self._with_a_part = int(np.count_nonzero(mass >= _PART))
            self._ahead = np.concatenate([[0.0], np.cumsum(mass)])
            self._left = np.concatenate([np.cumsum(mass[::-1])[::-1], [0.0]])
            share = params.top_p_micro / MICRO * self._left[0]
            cut = int(np.searchsorted(self._ahead[:-1], share))
            self.least_inside = max(self.least_inside, self._at(min(cut, len(mass) - 1)))

    def outside(self, value: float) -> float:
        """The δ up to which a token with this scaled logit is surely left out."""
        by_rank = max(self._kth - value, self._largest - value - self._depth)
        if self._odds is None:
            return by_rank

        # With the n likeliest tokens surely ahead, δ is at least the gap to number n, and p's odds
        # less than those of the n even when every weight moves in the token's favour.
        def gap(n: int) -> float:
            return self._at(n) - value

        def needed(n: int) -> float:
            # The likeliest has 2³² parts, and each of them loses less than one.
            return self._log_odds(self._ahead[n], self._left[n]) + math.log1p(-(n + 1) * _PART)

        n = bisect_left(range(len(self._sorted)), True, key=lambda n: needed(n) >= gap(n))
        return max(by_rank, min(max(gap(m), needed(m)) for m in (max(n - 1, 0), n)))

    def inside(self, value: float) -> float:
        """The δ up to which a token with this scaled logit is surely allowed."""
        by_rank = min(value - self._next, value - (self._largest - self._depth))
        odds = self._odds
        if odds is None:
            return by_rank
        first = bisect_left(range(len(self._sorted)), True, key=lambda n: self._sorted[n] < value)
        own, lost_part = math.exp(value - self._largest), _PART * math.exp(odds)

        # All down to number n may be ahead, the token itself aside, while δ is less than the gap to
        # number n; it is allowed while p's odds are more than theirs even when every weight moves
        # against it. Of what is left each loses a part at most, which is as bad as p's odds times a
        # part more ahead, or all that it has. Whichever n is tried, δ up to the lesser of both is
        # sure; so the search may settle for one that is not the best.
        def gap(n: int) -> float:
            return value - self._at(n)

        def spare(n: int) -> float:
            ahead = self._ahead[first - 1] + (self._left[first] - self._left[n])
            if ahead <= 0:  # the likeliest is never left out
                return math.inf
            last = max(n, self._with_a_part)
            left = own + (self._left[n] - self._left[last])
            return -self._log_odds(ahead + (1 + last - n) * lost_part, left)

        reach = range(first, len(self._sorted))
        n = first + bisect_left(reach, True, key=lambda n: gap(n) >= spare(n))
        return min(by_rank, max(min(gap(m), spare(m)) for m in (max(n - 1, first), n)))

    def _at(self, n: int) -> float:
        return float(self._sorted[n]) if n < len(self._sorted) else -math.inf

    def _log_odds(self, ahead: float, left: float) -> float:
        """Of what is ahead against what is left, less those of p."""
        assert self._odds is not None, "top-p is on"
        if ahead <= 0 or left <= 0:
            return -math.inf if ahead <= 0 else math.inf
        return math.log(ahead) - math.log(left) - self._odds
