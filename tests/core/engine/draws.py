"""One row of logits at a time, and one token: what the product does in batches and streams."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from core.dispute.judging.margin import margin_of
from core.dispute.judging.numerics import NumericsProfile, NumericsVerdict, TokenMargins
from core.engine.sampling.sampler import Sampler
from core.engine.sampling.sampling import sample_batch
from core.protocol.errors import CheckFailed
from core.protocol.types import SamplingParams


def sample(
    logits: Any,
    params: SamplingParams,
    request_index: int,
    step: int,
    *,
    prompt: Sequence[int] = (),
    produced: Sequence[int] = (),
    eos_ids: Collection[int] = (),
) -> int:
    """The token that these logits [V] give at `step` of this order (0 is its first produced token).

    Raises ValueError for NaN, +inf or nothing but −inf.
    """
    sampler = sampler_at(params, request_index, step, prompt, produced, eos_ids)
    (found,) = sample_batch([logits], [sampler])
    if isinstance(found, CheckFailed):
        raise ValueError(found.why)
    return found.token


def sampler_at(
    params: SamplingParams,
    request_index: int,
    step: int,
    prompt: Sequence[int] = (),
    produced: Sequence[int] = (),
    eos_ids: Collection[int] = (),
) -> Sampler:
    """The sampler that draws token `step` of a request after the tokens `produced`."""
    sampler = Sampler(params, request_index, prompt, eos_ids)
    for token in produced[:step]:
        sampler.take(token)
    sampler.step = params.first_step + step
    return sampler


def margin(
    logits: Any, token: int, params: SamplingParams, request_index: int, step: int, **history: Any
) -> float:
    """`margin_of` for token number `step` of this order; `history` as of `sample`."""
    return margin_of(logits, token, sampler_at(params, request_index, step, **history))


def judge_tokens(
    profile: NumericsProfile, logits: Any, tokens: Sequence[int], *drawn: Any, **history: Any
) -> NumericsVerdict:
    """`TokenMargins` of logits [len(tokens), V]; its other arguments are `drawn`, `history`."""
    if len(logits) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens and {len(logits)} rows of logits")
    margins = TokenMargins(tokens, *drawn, **history)
    margins(logits)
    return margins.verdict(profile)
