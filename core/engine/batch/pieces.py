"""What does a request bring to a step, and what is wrong with it?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.engine.model.blocks import MAX_ACTIVATION, ModelShard
from core.protocol.errors import ContextTooLong, UsageError
from core.protocol.types import LayerRange

ALL, LAST, NONE = "all", "last", "none"


@dataclass(frozen=True)
class RequestPiece:
    """Positions `position` … `position + n − 1` of one request.

    `x` is ids [n] int64 where the request enters at the embedding, else activations [n, D].
    Positions that the request already has are run again. `logits` says which rows of a last stage
    are wanted: all, last or none. `as_decodes` gives the n rows the bits of n steps of one row
    each: for drafts, and to repeat what was decoded. With `links`, those of all chunks of the
    request up to this one (`core.engine.memory.prefix`), it is kept for others with the same.
    """

    request: Hashable
    x: Tensor
    position: int
    logits: str = LAST
    as_decodes: bool = False
    links: Sequence[bytes] = ()


class OpenedRequest(Protocol):
    """What a piece is checked against."""

    start: int

    @property
    def length(self) -> int: ...


def relative_layers(shard: ModelShard, layers: LayerRange | None) -> tuple[int, int]:
    """[start, end) in the shard's own numbers. Raises UsageError for layers it does not hold."""
    if layers is None:
        return 0, len(shard.layers)
    if not shard.layers.start <= layers.start < layers.end <= shard.layers.end:
        raise UsageError(
            f"layers {layers} are not here", why=f"this machine holds layers {shard.layers}"
        )
    return layers.start - shard.layers.start, layers.end - shard.layers.start


def check_piece(
    shard: ModelShard, held: OpenedRequest | None, piece: RequestPiece, *, values: bool = True
) -> None:
    """Raises ValueError, ContextTooLong or UsageError; without `values` no number is looked at."""
    if held is None:
        raise UsageError(f"request {piece.request} is not open")
    if not 0 <= piece.position <= held.length:
        raise ValueError(f"position {piece.position} of a request of {held.length}")
    x = piece.x
    if shard.is_first and held.start == 0:
        if x.dim() != 1 or x.dtype != torch.int64 or not len(x):
            raise ValueError(f"a request enters with ids [n] int64, not {_kind(x)}")
        if values and not 0 <= int(x.min()) <= int(x.max()) < shard.vocab:
            raise ValueError(f"ids outside [0, {shard.vocab}): {int(x.min())} … {int(x.max())}")
    elif x.dim() != 2 or x.shape[1] != shard.hidden or not len(x):
        raise ValueError(f"a request enters with activations [n, {shard.hidden}], not {_kind(x)}")
    elif values and not bool((x.abs() <= MAX_ACTIVATION).all()):
        raise ValueError(f"activations hold NaN or values beyond ±{MAX_ACTIVATION:.0e}")
    if piece.position + len(x) > shard.context:
        raise ContextTooLong(
            prompt_tokens=piece.position + len(x), max_new_tokens=0, context_tokens=shard.context
        )


def _kind(x: Tensor) -> str:
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}"
