"""Which cost model do measured passes of a stage speak for?

t = a + b prefill + c decodes + d Σcontexts with nothing below zero: more work never takes less
time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from scheduler.fleet.errors import FleetError


class FittedCost:
    """t = a + b prefill + c decodes + d Σcontexts, in ms per layer; nothing for an empty batch (see
    `fit`).
    """

    needs_context = True

    __slots__ = ("a_ms", "b_ms", "c_ms", "d_ms")

    def __init__(self, a_ms: float, b_ms: float, c_ms: float, d_ms: float) -> None:
        self.a_ms = a_ms
        self.b_ms = b_ms
        self.c_ms = c_ms
        self.d_ms = d_ms

    def seconds(
        self, layers: int, prefill_tokens: int, decodes: int, context_tokens: int, attended: float
    ) -> float:
        """The fitted plane."""
        if not prefill_tokens and not decodes:
            return 0.0
        per_layer = (
            self.a_ms
            + self.b_ms * prefill_tokens
            + self.c_ms * decodes
            + self.d_ms * context_tokens
        )
        return layers * per_layer / 1e3


class PassSample(NamedTuple):
    """One measured pass over `layers` layers."""

    layers: int
    prefill_tokens: int
    decodes: int
    context_tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The model, and its mean and worst relative error on passes that were left out of the fit."""

    cost: FittedCost
    held_out_error: float
    worst_error: float
    held_out: int


def fit(samples: Sequence[PassSample], *, held_out_share: float = 0.25, seed: int = 0) -> Fit:
    """Non-negative least squares of relative errors on a random part of the samples, judged on the
    rest.

    Raises FleetError for fewer than 8 samples or one without time or layers. A cost of 5 % held-out
    error is what the simulator's own error is allowed to rest on.
    """
    if len(samples) < 8:
        raise FleetError(f"{len(samples)} measured passes; a fit needs at least 8")
    for sample in samples:
        if sample.layers < 1 or not sample.ms > 0:
            raise FleetError(f"{sample} is no measured pass")
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    left_out = min(max(1, round(len(samples) * held_out_share)), len(samples) - 4)
    rows = np.array(
        [
            (
                s.layers,
                s.layers * s.prefill_tokens,
                s.layers * s.decodes,
                s.layers * s.context_tokens,
            )
            for s in (samples[i] for i in order)
        ],
        dtype=float,
    )
    ms = np.array([samples[i].ms for i in order])
    relative = rows / ms[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    found, _ = nnls(relative[left_out:] / scale, np.ones(len(samples) - left_out))
    a, b, c, d = (float(value) for value in found / scale)
    errors = np.abs(relative[:left_out] @ (found / scale) - 1)
    return Fit(FittedCost(a, b, c, d), float(errors.mean()), float(errors.max()), left_out)
