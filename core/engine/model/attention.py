"""How do many requests' rows attend to their own pages in one pass of the library's layers?

transformers hands queries, keys and values of every layer to an attention function by name. Ours is
registered once; it calls whatever pass this thread is running. Because the name is unknown to the
library's mask builder no mask is built, and the pass does causality, sliding windows, grouped
heads, soft-capping and sinks itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache as LibraryCache

from core.engine.model.library import AttentionInterface

NAME = "headrace_paged"
_QUERY_ROWS = 128


class Pass(Protocol):
    """What answers the layers' attention calls during one pass."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """[1, H, T, d], [1, K, T, d], [1, K, T, e], the library's `options` → [1, T, H, e]."""
        ...


class _Running(threading.local):
    present: Pass | None = None


_running = _Running()


class ForwardingCache(LibraryCache):
    """Stands where layers expect a cache, and keeps nothing: keys and values go to the pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """[1, K, T, d] and [1, K, T, e], as they came."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


@contextmanager
def attention_by(config: Any, kind: str) -> Iterator[None]:
    """Within, this model's layers attend by one of the library's functions, such as `eager`."""
    before = config._attn_implementation
    config._attn_implementation = kind
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def attending(config: Any, present: Pass) -> Iterator[None]:
    """Within, every attention call of this model in this thread goes to `present`."""
    with attention_by(config, NAME):
        _running.present = present
        try:
            yield
        finally:
            _running.present = None


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    assert _running.present is not None, "paged attention outside of a pass"
    if attention_mask is not None:
        raise NotImplementedError("the model brings a mask of its own")
    if options.get("scaling") is None:
        options["scaling"] = getattr(module, "scaling", None) or query.shape[-1] ** -0.5
    return _running.present.attend(query, key, value, options), None


AttentionInterface.register(NAME, _attention)


def decode_rows(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """One row for each sequence: [R, H, d] over [R, K, S, d] and [R, K, S, e], mask [R·K, 1, S] →
    [R, H, e]. Every sequence is its own small product of its own padded length, so its bits depend
    neither on the others nor on the number of threads.
    """
    R, K, S, d = keys.shape
    grouped = query.reshape(R * K, -1, d)  # [R·K, g, d]
    out = _attend(
        grouped,
        keys.view(R * K, S, d),
        values.view(R * K, S, -1),
        mask,
        _sinks(options, R, K),
        options,
    )
    return out.reshape(R, query.shape[1], -1)


def chunk_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    first: int,
    position: int,
    window: int,
    options: dict[str, Any],
) -> Tensor:
    """Consecutive rows of one request: [H, n, d] over [K, S, d] and [K, S, e] → [n, H, e].

    Row i stands at `position` + i, key j at `first` + j. Runs in blocks of 128 rows, each over no
    more keys than its last row sees.
    """
    H, n, d = query.shape
    K = keys.shape[0]
    if query.is_cuda and not window and _is_fusible(query, options.get("s_aux"), options):
        seen = position + n - first
        return fused_chunk(query, keys[:, :seen], values[:, :seen], options)
    outs = []
    for start in range(0, n, _QUERY_ROWS):
        end = min(n, start + _QUERY_ROWS)
        seen = min(keys.shape[1], position + end - first)
        hidden = max(0, position + start + 1 - window - first) if window else 0
        mask = causal_mask(
            position + start, end - start, first + hidden, seen - hidden, window, keys.device
        )
        rows = query[:, start:end].reshape(K, -1, d)  # [K, g·n, d]
        mask = mask.expand(H // K, -1, -1).reshape(1, rows.shape[1], seen - hidden)
        sinks = _sinks(options, 1, K)
        if sinks is not None:
            sinks = sinks.repeat_interleave(end - start, 1)
        out = _attend(rows, keys[:, hidden:seen], values[:, hidden:seen], mask, sinks, options)
        outs.append(out.view(H, end - start, -1).transpose(0, 1))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def fused(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """As `_attend` without sinks, [N, m, d] → [N, m, e], by the library's fused kernels."""
    mask = mask.to(query.dtype).expand(len(query), query.shape[1], -1)
    out: Tensor = nn.functional.scaled_dot_product_attention(
        query[:, None], keys[:, None], values[:, None], mask[:, None], scale=options["scaling"]
    )
    return out[:, 0]


def fused_chunk(query: Tensor, keys: Tensor, values: Tensor, options: dict[str, Any]) -> Tensor:
    """As `chunk_rows`, [H, n, d] → [n, H, e], for the last n of S positions of a request without a
    window, by flash attention where a device has it.
    """
    # Slow to import, and of no use on a processor.
    from torch.nn.attention.bias import causal_lower_right

    out: Tensor = nn.functional.scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        causal_lower_right(query.shape[1], keys.shape[1]),
        scale=options["scaling"],
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def _is_fusible(query: Tensor, sinks: Tensor | None, options: dict[str, Any]) -> bool:
    return sinks is None and options.get("softcap") is None and query.dtype != torch.float64


def causal_mask(
    position: int, rows: int, first: int, keys: int, window: int, device: torch.device
) -> Tensor:
    """[rows, keys]: 0 where a row may look, −inf where it may not."""
    at = torch.arange(position, position + rows, device=device)[:, None]
    key = torch.arange(first, first + keys, device=device)[None]
    closed = key > at
    if window:
        closed |= key <= at - window
    return torch.zeros(rows, keys, device=device).masked_fill_(closed, float("-inf"))


def _sinks(options: dict[str, Any], sequences: int, K: int) -> Tensor | None:
    sinks: Tensor | None = options.get("s_aux")
    if sinks is None:
        return None
    return sinks.float().view(1, K, -1).expand(sequences, -1, -1).reshape(sequences * K, -1)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    sinks: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """[N, m, d] over [N, S, d] and [N, S, e], mask to [N, m, S], sinks [N, m] → [N, m, e]."""
    dtype = query.dtype
    if query.is_cuda and _is_fusible(query, sinks, options):
        # One kernel, without the scores in memory. On a processor its sums would change
        # with the other rows.
        return fused(query, keys, values, mask, options)
    if dtype not in (torch.float32, torch.float64):
        query, keys, values = query.float(), keys.float(), values.float()
    if mask.dtype != query.dtype:
        mask = mask.to(query.dtype)
    cap = options.get("softcap")
    if cap is None:
        scores = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=options["scaling"])
    else:
        scores = torch.bmm(query, keys.transpose(1, 2)).mul_(options["scaling"] / cap)
        scores = scores.tanh_().mul_(cap).add_(mask)
    if sinks is None:
        weights = torch.softmax(scores, -1)
    else:
        column = sinks.to(scores.dtype).unsqueeze(-1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1].contiguous()
    out = torch.bmm(weights, values)
    return out if out.dtype == dtype else out.to(dtype)
