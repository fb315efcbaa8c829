"""How may an honest machine compute a shard's rows, by kernels of ours?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.kernels.prepack import prepack
from core.engine.model.attention import attention_by
from core.engine.model.blocks import Final, ModelShard, output_of

#: What a shard makes of ids [N] or rows [N, D]: rows [N, D]; at the model's end logits, or a
#: `Final` where the kernel keeps the rows itself.
Kernel = Callable[[ModelShard, Tensor], Any]


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


def in_company(
    shard: ModelShard, x: Tensor, prompt: int, batch: int, *, least_rows: int = 2
) -> Tensor | Final:
    """A request's `prompt` rows at once and then row by row, as a miner serves it beside
    `batch` - 1 others, of ids [N] or rows [N, D]: rows [N, D], at the model's end with logits.
    """
    engine = BatchEngine(shard, kv_bytes=2**27, prefix_share=0, least_rows=least_rows)
    got, others = [], list(range(batch - 1))
    try:
        for name in ("r", *others):
            engine.open(name)
        ends = [prompt, *range(prompt + 1, len(x) + 1)]
        for first, end in zip([0, *ends], ends, strict=False):
            pieces = [RequestPiece("r", x[first:end], first, "all")]
            for i in others:
                # Each of another length, so that rows of many positions meet in one step.
                at = i % min(7, len(x))
                fed = x[at : at + 1 + (i % 5 if first == 0 else 0)]
                pieces.append(RequestPiece(i, fed, engine.length(i), "last"))
            got.append(engine.step(pieces, states=True)[0])
    finally:
        engine.close()
    if isinstance(got[0], Final):
        return Final(*(torch.cat(parts).to(x.device) for parts in zip(*got, strict=True)))
    return torch.cat(got).to(x.device)


def served(batch: int) -> Kernel:
    """Half of the rows as a prompt, then one by one, as the engine serves them in a batch."""

    def run(shard: ModelShard, x: Tensor) -> Tensor | Final:
        return in_company(shard, x, max(1, len(x) // 2), batch)

    return run


def rows_of(kernel: Kernel, shard: ModelShard, x: Tensor) -> Tensor:
    """What a machine signs: the rows of the shard's last layer, at the model's end too."""
    if not shard.is_last:
        return kernel(shard, x)
    with output_of(shard.decoder_layers[-1]) as left:
        made = kernel(shard, x)
    if isinstance(made, Final):
        return made.rows
    return torch.cat([part.reshape(-1, shard.hidden) for part in left]).to(x.device)


_FUSED = "fused attention"
_EVERYWHERE: dict[str, Kernel] = {
    "prefill": whole,
    "chunks of 16": by_pieces(16),
    "decode": by_pieces(1),
    "eager attention": attending("eager"),
    _FUSED: attending("sdpa"),
}
_ON_PROCESSORS: dict[str, Kernel] = {"two threads": with_threads(2)}
#: Attention, captured steps and products of other shapes are a graphics processor's own.
_ON_DEVICES: dict[str, Kernel] = {f"served in batches of {n}": served(n) for n in (1, 8, 32)}
#: Beside these on processors: the shard with its matrices laid out for our own kernels.
PACKED = "our kernels"


def kernel_names(device: str) -> list[str]:
    """What `honest_ways` knows on a device such as cpu or cuda, sorted."""
    return sorted([*_kernels(device), *([PACKED] if _is_processor(device) else [])])


def _kernels(device: str) -> dict[str, Kernel]:
    return _EVERYWHERE | (_ON_PROCESSORS if _is_processor(device) else _ON_DEVICES)


def _is_processor(device: str) -> bool:
    return torch.device(device).type == "cpu"


def honest_ways(
    load: Callable[[], ModelShard], extra: Mapping[str, Kernel] | None = None
) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """What a machine signs of ids [N] or rows [N, D], rows [N, D], by each of our kernels.

    `load` gives the shard anew, on the device that is asked about; `extra` are further kernels.
    Scores with a soft cap have no fused attention.
    """
    shard = load()
    has_cap = getattr(shard.model.config, "attn_logit_softcapping", None) is not None
    known = {
        name: partial(rows_of, kernel, shard)
        for name, kernel in (_kernels(str(shard.device)) | dict(extra or {})).items()
        if not (has_cap and name == _FUSED)
    }
    if not _is_processor(str(shard.device)):
        return known
    packed = load()
    prepack(packed)
    return known | {PACKED: partial(rows_of, whole, packed)}
