"""Which tokens may be drawn?

Top-k, then top-p, then min-p, each of what the one before left (`docs/protocol.md` §5).

Probabilities are counted in whole 2⁻³² of the likeliest token's, so a sum is exact in float64
whatever its order, up to 2²¹ tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.protocol.types import MICRO, SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
#: Of the likeliest token's probability.
PARTS = 2.0**32
#: Where to look for the candidates first, in nats behind the likeliest token; then three times as
#: far, and so on.
_FIRST_LOOK_NATS = 8.0
_LAST_LOOK_NATS = 1000.0


@dataclass(frozen=True)
class Candidates:
    """Tokens that may be drawn, with logits over temperature, likeliest first, ties by id."""

    ids: Ids
    scaled: Floats


def may_leave_out(params: SamplingParams, vocab: int) -> bool:
    """Whether these parameters may leave a token out."""
    return 0 < params.top_k < vocab or params.top_p_micro < MICRO or params.min_p_micro > 0


def kept(row: Floats, params: SamplingParams) -> Candidates:
    """What the filters leave of edited logits [V], at a temperature above 0."""
    inverse = MICRO / params.temperature_micro
    largest = float(row.max())
    k = params.top_k if 0 < params.top_k < len(row) else 0
    total = None
    if params.top_p_micro < MICRO and not k:
        total = int(mass_of(row * inverse - largest * inverse).sum())
    look = _FIRST_LOOK_NATS
    if params.min_p_micro:
        look = min(look, min_p_depth(params) + 1e-9)
    while look < _LAST_LOOK_NATS:
        ids = np.flatnonzero(row >= a_little_below(largest - look / inverse))
        if len(ids) < k:
            break
        found = _filtered(_sorted(ids, row, inverse), params, k, total, look)
        if found is not None:
            return found
        look *= 3
    least = np.partition(row, len(row) - k)[len(row) - k] if k else -math.inf
    ids = np.flatnonzero(row >= least)
    found = _filtered(_sorted(ids, row, inverse), params, k, total, math.inf)
    assert found is not None, "nothing lies beyond the whole vocabulary"
    return found


def mass_of(behind: Floats) -> Floats:
    """⌊eˣ·2³²⌋ of scaled logits [n] less the largest."""
    import torch

    mass: Floats = torch.from_numpy(behind).exp().mul_(PARTS).floor_().numpy()
    return mass


def top_p_limit(total: int, params: SamplingParams) -> int:
    """⌈p·total⌉: a token stays whose likelier ones together have less than this."""
    return -(-total * params.top_p_micro // MICRO)


def min_p_depth(params: SamplingParams) -> float:
    """−ln p, in nats."""
    return -math.log(params.min_p_micro / MICRO)


def a_little_below(value: float) -> float:
    """As far below as no rounding of a comparison leaves out what belongs in."""
    return value - 1e-9 * (1 + abs(value))


def _sorted(ids: Ids, row: Floats, inverse: float) -> Candidates:
    scaled = row[ids] * inverse
    order = np.argsort(-scaled, kind="stable")
    return Candidates(ids[order], scaled[order])


def _filtered(
    likeliest: Candidates, params: SamplingParams, k: int, total: int | None, look: float
) -> Candidates | None:
    """The filters on all tokens at most `look` nats behind; None where they reach past these."""
    ids, scaled = likeliest.ids, likeliest.scaled
    count, is_closed = len(ids), math.isinf(look)
    if k:
        if count < k:
            return None
        count, is_closed = k, True
    if params.top_p_micro < MICRO:
        mass = mass_of(scaled[:count] - scaled[0])
        upto = np.cumsum(mass)
        limit = top_p_limit(int(upto[-1]) if total is None else total, params)
        if upto[-1] < limit and not is_closed:
            return None
        count, is_closed = int(np.searchsorted(upto - mass, limit)), True
    if params.min_p_micro:
        depth = min_p_depth(params)
        is_closed = is_closed or depth <= look
        count = int(np.count_nonzero(scaled[:count] >= scaled[0] - depth))
    return Candidates(ids[:count], scaled[:count]) if is_closed else None
