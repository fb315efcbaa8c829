"""How do pages of keys and values lie in memory?

A pool row is one page of one key/value head, so that `index_select` gathers [R, K, S, d] in the
order that attention reads. Indexing by page, slot and head is slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from core.engine.memory.layout import PageShape
from core.engine.memory.pages import PAGE_TOKENS, Pages

Content = tuple[Tensor, Tensor]
"""Whole pages: keys [n·K, 16·d] and values [n·K, 16·e]."""


class PagePool:
    """Keys and values of one page shape, two flat tensors."""

    def __init__(
        self, shape: PageShape, pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        heads = shape.kv_heads
        # Zeros, because a padded product multiplies masked rows by 0, which NaN survives.
        self.keys = torch.zeros(
            pages * heads, PAGE_TOKENS * shape.key_dim, dtype=dtype, device=device
        )
        self.values = torch.zeros(
            pages * heads, PAGE_TOKENS * shape.value_dim, dtype=dtype, device=device
        )

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def rows(self, pages: Pages) -> Pages:
        """Row numbers [..., K, n] of pages [..., n]."""
        heads = self.shape.kv_heads
        found: Pages = pages[..., None, :] * heads + np.arange(heads)[:, None]
        return found

    def gather(self, rows: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
        """Keys [R, K, S, d] and values [R, K, S, e] of row numbers [R·K·n]."""
        keys = self.keys.index_select(0, rows)
        values = self.values.index_select(0, rows)
        heads = self.shape.kv_heads
        return (
            keys.view(sequences, heads, -1, self.shape.key_dim),
            values.view(sequences, heads, -1, self.shape.value_dim),
        )

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Put keys and values [≥ T, K, ·] into slots [T·K]: 16 a pool row. More are padding."""
        d, e = self.shape.key_dim, self.shape.value_dim
        if len(key) * key.shape[1] > len(slots):
            rows = len(slots) // key.shape[1]
            key, value = key[:rows], value[:rows]
        self.keys.view(-1, d).index_copy_(0, slots, key.reshape(-1, d))
        self.values.view(-1, e).index_copy_(0, slots, value.reshape(-1, e))

    def read_pages(self, pages: Pages) -> Content:
        """Copies of whole pages, keys [n·K, ·] and values [n·K, ·]."""
        rows = self._page_rows(pages)
        return self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def write_pages(self, pages: Pages, content: Content) -> None:
        """Fill whole pages [n]."""
        rows = self._page_rows(pages)
        self.keys.index_copy_(0, rows, content[0])
        self.values.index_copy_(0, rows, content[1])

    def clear(self, pages: Pages) -> None:
        """Put zeros into whole pages [n]."""
        rows = self._page_rows(pages)
        self.keys.index_fill_(0, rows, 0)
        self.values.index_fill_(0, rows, 0)

    def _page_rows(self, pages: Pages) -> Tensor:
        heads = self.shape.kv_heads
        rows = (pages[:, None] * heads + np.arange(heads)).reshape(-1)
        return torch.from_numpy(rows).to(self.keys.device)


class HotStore:
    """Pools of hot memory: every page lies where its number says."""

    def __init__(
        self,
        shapes: Sequence[PageShape],
        pages: Sequence[int],
        dtype: torch.dtype,
        devices: Sequence[torch.device],
    ) -> None:
        self.pools = [
            PagePool(shape, count, dtype, devices[shape.part])
            for shape, count in zip(shapes, pages, strict=True)
        ]

    def physical(self, number: int, pages: Pages, microbatch: int) -> Pages:
        """Where a microbatch's pages [...] lie in pool `number` during its turn: [...]."""
        return pages

    def read(self, number: int, pages: Pages, microbatch: int) -> Content:
        """Copies of whole pages [n], wherever they are now."""
        return self.pools[number].read_pages(pages)

    def write(self, number: int, pages: Pages, microbatch: int, content: Content) -> None:
        """Fill whole pages [n], wherever they are now."""
        self.pools[number].write_pages(pages, content)

    def clear(self, number: int, pages: Pages, microbatch: int) -> None:
        """Put zeros into whole pages [...] during the microbatch's turn."""
        self.pools[number].clear(self.physical(number, pages, microbatch))

    def touched(self, number: int, pages: Pages, in_page: Pages | slice, microbatch: int) -> None:
        """These positions [n] of pages [..., n] are written in this turn."""
