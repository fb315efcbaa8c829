"""What does a shard remember of one request?

Keys and values live in buffers that grow by doubling and are handed to attention as views, where
transformers' own cache concatenates anew in every step. Lengths and offsets are those of the
library's dynamic cache, so attention sees the same shapes and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache as LibraryCache
from transformers.cache_utils import CacheLayerMixin

from core.protocol.errors import UsageError

_FIRST_ROWS = 64
#: Rows behind a sliding window that are kept so that a cache can be cut back.
WINDOW_SLACK_ROWS = 64


class _LayerStore(CacheLayerMixin):
    """Keys and values [1, K, rows, head_dim] of one layer; all are kept where `window` is 0."""

    def __init__(self, window: int = 0) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window > 0
        self.length = 0  # rows seen
        self._dropped = 0  # rows seen and no longer in the buffer
        self._keys = self._values = torch.empty(0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self._keys = _rows_like(key_states, 0)
        self._values = _rows_like(value_states, 0)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows and return views of what they may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[-2]
        visible = min(self.length, self.window - 1) if self.window else self.length
        self._make_room(new)
        start = self.length - self._dropped
        self._keys[:, :, start : start + new] = key_states
        self._values[:, :, start : start + new] = value_states
        self.length += new
        first = start - visible
        return (self._keys[:, :, first : start + new], self._values[:, :, first : start + new])

    def _make_room(self, new: int) -> None:
        held, room = self.length - self._dropped, self._keys.shape[-2]
        if held + new <= room:
            return
        keep = min(held, self.window - 1 + WINDOW_SLACK_ROWS) if self.window else held
        want = max(_FIRST_ROWS, 2 * keep, keep + new)
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            grown = _rows_like(old, want) if want > room else old
            grown[:, :, :keep] = old[:, :, held - keep : held].clone()
            setattr(self, name, grown)
        self._dropped = self.length - keep

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on."""
        needed_from = max(0, length - self.window + 1) if self.window else 0
        if needed_from < self._dropped:
            raise UsageError(
                f"cannot cut a request back to {length} positions",
                why=f"a sliding window has forgotten the first {self._dropped}",
                next_step="feed the request's tokens again from position 0",
            )
        self.length = min(self.length, length)

    @property
    def bytes(self) -> int:
        if not self.is_initialized:
            return 0
        return self._keys.nbytes + self._values.nbytes

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        seen = min(self.length, self.window - 1) if self.window else self.length
        return seen + query_length, self.length - seen

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.window or -1


class Cache:
    """What a shard remembers of a request: keys and values of `length` positions in each layer."""

    def __init__(self, windows: Sequence[int]) -> None:
        """One entry per owned layer: its sliding window, or 0 for full attention."""
        self._stores = [_LayerStore(window) for window in windows]
        self.library = LibraryCache(layers=list(self._stores))

    @property
    def length(self) -> int:
        return self._stores[0].length

    @property
    def bytes(self) -> int:
        """Memory held, spare rows included."""
        return sum(store.bytes for store in self._stores)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on, so that it can be fed again.

        Raises UsageError if a sliding window no longer holds what is needed to go on from there;
        the cache is then unchanged.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut {self.length} positions to {length}")
        before = self.length
        try:
            for store in self._stores:
                store.truncate(length)
        except UsageError:
            for store in self._stores:
                store.length = before
            raise


def _rows_like(states: torch.Tensor, rows: int) -> torch.Tensor:
    return states.new_empty((*states.shape[:-2], rows, states.shape[-1]))
