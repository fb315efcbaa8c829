"""Does this machine give a sequence the same bits beside any others?

Tried, not assumed, when a shard starts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.protocol.types import LayerRange

_OTHERS = 5
_PROMPT_TOKENS = 19
_STEPS = 3


def is_batch_invariant(
    engine: BatchEngine, *, layers: LayerRange | None = None, threads: Sequence[int] = ()
) -> bool:
    """Whether one sequence's outputs are bit-equal alone, among others, and with each of these
    thread counts. `layers` are those that it runs, all of the shard's by default; kernels go by
    shapes, which are mostly alike in all of them. Costs a few small steps. The engine must be able
    to hold six short requests, else KvShort; it is left as it was, and so is the number of threads.
    """
    before = torch.get_num_threads()
    try:
        alone = _outputs(engine, 0, layers)
        seen = [_outputs(engine, _OTHERS, layers)]
        for count in threads:
            torch.set_num_threads(count)
            seen += [_outputs(engine, 0, layers), _outputs(engine, _OTHERS, layers)]
    finally:
        torch.set_num_threads(before)
    return all(torch.equal(alone, other) for other in seen)


def _outputs(engine: BatchEngine, others: int, layers: LayerRange | None) -> Tensor:
    """Rows of a prompt and of steps after it: the last of each where logits are made, else all."""
    names = [("determinism", i) for i in range(others + 1)]
    from_ids = engine.shard.is_first and (layers is None or layers.start == 0)
    outs = []
    for name in names:
        engine.open(name, layers)
    try:
        for step in range(_STEPS):
            pieces = []
            for i, name in enumerate(names):
                count = _PROMPT_TOKENS + 2 * i if step == 0 else 1
                position = 0 if step == 0 else _PROMPT_TOKENS + 2 * i + step - 1
                rows = _rows(engine, i, position, count, from_ids)
                pieces.append(RequestPiece(name, rows, position))
            outs.append(engine.step(pieces)[0])
    finally:
        for name in names:
            engine.free(name)
    return torch.cat(outs)


def _rows(engine: BatchEngine, sequence: int, position: int, count: int, from_ids: bool) -> Tensor:
    shard = engine.shard
    made = torch.Generator().manual_seed(1000 * sequence + position)
    if from_ids:
        return torch.randint(shard.vocab, (count,), generator=made)
    return torch.randn(count, shard.hidden, generator=made)
