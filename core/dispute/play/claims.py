"""What is an accuser to claim: which window under which tolerance, or which token?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from eth_utils.crypto import keccak

from core.dispute.trace.answer import likeliest, to_tokens
from core.dispute.trace.derive import Choice, How, delta_of
from core.dispute.trace.draw import prescribed
from core.dispute.trace.judge import Claim
from core.dispute.trace.layout import MAX_WINDOW_ROWS
from core.dispute.trace.program import Program
from core.engine.sampling.sampler import Sampler
from core.protocol.types import RequestLeaf, SamplingParams

_PARTS = 10**12
_CLEAR = 2.0  # times its tolerance: honest executions are at half of it
_NO_ROOT = bytes(32)


@dataclass(frozen=True)
class Excess:
    """A window that speaks against a stage: its D/S and the T that it is held to."""

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
    first: int = 0,
) -> Excess | None:
    """A claim whose window lies above its tolerance, its trace's root still open.

    None where none does. The window that ends first among those at twice the tolerance or more,
    because both sides compute a trace up to there; where none is so clear, the one that lies
    furthest above. `served` and `reference` are rows [T, D] of the stage from position `first` on;
    `sigma` [D] are the registered sizes of its channels.
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
            clear = np.flatnonzero(ratios >= _CLEAR * tolerance)
            at = int(clear[0]) if len(clear) else int(np.argmax(ratios))
            start = first + at
            claim = Claim(leaf, *layers, start + rows, start, number, _NO_ROOT)
            excess = Excess(claim, float(ratios[at]), tolerance)
            if excess.ratio > tolerance and (found is None or _rank(excess) > _rank(found)):
                found = excess
    return found


def _rank(excess: Excess) -> tuple[bool, int, float]:
    """Clear ones before others; of those what ends first, of the others what is largest."""
    times = excess.ratio / excess.tolerance
    is_clear = times >= _CLEAR
    return is_clear, -excess.claim.positions if is_clear else 0, times


def token_claim(
    program: Program,
    leaf: RequestLeaf,
    layers: tuple[int, int],
    sampling: SamplingParams,
    tokens: Sequence[int],
    produced: int,
    due: int,
    logits: Any = None,
) -> Claim:
    """The claim that token number `produced` of a request should have been `due`.

    Where float64 `logits` [V] say that a filter surely leaves the served token out, it claims that:
    a token outside may have drawn the luckiest number of all. Raises DrawError for a token that no
    referee judges.
    """
    choice = Choice(due, tokens[produced], 0, 0, (0, 0))
    choice = prescribed(sampling.canonical(), leaf.request_index, produced, choice)
    if logits is not None:
        choice = _outside(program, choice, np.asarray(logits, np.float64))
    positions = leaf.tokens_in + produced
    return Claim(leaf, *layers, positions, 0, 0, _NO_ROOT, choice)


def _outside(program: Program, choice: Choice, logits: Any) -> Choice:
    """The choice as one of a token that a filter leaves out by more than δ, if one does."""
    tau = choice.temperature_micro
    if not tau:
        return choice
    scores = logits * (10**6 / tau)
    delta = delta_of(program.delta_micro, tau) / 10**6
    served, largest = scores[choice.served], int(np.argmax(scores))
    if choice.min_p_micro:
        behind = scores[largest] + math.log(choice.min_p_micro / 10**6) - served
        if behind > delta:
            return replace(choice, how=How.OUTSIDE_MIN_P, preferred=largest)
    if choice.top_k:
        ahead = likeliest(logits, choice.served, choice.top_k)
        if ahead and min(scores[ahead]) - served > delta:
            listed = keccak(to_tokens(ahead))
            return replace(choice, how=How.OUTSIDE_TOP_K, preferred=largest, listed=listed)
    return choice


def token_due(
    logits: Any, sampling: SamplingParams, request_index: int, tokens: Sequence[int], **history: Any
) -> int:
    """The token that float64 logits [V] and the order's parameters make after `tokens`."""
    import torch

    from core.engine.sampling.sampling import sample_batch

    sampler = Sampler(sampling, request_index, **history)
    for token in tokens:
        sampler.take(token)
    row = torch.as_tensor(np.asarray(logits, np.float64)).reshape(1, -1)
    (choice,) = sample_batch(row, [sampler])
    return int(choice.token)
