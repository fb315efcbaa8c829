"""With true logits a leaf holds exactly when the engine's margin, filters included, is above δ."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from core.dispute.referee import Leaf, LeafKind, Ruling, rule
from core.engine.sampling.noise import request_key
from core.protocol.types import SamplingParams
from tests.core.dispute.referee.leaves import f64
from tests.core.engine.draws import margin

VOCABULARY = 40
STEP, REQUEST = 17, 3


def _leaves(logits: np.ndarray, token: int, params: SamplingParams, delta: int) -> list[Leaf]:
    """Every leaf of true logits: each rival against the token, and the token against filters."""
    tau = params.temperature_micro
    found: list[Leaf] = []
    if tau == 0:
        return [Leaf(LeafKind.GREEDY, (delta,), f64(rival, logits[token])) for rival in logits]
    margin_logits = delta * tau / 1e12
    key = request_key(params.seed, REQUEST)
    for j, rival in enumerate(logits):
        theta = math.nextafter(rival - margin_logits, -math.inf)  # any float64 not above it will do
        counted = float(np.count_nonzero(logits >= theta))
        words = (delta, tau, *key, STEP, j, token, params.min_p_micro, params.top_k)
        operands = f64(rival, logits[token], logits.max(), theta, counted)
        found.append(Leaf(LeafKind.GUMBEL, words, operands))
    if params.min_p_micro:
        words = (delta, tau, params.min_p_micro)
        found.append(Leaf(LeafKind.OUTSIDE_MIN_P, words, f64(logits.max(), logits[token])))
    if params.top_k:
        weakest = np.sort(np.delete(logits, token))[-params.top_k]  # of a list that is ahead
        words = (delta, tau, 10**6)
        found.append(Leaf(LeafKind.OUTSIDE_MIN_P, words, f64(weakest, logits[token])))
    return found


@pytest.mark.parametrize("temperature_micro", [0, 300_000, 1_000_000])
@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("min_p_micro", [0, 80_000])
def test_an_accusation_stands_exactly_above_the_margin(
    temperature_micro: int, top_k: int, min_p_micro: int
) -> None:
    rng = random.Random(temperature_micro + top_k + min_p_micro)
    seen = set()
    for seed in range(25):
        logits = np.array([rng.gauss(0, 2) for _ in range(VOCABULARY)])
        params = SamplingParams(
            temperature_micro=temperature_micro,
            top_k=top_k,
            min_p_micro=min_p_micro,
            max_new_tokens=64,
            seed=seed,
        )
        token = rng.choice([int(np.argmax(logits)), rng.randrange(VOCABULARY)])
        delta = rng.choice((10_000, 1_000_000))
        ahead = margin(logits, token, params, REQUEST, STEP)
        if math.isclose(ahead, delta / 1e6, rel_tol=1e-9):
            continue
        stands = [one for one in _leaves(logits, token, params, delta) if rule(one) == Ruling.HOLDS]
        assert bool(stands) == (ahead > delta / 1e6)
        seen.add(bool(stands))
    assert seen == {True, False}
