"""Which token do these logits give, so that anybody can draw it again? (`docs/protocol.md` §5)

Gumbel-max over Philox4x32-10: the requester's seed is committed before the work, so the machine that samples has
no freedom left, and an auditor with nearly the same logits finds nearly the same scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from core.protocol.types import SamplingParams

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1, _MASK = 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF
_ROUNDS = 10
#: The largest noise that u = (w + ½)/2³² can give, −ln(−ln(1 − 2⁻³³)), rounded up.
_MAX_NOISE = 22.9
_LIKELY_NATS = 3.0

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


def philox(
    counter: tuple[Any, Any, Any, Any], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", §3.3).

    Each counter word is an int or an array of u32 values; arrays broadcast. Returns four arrays of u32 values
    held as uint64.
    """
    low = np.uint64(_MASK)
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & low,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def request_key(seed: int, request_index: int) -> tuple[int, int]:
    """The Philox key of one request of a job."""
    digest = sha256(seed.to_bytes(8, "big") + request_index.to_bytes(4, "big")).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def gumbel_noise(token_ids: npt.NDArray[Any], key: tuple[int, int], step: int) -> Floats:
    """−ln(−ln u) for each token id at one step."""
    words, *_ = philox((step, token_ids, 0, 0), key)
    uniform = (words.astype(np.float64) + 0.5) / 2.0**32
    return -np.log(-np.log(uniform))


def sample(logits: Any, params: SamplingParams, request_index: int, step: int) -> int:
    """The token that these logits [V] give at `step` (0 is the first produced token).

    `logits` is anything numpy reads as one row of numbers. Temperature, then top-k, then min-p (relative to the
    likeliest token at that temperature) leave the candidates; the highest score among them wins, ties go to the
    lower id. Raises ValueError for rows with NaN or +inf.
    """
    row = _row(logits)
    if params.temperature_micro == 0:
        return int(np.argmax(row))
    scaled = row * (1e6 / params.temperature_micro)
    allowed = _allowed(scaled, _limits(scaled, params))
    key = request_key(params.seed, request_index)
    # Noise is dear: a first look at the likeliest tokens tells how far behind one must be to have no chance.
    likely = np.flatnonzero(allowed & (scaled >= scaled.max() - _LIKELY_NATS))
    best = float((scaled[likely] + gumbel_noise(likely, key, step)).max())
    ids = np.flatnonzero(allowed & (scaled >= best - _MAX_NOISE))
    scores = scaled[ids] + gumbel_noise(ids, key, step)
    return int(ids[np.argmax(scores)])


def margin(logits: Any, token: int, params: SamplingParams, request_index: int, step: int) -> float:
    """How much scores would have to move for `token` to be the answer: 0 when it is, in nats.

    For a greedy request the distance is in logits. With filters a token counts as outside only if it is
    outside after widening by the margin, and a better token as inside only if it is inside after narrowing by it, so
    the result never jumps where an honest machine's logits differ by a little. Raises ValueError for an
    id that does not exist.
    """
    row = _row(logits)
    if not 0 <= token < len(row):
        raise ValueError(f"token {token} of a vocabulary of {len(row)}")
    if params.temperature_micro == 0:
        return float(row.max() - row[token])
    scaled = row * (1e6 / params.temperature_micro)
    if scaled[token] == -np.inf:
        return math.inf
    limits = _limits(scaled, params)
    key = request_key(params.seed, request_index)
    score = float(scaled[token] + gumbel_noise(np.array([token]), key, step)[0])
    rivals = np.flatnonzero(scaled >= score - _MAX_NOISE)  # holds the token itself
    ahead = scaled[rivals] + gumbel_noise(rivals, key, step) - score
    depth = np.minimum(scaled[rivals] - limits.next_below_top_k, scaled[rivals] - limits.min_p)
    needed = np.minimum(ahead, depth)
    outside = max(limits.top_k, limits.min_p) - scaled[token]
    return float(max(0.0, outside, needed.max()))


@dataclass(frozen=True)
class _Limits:
    """Scaled logits that the filters ask for: −inf where a filter is off."""

    top_k: float  # the k-th largest
    next_below_top_k: float  # the (k+1)-th largest
    min_p: float
    top_k_count: int


def _limits(scaled: Floats, params: SamplingParams) -> _Limits:
    kth = below = min_p = -math.inf
    k = params.top_k
    if 0 < k < len(scaled):
        below, kth = np.partition(scaled, [-k - 1, -k])[[-k - 1, -k]]
    if params.min_p_micro > 0:
        min_p = float(scaled.max()) + math.log(params.min_p_micro / 1e6)
    return _Limits(float(kth), float(below), min_p, k if k < len(scaled) else 0)


def _allowed(scaled: Floats, limits: _Limits) -> npt.NDArray[np.bool_]:
    allowed = scaled >= limits.min_p
    if limits.top_k_count:
        above = scaled > limits.top_k
        tied = np.flatnonzero(scaled == limits.top_k)
        above[tied[: limits.top_k_count - np.count_nonzero(above)]] = True
        allowed &= above
    return allowed


def _row(logits: Any) -> Floats:
    row = np.asarray(logits, dtype=np.float64)
    if row.ndim != 1 or not row.size:
        raise ValueError(f"logits must be one row, not of shape {row.shape}")
    if np.isnan(row).any() or row.max() in (np.inf, -np.inf):
        raise ValueError("logits hold NaN or infinity")
    return row
