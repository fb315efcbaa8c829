"""Does a stage's work stand out of the noise that an honest machine has on the same rows?

Coarser weights can lie inside a tolerance that must hold for every machine. Divided by the
deviation of our own executions of the same rows they show, since rows are sensitive for every
kernel. That is a reason to look elsewhere, and never a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.dispute.judging.numerics import NumericsProfile
    from core.engine.model.blocks import ModelShard

#: In float32 less than this share of T is honest, by what T was calibrated on.
LEAST_SHARE = 0.5


def is_due(profile: NumericsProfile, ratio: float, limit: float) -> bool:
    """Whether to look at work that is not at fault: its D/S is `ratio`, T is `limit`.

    In bfloat16 always: honest noise there leaves room for coarser weights at every depth.
    """
    from core.dispute.judging.numerics import BF16

    if profile.is_shadow or ratio > limit:
        return False
    return profile.name == BF16.name or ratio > LEAST_SHARE * limit


def suspicion(
    profile: NumericsProfile, own: ModelShard, inputs: Any, served: Any, reference: Any, sigma: Any
) -> str:
    """Why rows [T, D] within the tolerance are suspicious all the same; "" where they are not.

    `own` is the stage as its machines hold it, `inputs` ids [N] or activations [N, D] of which the
    last T positions were served, `reference` rows [T, D] in float64, or in float32 where machines
    compute in bfloat16. Costs one execution for each kind of attention that the family has.
    """
    import numpy as np

    from core.dispute.judging.numerics import (
        StudentVerdict,
        standing_of,
        studentised,
        whitened_relative_l2,
    )
    from core.engine.model.attention import attention_by

    x = inputs if own.is_first else inputs.to(own.dtype)
    squares = []
    config = own.model.config
    for kind in dict.fromkeys((config._attn_implementation, "eager")):
        with attention_by(config, kind):
            rows = _rows(own, x)[-len(served) :].double().numpy()
        squares.append(whitened_relative_l2(rows, reference, sigma).rows ** 2)
    noise = np.sqrt(np.mean(squares, axis=0))
    q = studentised(whitened_relative_l2(served, reference, sigma).rows, noise)
    if standing_of(profile, q) != StudentVerdict.SUSPICIOUS:
        return ""
    noise_of = f"{q:.1f} times the noise of an honest machine on the same rows"
    return f"{noise_of}, more than {profile.suspicious_q:g}"


def _rows(own: ModelShard, x: Any) -> Any:
    """What the stage's last layer gives at every position [N, D]."""
    from core.engine.model.blocks import output_of

    with output_of(own.decoder_layers[-1]) as left:
        made = own.forward(x, own.new_cache(), last_only=True)
    return left[0].reshape(len(x), -1).to(made.device) if own.is_last else made
