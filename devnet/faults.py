"""How does a machine lie, for demonstrations and tests?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from core.dispute.play.model import TraceModel
    from core.engine.model.blocks import ModelShard


def corrupt_layer(shard: ModelShard, layer: int, bits: int = 8) -> None:
    """Round every weight matrix of one owned layer to integers of so many bits, in place.

    One scale for each output channel. `layer` is the model's number. int8 is the cheapest
    believable lie where machines compute in float32: a quarter of the memory, and answers that read
    just as well. Raises ValueError for a layer that the shard lacks.
    """
    import torch

    if layer not in shard.layers:
        raise ValueError(f"layer {layer} is not among {shard.layers}")
    with torch.no_grad():
        for parameter in shard.decoder_layers[layer - shard.layers.start].parameters():
            if parameter.dim() == 2:
                parameter.copy_(_rounded(parameter, bits))


def _rounded(matrix: torch.Tensor, bits: int) -> torch.Tensor:
    most = 2 ** (bits - 1) - 1
    scale = matrix.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / most
    return (matrix / scale).round() * scale


def rounding_believer(layer: int, bits: int = 8) -> Callable[[TraceModel], TraceModel]:
    """A hook for a defence: it re-executes with the rounded weights, as if there were no others.

    So it finds the first value that its fault made, points at it, and loses by it.
    """

    def believe(model: TraceModel) -> TraceModel:
        import torch

        from core.dispute.play.model import TraceModel as Honest

        class Rounded(Honest):
            def tensor(self, part: int, number: int) -> Any:
                found = super().tensor(part, number)
                if part != layer or len(found) == 1:
                    return found
                return _rounded(torch.from_numpy(found.copy()), bits).numpy()

        return Rounded(model.folder, model.parts, model.tables)

    return believe


def slow_down(shard: ModelShard, ms_per_layer: float) -> None:
    """Make every step of a shard take this much longer, as a slower machine would."""
    import time

    decoder = shard.model.base_model  # what every stage runs, without the head
    forward = decoder.forward

    def slower(*args: object, **kwargs: object) -> object:
        time.sleep(ms_per_layer * len(shard.layers) / 1000)
        return forward(*args, **kwargs)

    decoder.forward = slower
