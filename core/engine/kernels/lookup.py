"""How is an embedding looked up without keeping the table in memory?

A machine that holds a whole model with a shared matrix needs it twice once the head is packed. The
embedding's copy then stays in the model's file, mapped: a step reads one row for each token, and
the pages belong to the system's cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from core.engine.model.blocks import ModelShard
from core.engine.weights.headers import TensorEntry
from core.engine.weights.tensors import TensorFolder

_MAPPED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_COMPARED_ROWS = 64


def map_embedding(shard: ModelShard, model_dir: Path) -> bool:
    """Look ids up in the file and free the table; False where no stored tensor is the table."""
    table = shard.model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        return False
    weight = table.weight
    if weight.is_meta or shard.device.type != "cpu":
        return False
    rows = torch.linspace(0, len(weight) - 1, _COMPARED_ROWS, dtype=torch.float64).long()
    for entry in TensorFolder(model_dir).entries():
        if entry.shape != tuple(weight.shape) or entry.dtype not in _MAPPED:
            continue
        stored = _map(entry)
        if torch.equal(stored[rows].to(weight.dtype), weight[rows]):
            _look_up_in(table, stored, weight.dtype)
            return True
    return False


def _map(entry: TensorEntry) -> Tensor:
    # Copy-on-write: torch knows no read-only tensors, and nobody writes.
    raw = np.memmap(entry.file, np.uint8, "c", entry.offset_bytes, (entry.size_bytes,))
    return torch.from_numpy(raw).view(_MAPPED[entry.dtype]).view(entry.shape)


def _look_up_in(table: nn.Embedding, stored: Tensor, dtype: torch.dtype) -> None:
    """The module keeps its own way of embedding, on a table of only the rows that are asked for."""
    inner, columns = table.forward, stored.shape[1]
    table.padding_idx = None  # it names a row of the whole table

    def forward(ids: Tensor) -> Tensor:
        rows = stored.index_select(0, ids.reshape(-1)).to(dtype)
        table.weight = nn.Parameter(rows, requires_grad=False)
        found: Tensor = inner(torch.arange(ids.numel()).view(ids.shape))
        return found

    table.weight = nn.Parameter(torch.empty(0, columns, dtype=dtype), requires_grad=False)
    table.forward = forward
