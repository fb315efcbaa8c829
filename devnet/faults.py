"""How does a machine lie, for demonstrations and tests?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.engine.blocks import Shard


def corrupt_layer_int8(shard: Shard, layer: int) -> None:
    """Round every weight matrix of one owned layer to int8 per output channel and back, in place.

    `layer` is the model's number. This is the cheapest believable lie: a quarter of the memory, and answers
    that read just as well. Raises ValueError for a layer that the shard lacks.
    """
    import torch

    if layer not in shard.layers:
        raise ValueError(f"layer {layer} is not among {shard.layers}")
    with torch.no_grad():
        for parameter in shard.decoder_layers[layer - shard.layers.start].parameters():
            if parameter.dim() == 2:
                scale = parameter.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / 127
                parameter.copy_(torch.round(parameter / scale) * scale)


def int8_liar(layer: int) -> Callable[[Shard], None]:
    """A hook for machines that accept one after loading: makes them lie in this layer."""
    return partial(corrupt_layer_int8, layer=layer)


def slow_down(shard: Shard, ms_per_layer: float) -> None:
    """Make every step of a shard take so much longer, as a slower machine would."""
    import time

    decoder = (
        shard.model.base_model
    )  # what every stage runs; only the last one runs the head around it
    forward = decoder.forward

    def slower(*args: object, **kwargs: object) -> object:
        time.sleep(ms_per_layer * len(shard.layers) / 1000)
        return forward(*args, **kwargs)

    decoder.forward = slower
