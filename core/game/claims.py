"""What exactly is an accuser to claim: which window, under which tolerance, or which token instead of which?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.engine.numerics import whitened_relative_l2
from core.engine.sampler import Sampler
from core.protocol.trace.derive import Choice
from core.protocol.trace.draw import DrawError, prescribed
from core.protocol.trace.judge import Claim
from core.protocol.trace.layout import MAX_WINDOW_ROWS
from core.protocol.trace.program import Program
from core.protocol.types import RequestLeaf, SamplingParams

_PARTS = 10**12
_NO_ROOT = bytes(32)


@dataclass(frozen=True)
class Excess:
    """The window that speaks most against a stage: its D/S and the T that it is held to."""

    claim: Claim
    ratio: float
    tolerance: float


def deviation_claim(
    program: Program,
    leaf: RequestLeaf,
    layers: tuple[int, int],
    served: Any,
    reference: Any,
    sigma: Any,
) -> Excess | None:
    """The claim whose window lies furthest above its tolerance, its trace's root still open; None where none does.

    `served` and `reference` are rows [T, D] of the stage; `sigma` [D] are the registered sizes of its channels.
    """
    depth, total = layers[1] - layers[0], len(served)
    scale = np.asarray(sigma, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.sum(((np.asarray(served, np.float64) - reference) / scale) ** 2, axis=1)
        size = np.sum((np.asarray(reference, np.float64) / scale) ** 2, axis=1)
    if not np.isfinite(error).all():
        return None
    errors, sizes = (np.concatenate([[0.0], np.cumsum(x)]) for x in (error, size))
    found: Excess | None = None
    for number, entry in enumerate(program.tolerances):
        if depth > entry.max_depth:
            continue
        tolerance = entry.parts_per_trillion / _PARTS
        for rows in {entry.min_rows, min(MAX_WINDOW_ROWS, total)}:
            if not entry.min_rows <= rows <= total:
                continue
            squares = errors[rows:] - errors[:-rows], sizes[rows:] - sizes[:-rows]
            ratios = np.sqrt(squares[0] / np.where(squares[1] > 0, squares[1], 1.0))
            at = int(np.argmax(ratios))
            claim = Claim(leaf, *layers, at + rows, at, number, _NO_ROOT, exact=True)
            excess = Excess(claim, float(ratios[at]), tolerance)
            if excess.ratio > tolerance and (
                found is None or excess.ratio / tolerance > found.ratio / found.tolerance
            ):
                found = excess
    return found


def token_claim(
    program: Program,
    leaf: RequestLeaf,
    layers: tuple[int, int],
    sampling: SamplingParams,
    tokens: Sequence[int],
    produced: int,
    due: int,
) -> Claim:
    """The claim that token number `produced` of a request should have been `due`. Raises DrawError for one that no referee judges."""
    choice = Choice(due, tokens[produced], 0, 0, (0, 0))
    choice = prescribed(sampling.canonical(), leaf.request_index, produced, choice)
    positions = leaf.tokens_in + produced
    return Claim(leaf, *layers, positions, 0, 0, _NO_ROOT, choice, exact=True)


def token_due(
    logits: Any, sampling: SamplingParams, request_index: int, tokens: Sequence[int], **history: Any
) -> int:
    """The token that these float64 logits [V] and the order's parameters make after `tokens` of an answer."""
    from core.engine.sampling import sample_batch

    sampler = Sampler(sampling, request_index, **history)
    for token in tokens:
        sampler.take(token)
    (choice,) = sample_batch(np_rows(logits), [sampler])
    return int(choice.token)


def np_rows(logits: Any) -> Any:
    import torch

    return torch.as_tensor(np.asarray(logits, np.float64)).reshape(1, -1)


def worst_rows(served: Any, reference: Any, sigma: Any) -> Any:
    """dev_t of each row, whitened by the registered sizes."""
    return whitened_relative_l2(served, reference, sigma).rows


__all__ = ["DrawError", "Excess", "deviation_claim", "token_claim", "token_due", "worst_rows"]
