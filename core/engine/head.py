"""What do norm and head make of the last layer's rows, and how much of it is in memory at once?

Logits are as wide as the vocabulary: those of 160 rows of Gemma's are 160 MiB, those of an answer that an auditor judges in float64
are 2 MiB a token. Whoever takes them as they come is given a few rows at a time, in a buffer that the next few use again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.engine.blocks import Draw, Final
from core.engine.heap import REUSED_BYTES


def ended(model: Any, states: Tensor, draw: Draw | None, *, least_rows: int = 1) -> Final:
    """Rows [n, D] of the last layer with their logits, or what `draw` makes of each, by the model's own `norm` and output embeddings.

    Products are of at least so many rows that the bits of one do not depend on the others.
    """
    if draw is None:
        return final(states, _logits(model, states, least_rows), None)
    head = model.get_output_embeddings()
    row_bytes = head.out_features * max(4, states.element_size())
    blocks = min(len(states), -(-len(states) * row_bytes // REUSED_BYTES))
    drawn: list[Any] = []
    for block in states.tensor_split(blocks) if blocks else ():
        drawn += draw(full(_logits(model, block, least_rows)))
    return Final(states, drawn)


def final(states: Tensor, logits: Tensor, draw: Draw | None) -> Final:
    """The same where the logits are there already."""
    return Final(states, full(logits) if draw is None else draw(full(logits)))


def full(logits: Tensor) -> Tensor:
    """In float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _logits(model: Any, states: Tensor, least_rows: int) -> Tensor:
    count = len(states)
    if count < least_rows:
        states = torch.cat([states, *[states[-1:]] * (least_rows - count)])
    logits: Tensor = model.get_output_embeddings()(model.base_model.norm(states))
    return logits[:count]
