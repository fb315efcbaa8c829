"""The referee draws the engine's noise: the same words, the same scores to 2^-40."""

from __future__ import annotations

import random

import numpy as np

from core.dispute.referee.noise import gumbel, philox_word
from core.engine.sampling.noise import gumbel_noise, philox


def test_words_are_the_engines() -> None:
    rng = random.Random(8)
    for _ in range(20):
        key, step = (rng.getrandbits(32), rng.getrandbits(32)), rng.getrandbits(32)
        tokens = np.array([rng.getrandbits(32) for _ in range(50)], dtype=np.uint64)
        words = philox((step, tokens, 0, 0), key)[0]
        assert [philox_word((step, int(t)), key) for t in tokens] == [int(w) for w in words]


def test_noise_is_the_engines_within_2_to_the_minus_40() -> None:
    rng = random.Random(9)
    for _ in range(20):
        key, step = (rng.getrandbits(32), rng.getrandbits(32)), rng.randrange(4096)
        tokens = np.array([rng.randrange(262_144) for _ in range(100)])
        served = gumbel_noise(tokens, key, step)
        found = [gumbel(key, step, int(t)) / 2**120 for t in tokens]
        assert np.abs(np.array(found) - served).max() < 2.0**-40
