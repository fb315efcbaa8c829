"""How may an honest machine compute a shard's rows, by kernels of ours?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from core.engine.kernels.prepack import prepack
from core.engine.model.attention import attention_by
from core.engine.model.blocks import ModelShard, output_of

#: What a shard makes of ids [N] or rows [N, D]: rows [N, D], or logits at the model's end.
Kernel = Callable[[ModelShard, Tensor], Tensor]


def whole(shard: ModelShard, x: Tensor) -> Tensor:
    return shard.forward(x, shard.new_cache())


def by_pieces(length: int) -> Kernel:
    def run(shard: ModelShard, x: Tensor) -> Tensor:
        cache = shard.new_cache()
        return torch.cat(
            [shard.forward(x[i : i + length], cache) for i in range(0, len(x), length)]
        )

    return run


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Within, torch computes on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_threads(threads: int) -> Kernel:
    def run(shard: ModelShard, x: Tensor) -> Tensor:
        with on_threads(threads):
            return whole(shard, x)

    return run


def attending(kind: str) -> Kernel:
    def run(shard: ModelShard, x: Tensor) -> Tensor:
        with attention_by(shard.model.config, kind):
            return whole(shard, x)

    return run


def rows_of(kernel: Kernel, shard: ModelShard, x: Tensor) -> Tensor:
    """What a machine signs: the rows of the shard's last layer, at the model's end too."""
    if not shard.is_last:
        return kernel(shard, x)
    with output_of(shard.decoder_layers[-1]) as left:
        kernel(shard, x)
    return torch.cat([part.reshape(-1, shard.hidden) for part in left])


_FUSED = "fused attention"
KERNELS: dict[str, Kernel] = {
    "prefill": whole,
    "chunks of 16": by_pieces(16),
    "decode": by_pieces(1),
    "two threads": with_threads(2),
    "eager attention": attending("eager"),
    _FUSED: attending("sdpa"),
}
#: Beside these: the shard with its matrices laid out for our own kernels.
PACKED = "our kernels"


def honest_ways(
    load: Callable[[], ModelShard], extra: Mapping[str, Kernel] | None = None
) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """What a machine signs of ids [N] or rows [N, D], rows [N, D], by each of our kernels.

    `load` gives the shard anew; `extra` are further kernels. Scores with a soft cap have no fused
    attention.
    """
    shard, packed = load(), load()
    prepack(packed)
    has_cap = getattr(shard.model.config, "attn_logit_softcapping", None) is not None
    known = {
        name: k
        for name, k in (KERNELS | dict(extra or {})).items()
        if not (has_cap and name == _FUSED)
    }
    return {name: partial(rows_of, kernel, shard) for name, kernel in known.items()} | {
        PACKED: partial(rows_of, whole, packed)
    }
