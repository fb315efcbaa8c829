"""Is a stage's work clean beyond doubt by a float32 re-run, so that no float64 one is needed?

Ours is an honest float32 execution too, within T/2 of the exact one by what the profile was calibrated on. Work within T/2 of ours is
then within T of the exact one. What is not is in doubt, and only float64 may say that it is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.engine.blocks import Shard
    from core.engine.numerics import NumericsProfile, Verdict
    from core.protocol.types import SamplingParams


def scaled(profile: NumericsProfile, factor: float) -> NumericsProfile:
    """The same promises with so many times the room."""
    return replace(
        profile,
        tolerance_by_depth=tuple((depth, t * factor) for depth, t in profile.tolerance_by_depth),
        short_by_depth=tuple((depth, t * factor) for depth, t in profile.short_by_depth),
        single_row=profile.single_row * factor,
        token_margin=profile.token_margin * factor,
        mean_margin=profile.mean_margin * factor,
    )


def halved(profile: NumericsProfile) -> NumericsProfile:
    """The same promises with half the room."""
    return scaled(profile, 0.5)


def rows_clear(
    profile: NumericsProfile, shard: Shard, inputs: Any, served: Any, sigma: Any
) -> tuple[Verdict, Any] | None:
    """What is measured against our own float32 rows, and these, where that clears the stage; None where it is in doubt.

    `inputs` are ids [T] or activations [T, D], `served` rows [T, D]. One row alone is held to the row's bound, or to T where
    the profile has none for so deep a shard.
    """
    from core.engine.numerics import judge_rows

    ours = _forward(shard, inputs, None)
    if ours is None:
        return None
    verdict = judge_rows(halved(profile), len(shard.layers), served, ours.numpy(), sigma)
    return None if verdict.at_fault or verdict.ratio > verdict.limit else (verdict, ours.numpy())


def tokens_clear(
    profile: NumericsProfile,
    shard: Shard,
    inputs: Any,
    tokens: Sequence[int],
    first_row: int,
    sampling: SamplingParams,
    request_index: int,
    **history: Any,
) -> Verdict | None:
    """The same of produced tokens by our own float32 logits; `history` as of `core.engine.numerics.judge_tokens`."""
    import torch

    from core.engine.numerics import judge_tokens

    logits = _forward(shard, inputs, torch.arange(first_row, first_row + len(tokens)))
    if logits is None:
        return None
    verdict = judge_tokens(
        halved(profile), logits.numpy(), tokens, sampling, request_index, **history
    )
    return None if verdict.at_fault else verdict


def _forward(shard: Shard, inputs: Any, rows: Any) -> Any:
    """All positions at once; None for inputs that no stage may be fed: where judging ends is for the exact re-run to say."""
    import torch

    x = inputs if shard.is_first else inputs.to(shard.dtype)
    try:
        found = shard.run_whole(x, rows)
    except ValueError:
        return None
    return found if bool(torch.isfinite(found).all()) else None
