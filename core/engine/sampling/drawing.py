"""Which of the tokens that may be drawn has the highest score with its noise?

Noise is dear, a logarithm of a logarithm of ten rounds of products, so only that of tokens that can
still win is worked out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from core.engine.sampling.filters import Candidates, a_little_below
from core.engine.sampling.noise import (
    CHUNK,
    MAX_NOISE,
    gumbel,
    gumbel_noise,
    least_word,
    philox,
    words,
)
from core.engine.sampling.sampler import Sampler
from core.protocol.types import MICRO

#: A first look at tokens so near the likeliest one finds a score that is hard to beat.
_LIKELY_NATS = 3.0
#: Further behind the best score than this a token needs so rare a noise that most are ruled out by
#: their bare word.
_RARE_NATS = 6.0
#: Above this share of the vocabulary it is quicker to draw for every token than to pick some.
_MOST = 0.25

Floats = npt.NDArray[np.float64]


def draw_of_few(found: Mapping[int, Candidates], samplers: Sequence[Sampler]) -> dict[int, int]:
    """The winner among each row's candidates; noise of many short rows costs as of one."""
    sizes = [len(candidates.ids) for candidates in found.values()]
    if len(found) < 2 or sum(sizes) > CHUNK:
        return {i: _best(one, _noise(one.ids, samplers[i])) for i, one in found.items()}
    whose = np.repeat(np.arange(len(sizes)), sizes)
    keys = np.array([samplers[i].key for i in found], dtype=np.uint64)[whose]
    steps = np.array([samplers[i].step for i in found], dtype=np.uint64)[whose]
    ids = np.concatenate([candidates.ids for candidates in found.values()])
    noise = gumbel(philox((steps, ids, 0, 0), (keys[:, 0], keys[:, 1]))[0])
    parts = np.split(noise, np.cumsum(sizes)[:-1])
    return {i: _best(one, part) for (i, one), part in zip(found.items(), parts, strict=True)}


def draw_of_all(row: Floats, sampler: Sampler) -> int:
    """The winner of edited logits [V] where every token may be drawn."""
    inverse = MICRO / sampler.params.temperature_micro
    near = a_little_below(float(row.max()) - _LIKELY_NATS / inverse)
    likely = np.flatnonzero(row >= near)[:CHUNK]
    best = float((row[likely] * inverse + _noise(likely, sampler)).max())
    ids, scores = contenders(row, sampler, best)
    return int(ids[scores == scores.max()].min())


def contenders(row: Floats, sampler: Sampler, score: float) -> tuple[npt.NDArray[np.int64], Floats]:
    """Ids and scores of all tokens that score at least `score`, and perhaps of others.

    `row` are edited logits [V]. Noise is dear. No noise makes up for more than `MAX_NOISE`, and the
    noise of a token that needs a rare one is only worked out when its word is as rare.
    """
    inverse = MICRO / sampler.params.temperature_micro
    hopeful = row >= a_little_below((score - MAX_NOISE) / inverse)
    rare, word_of_rare = a_little_below((score - _RARE_NATS) / inverse), least_word(_RARE_NATS)
    picked = np.flatnonzero(hopeful) if np.count_nonzero(hopeful) < _MOST * len(row) else None
    ids, drawn = [], []
    for at in range(0, len(row) if picked is None else len(picked), CHUNK):
        if picked is None:
            x = row[at : at + CHUNK]
            part = np.arange(at, at + len(x))
        else:
            part = picked[at : at + CHUNK]
            x = row[part]
        word = words(part, sampler.key, sampler.step)
        found = np.flatnonzero((x >= rare) | (word >= word_of_rare))
        ids.append(part[found])
        drawn.append(word[found])
    left = np.concatenate(ids) if ids else np.empty(0, np.int64)
    noise = gumbel(np.concatenate(drawn)) if ids else np.empty(0)
    return left, row[left] * inverse + noise


def _noise(ids: npt.NDArray[np.int64], sampler: Sampler) -> Floats:
    return gumbel_noise(ids, sampler.key, sampler.step)


def _best(candidates: Candidates, noise: Floats) -> int:
    """The id with the highest score, the lowest such id."""
    scores = candidates.scaled + noise
    return int(candidates.ids[scores == scores.max()].min())
