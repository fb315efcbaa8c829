"""What do norm and head make of the last layer's rows, and how much of it is in memory at once?

Logits are as wide as the vocabulary. A `Draw` is given some rows of them at a time, in memory that
the next ones overwrite: fresh memory is zeroed first. They are not few at a time, because a head
that is read for few rows waits for its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from core.engine.kernels.layouts import Panels, aligned
from core.engine.kernels.prepack import PackedLinear
from core.engine.memory.heap import REUSED_BYTES
from core.engine.model.blocks import Draw, Final

#: Memory that a head keeps for its logits, for as many rows as come together: larger products are
#: faster, by less and less (`docs/engine.md`, "Where constants come from").
SPACE_BYTES = 64 * 2**20


def ended(model: Any, states: Tensor, draw: Draw | None, *, least_rows: int = 1) -> Final:
    """Rows [n, D] of the last layer with their logits, or what `draw` makes of each, by the model's
    own `norm` and output embeddings. Products are of at least `least_rows` rows, so that the bits
    of one do not depend on the others.
    """
    if draw is None:
        return final(states, _logits(model, states, least_rows), None)
    head = model.get_output_embeddings()
    row_bytes = head.out_features * max(4, states.element_size())
    drawn: list[Any] = []
    with _lent(head, len(states) * row_bytes) as space:
        most = REUSED_BYTES if space is None else SPACE_BYTES
        blocks = min(len(states), -(-len(states) * row_bytes // most))
        for block in states.tensor_split(blocks) if blocks else ():
            drawn += draw(full(_logits(model, block, least_rows, space)))
    return Final(states, drawn)


def final(states: Tensor, logits: Tensor, draw: Draw | None) -> Final:
    """The same of rows [n, D] where the logits [n, V] are there already."""
    return Final(states, full(logits) if draw is None else draw(full(logits)))


def full(logits: Tensor) -> Tensor:
    """Logits [n, V] in float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


@contextmanager
def _lent(head: Any, size_bytes: int) -> Iterator[Tensor | None]:
    """The memory that a head keeps; None where reused blocks suffice, or it cannot be filled."""
    fills = isinstance(head, PackedLinear) and isinstance(head.layout, Panels)
    if size_bytes <= REUSED_BYTES or not fills:
        yield None
        return
    dtype = head.layout.dtype
    # A caller on another thread is lent other memory meanwhile.
    space = head.spaces.pop() if head.spaces else aligned(SPACE_BYTES // dtype.itemsize, dtype)
    try:
        yield space
    finally:
        head.spaces.append(space)


def _logits(model: Any, states: Tensor, least_rows: int, space: Tensor | None = None) -> Tensor:
    count = len(states)
    if count < least_rows:
        states = torch.cat([states, *[states[-1:]] * (least_rows - count)])
    head, normed = model.get_output_embeddings(), model.base_model.norm(states)
    logits: Tensor = head(normed) if space is None else head(normed, space)
    return logits[:count]
