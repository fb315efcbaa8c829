"""What does each owned layer keep of a token, learned by running it, not from its config?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from core.engine.memory.layout import KvClass, KvLayout, PageShape
from core.engine.model.attention import chunk_rows
from core.engine.model.blocks import ModelShard
from core.engine.model.gates import LayerGates
from core.engine.model.library_pass import run_library
from core.protocol.errors import ModelUnsupported

_PROBE_ROWS = 5
_TOLERANCE = 1e-3


def learn_layout(shard: ModelShard, gates: LayerGates) -> KvLayout:
    """The attention classes of a shard, after proving on a few rows that our attention gives its
    answers. Raises ModelUnsupported when the layers do not ask for attention through the library's
    interface, exactly once each, or the answers differ: such a shard runs with a cache for each
    request.
    """
    if shard.is_first:
        x = torch.arange(_PROBE_ROWS) * 37 % shard.vocab
    else:
        made = torch.Generator().manual_seed(0)
        x = torch.randn(_PROBE_ROWS, shard.hidden, generator=made)
    x = x.to(shard.device, None if shard.is_first else shard.dtype)
    windows = shard.windows
    expected = shard.forward(x, shard.new_cache()).float()
    probe = _WindowProbe(gates, windows, shard.spread.part_of)
    try:
        got = _run(shard, gates, probe, x).float()
    except (NotImplementedError, AssertionError, TypeError) as error:
        raise ModelUnsupported(
            f"{shard.model.config.model_type} cannot share pages", why=str(error)
        ) from error
    if sorted(probe.seen) != list(range(len(windows))):
        raise ModelUnsupported(
            f"{shard.model.config.model_type} cannot share pages",
            why=f"{len(probe.seen)} of {len(windows)} layers ask for attention by name",
        )
    scale = max(1.0, float(expected.abs().max()))
    tolerance = _TOLERANCE if shard.dtype in (torch.float32, torch.float64) else 0.1
    difference = float((got.to(expected.device) - expected).abs().max()) / scale
    if not difference <= tolerance:
        raise ModelUnsupported(
            f"{shard.model.config.model_type} cannot share pages",
            why=f"paged attention changes its answers by {difference:.1e} of the largest",
        )
    shapes = tuple(dict.fromkeys(shape for _, shape in probe.seen.values()))
    by_kind: dict[tuple[int, int], list[int]] = {}
    for layer, (window, shape) in sorted(probe.seen.items()):
        by_kind.setdefault((window, shapes.index(shape)), []).append(layer)
    return KvLayout(
        shapes, tuple(KvClass(*kind, tuple(layers)) for kind, layers in by_kind.items())
    )


def _run(shard: ModelShard, gates: LayerGates, probe: _WindowProbe, x: Tensor) -> Tensor:
    every = torch.arange(len(x), device=x.device)
    keep = every.to(shard.spread.last) if shard.is_last else None
    with torch.inference_mode():
        made = run_library(shard, gates, probe, x, every, (0, len(gates.layers)), keep)
    return made if isinstance(made, Tensor) else made.logits


class _WindowProbe:
    """Plain causal attention that notes what every layer asks for."""

    def __init__(self, gates: LayerGates, windows: list[int], part_of: Sequence[int]) -> None:
        self._gates, self._windows, self._part_of = gates, windows, part_of
        self.seen: dict[int, tuple[int, PageShape]] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        layer = self._gates.layer
        if layer < 0 or layer in self.seen:
            raise NotImplementedError(
                f"layer {layer} asks for attention twice, or outside of a layer"
            )
        if query.shape[1] % key.shape[1] or query.shape[2] != key.shape[2]:
            raise NotImplementedError(f"attention of {list(query.shape)} over {list(key.shape)}")
        window, part = self._windows[layer], self._part_of[layer]
        self.seen[layer] = window, PageShape(key.shape[1], key.shape[3], value.shape[3], part)
        return chunk_rows(query[0], key[0], value[0], 0, 0, window, options)[None]
