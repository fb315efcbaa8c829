"""How do rows of a pass run through a run of the library's own layers?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from core.engine.model.attention import ForwardingCache, Pass, attending
from core.engine.model.blocks import Final, ModelShard
from core.engine.model.gates import LayerGates


def run_library(
    shard: ModelShard,
    gates: LayerGates,
    present: Pass,
    x: Tensor,
    positions: Tensor,
    layers: tuple[int, int],
    keep: Tensor | int | None,
    taps: Collection[int] = (),
    tapped: list[Tensor] | None = None,
) -> Tensor | Final:
    """Layers [start, end) of a shard for ids x [T] or activations [T, D] at `positions` [T], which
    lie where rows enter the shard. → activations [T, D] where `keep` is None, else these rows with
    their logits, 0 meaning all of them. `present` answers the layers' attention. `tapped` is
    lengthened by what entered the layers `taps` [T, D]. What is given, and `keep`, lies where rows
    leave the shard.
    """
    start, end = layers
    from_ids = start == 0 and shard.is_first
    arguments: dict[str, Any] = {
        "input_ids" if from_ids else "inputs_embeds": x[None],
        "position_ids": positions[None],
        "past_key_values": ForwardingCache(),
        "use_cache": True,
    }
    with (
        gates.only(start, end, None if from_ids else x[None], taps),
        attending(shard.model.config, present),
    ):
        if keep is None:
            shard.model.base_model(**arguments)
            logits = None
        else:
            logits = shard.model(**arguments, logits_to_keep=keep).logits[0]
        rows = gates.out[0].to(shard.spread.last)
        if tapped is not None:
            tapped += [part[0].to(shard.spread.last) for part in gates.tapped]
        if logits is None:
            return rows
        return Final(rows[keep] if isinstance(keep, Tensor) else rows[-keep:], logits)
