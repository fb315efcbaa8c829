"""What tests of the batching engine share: tiny models in stages, driven together, and
transformers' own logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.kernels.prepack import prepack
from core.engine.memory.paged_kv import PagedKv
from core.engine.memory.prefix import PrefixIndex
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange

KV_BYTES = 2**22
#: Largest difference to transformers' logits that other kernels may make on these models, whose
#: logits stay below 10.
CLOSE = 2e-5


def make_stages(
    folder: Path,
    cut: Sequence[int],
    *,
    engine: Any = BatchEngine,
    packed: bool = False,
    **options: Any,
) -> list[Any]:
    """One engine per stage of a cut."""
    engines = []
    for a, b in itertools.pairwise(cut):
        shard = load_shard(folder, LayerRange(a, b))
        if packed:
            report = prepack(shard)
            assert report.packed and not report.plain, report
        engines.append(engine(shard, **({"kv_bytes": KV_BYTES} | options)))
    return engines


def run_step(
    stages: Sequence[Any],
    pieces: Sequence[tuple[Hashable, Tensor, int]],
    *,
    logits: str = "all",
    as_decodes: bool = False,
    **options: Any,
) -> list[Tensor]:
    """(request, ids, position) through all stages; the last one's outputs."""
    rows = [x for _, x, _ in pieces]
    for stage in stages:
        rows = stage.step(
            [
                RequestPiece(request, x, position, logits, as_decodes)
                for (request, _, position), x in zip(pieces, rows, strict=True)
            ],
            **options,
        )
    return rows


def feed(
    stages: Sequence[Any], request: Hashable, ids: Tensor, chunk: int | None = None, start: int = 0
) -> Tensor:
    """One request's ids alone, in chunks; its logits [n, V]."""
    outs = []
    for first in range(0, len(ids), chunk or len(ids)):
        part = ids[first : first + (chunk or len(ids))]
        outs += run_step(stages, [(request, part, start + first)])
    return torch.cat(outs)


def reference(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """transformers' logits for one sequence, uncut and uncached: [n, V]."""
    with torch.inference_mode():
        return model(input_ids=ids[None]).logits[0].float()


def ids_of(seed: int, count: int, vocab: int = 256) -> Tensor:
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed))


def off(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    return float((got - expected).abs().max())


def used_pages(kv: PagedKv) -> int:
    """Pages of all pools that are taken."""
    return sum(allocator.used_pages for allocator in kv.allocators)


def clear(index: PrefixIndex) -> None:
    """Let go of all that is kept."""
    for microbatch in range(16):
        while index.evict_one(microbatch):
            pass
