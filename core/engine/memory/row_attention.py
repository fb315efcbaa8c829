"""How do single rows attend to their pages where they lie, without gathering them first?

Through `paged_rows.c`, for float32 on a processor and attention without soft-capping and sinks; the
rest goes the long way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.engine.memory.pages import PAGE_TOKENS, Pages
from core.engine.memory.pool import PagePool
from core.engine.native.native import NoKernels, kernels


def is_direct(pool: PagePool) -> bool:
    """Whether rows of this pool can be attended to where they lie."""
    if pool.keys.dtype != torch.float32 or pool.keys.device.type != "cpu":
        return False
    try:
        kernels()
    except NoKernels:
        return False
    return True


def is_plain(options: dict[str, Any]) -> bool:
    """Whether attention is nothing but a softmax of scaled products."""
    return options.get("softcap") is None and options.get("s_aux") is None


def put(pool: PagePool, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """The first of keys and values [K, T, ·] into slots [T·K]; more rows are padding."""
    heads = pool.shape.kv_heads
    rows = len(slots) // heads
    for rows_of, target, width in (
        (key, pool.keys, pool.shape.key_dim),
        (value, pool.values, pool.shape.value_dim),
    ):
        if rows_of.stride(2) != 1 or rows_of.dtype != torch.float32:
            rows_of = rows_of.to(torch.float32).contiguous()
        kernels().put(
            rows_of.data_ptr(),
            rows_of.stride(1),
            rows_of.stride(0),
            slots.data_ptr(),
            target.data_ptr(),
            rows,
            heads,
            width,
        )


class SeenRows:
    """What single rows see: of each layer and row its pages, and which of their tokens."""

    def __init__(
        self, pool: PagePool, pages: Sequence[Pages], begin: Sequence[int], end: Sequence[int]
    ) -> None:
        """`pages` [layers, n] of each row, where they lie; of them it sees tokens [begin, end)."""
        most = max(found.shape[1] for found in pages)
        self._pool = pool
        self._pages = np.zeros((len(pages[0]), len(pages), most), np.int64)
        for row, found in enumerate(pages):
            self._pages[:, row, : found.shape[1]] = found
        self._begin, self._end = np.array(begin, np.int32), np.array(end, np.int32)
        assert int(self._end.max()) <= most * PAGE_TOKENS
        self._at = (self._pages.ctypes.data, self._begin.ctypes.data, self._end.ctypes.data)

    def at(self, layer: int) -> tuple[int, int, int, int]:
        """Where a layer's pages and the rows' begins and ends lie, and a row's most pages."""
        pages, begin, end = self._at
        return pages + self._pages.strides[0] * layer, begin, end, self._pages.shape[2]

    def attend(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """[R, H, d] of each row's new token → [R, H, e]; `layer` counts those of `pages`."""
        if query.stride(2) != 1 or query.dtype != torch.float32:
            query = query.to(torch.float32).contiguous()
        shape, (rows, H, _) = self._pool.shape, query.shape
        pages, begin, end = self._at
        out = torch.empty(rows, H, shape.value_dim)
        failed = kernels().attend(
            query.data_ptr(),
            query.stride(0),
            query.stride(1),
            self._pool.keys.data_ptr(),
            self._pool.values.data_ptr(),
            pages + self._pages.strides[0] * layer,
            self._pages.shape[2],
            begin,
            end,
            out.data_ptr(),
            rows,
            shape.kv_heads,
            H // shape.kv_heads,
            shape.key_dim,
            shape.value_dim,
            scaling,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the scores of a step")
        return out
