"""Is a stage's work clean beyond doubt by a float32 re-run, so that no float64 one is needed?

Our float32 run is within T/2 of the exact one, by what the profile was calibrated on. Work within
T/2 of ours is then within T. What is not is in doubt: only float64 may say that it is a fault.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.dispute.judging.numerics import NumericsProfile, NumericsVerdict, TokenMargins
    from core.engine.model.blocks import ModelShard


def scaled(profile: NumericsProfile, factor: float) -> NumericsProfile:
    """The same promises with so many times the room."""
    return replace(
        profile,
        tolerance_by_depth=tuple((depth, t * factor) for depth, t in profile.tolerance_by_depth),
        short_by_depth=tuple((depth, t * factor) for depth, t in profile.short_by_depth),
        single_row=profile.single_row * factor,
        token_margin=profile.token_margin * factor,
        replay_margin=profile.replay_margin * factor,
        mean_margin=profile.mean_margin * factor,
    )


def halved(profile: NumericsProfile) -> NumericsProfile:
    """The same promises with half the room."""
    return scaled(profile, 0.5)


def rows_clear(
    profile: NumericsProfile, shard: ModelShard, inputs: Any, served: Any, sigma: Any
) -> tuple[NumericsVerdict, Any] | None:
    """The verdict by our own float32 rows, and these [T, D], if it clears the stage; else None.

    `inputs` are ids [T] or activations [T, D], `served` rows [T, D]. One row alone is held to the
    row's bound, or to T where the profile has none for so deep a shard.
    """
    ours = _forward(shard, inputs, None)
    return None if ours is None else _rows_clear(profile, shard, ours.numpy(), served, sigma)


def ends_clear(
    profile: NumericsProfile,
    shard: ModelShard,
    inputs: Any,
    served: Any,
    sigma: Any,
    margins: TokenMargins,
) -> tuple[NumericsVerdict, Any, NumericsVerdict] | None:
    """The same of a last stage's state rows [T, D], and the verdict on its T tokens by `margins`:
    by norm and head of these very rows, whatever we make of the layers.

    `inputs` are of all N positions: ids [N] or activations [N, D].
    """
    import torch

    wanted = torch.arange(len(inputs) - len(margins.tokens), len(inputs))
    made = _forward(shard, inputs, wanted, margins, torch.from_numpy(served))
    if made is None or not margins.are_all_finite:
        return None
    rows = _rows_clear(profile, shard, made.rows.numpy(), served, sigma)
    verdict = margins.verdict(halved(profile))
    return None if rows is None or verdict.at_fault else (*rows, verdict)


def _rows_clear(
    profile: NumericsProfile, shard: ModelShard, ours: Any, served: Any, sigma: Any
) -> tuple[NumericsVerdict, Any] | None:
    from core.dispute.judging.numerics import judge_rows

    verdict = judge_rows(halved(profile), len(shard.layers), served, ours, sigma)
    return None if verdict.at_fault or verdict.ratio > verdict.limit else (verdict, ours)


def _forward(
    shard: ModelShard, inputs: Any, rows: Any, draw: Any = None, served: Any = None
) -> Any:
    """Rows of all positions, or of a last stage these `rows`; logits of `served` given to `draw`.

    None for inputs that no stage may be fed: judging them is for the exact re-run.
    """
    import torch

    from core.engine.batch.whole import run_whole

    x = inputs if shard.is_first else inputs.to(shard.dtype)
    try:
        found = run_whole(shard, x, rows, states=True, draw=draw, served=served)
    except ValueError:
        return None
    made = found.rows if isinstance(found, tuple) else found
    return found if bool(torch.isfinite(made).all()) else None
