"""Run with folders of models: serves each of them on two devices that are not there.

Tensors on `card:0` and `card:1` have a shape and a device and no numbers. An operator that is given
those of two devices fails, unless one of them only says which rows are picked. It is a process of
its own, because a device is registered for good. What looks at numbers is left out: what is read,
what rows hold, what a layer keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from core.engine.batch import batch
from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import ALL, RequestPiece
from core.engine.model.blocks import Final, ModelShard
from core.engine.weights import cut_shard, loading
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange

CARDS = ("card:0", "card:1")
SPANS = ((0, 5), (1, 5), (0, 4), (1, 4))
KV_BYTES = BYTES = 2**26
ROWS = 40


class Cards:
    """What torch asks of the module of a device."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(CARDS)

    def current_device(self) -> int:
        return 0


def make_buffers(model: Any, device_at: Callable[[str], torch.device]) -> None:
    """The library's tables where they belong."""
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty_like(buffer, device=device_at(path))


def serve(folder: Path, numerics: str, span: tuple[int, int]) -> None:
    """Load it, and run prompts and single rows of requests that enter and leave anywhere."""
    layers = LayerRange(*span)
    here = load_shard(folder, layers, numerics=numerics, devices=[("cpu", BYTES)] * 2)
    learned, made_of = BatchEngine(here, kv_bytes=KV_BYTES).layout, torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        return made_of(data, **options).to(device)

    with (
        patch.object(cut_shard, "_compute_buffers", make_buffers),
        patch.object(loading, "_refuse_missing", lambda filling: None),
        patch.object(loading.FolderSource, "fill", lambda source, name, target: None),
        patch.object(ModelShard, "check", lambda shard, x, length: None),
        patch.object(batch, "learn_layout", lambda shard, gates: learned),
        patch.object(torch, "tensor", tensor),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        devices = [(card, BYTES) for card in CARDS]
        shard = load_shard(folder, layers, numerics=numerics, devices=devices)
        for layer, part in zip(shard.decoder_layers, shard.spread.part_of, strict=True):
            assert {str(weight.device) for weight in layer.parameters()} == {CARDS[part]}
        head = shard.model.get_output_embeddings().weight
        assert str(head.device) == (CARDS[1] if shard.is_last else "meta")
        rows = torch.randn(ROWS, shard.hidden)
        x = torch.arange(ROWS) if shard.is_first else rows
        assert shard.forward(x[:9], shard.new_cache()).device.type == "cpu", "as it came"

        engine = BatchEngine(shard, kv_bytes=KV_BYTES, span_layers=2)
        assert engine.graphs is None
        for pool, shape in zip(engine.store.pools, learned.shapes, strict=True):
            assert str(pool.keys.device) == CARDS[shape.part]
        engine.open("whole")
        engine.open("later", LayerRange(span[0] + 1, span[1]))
        engine.open("early", LayerRange(span[0], span[1] - 1))
        for first, count in ((0, 20), (20, 1), (21, 7)):
            pieces = [
                RequestPiece(name, (rows if name == "later" else x)[first:][:count], first, ALL)
                for name in ("whole", "later", "early")
            ]
            inside: list[list[Tensor]] = []
            outs = engine.step(pieces, checked=True, states=True, inside=inside)
            left = [part for out in outs for part in (out if isinstance(out, Final) else [out])]
            left += [part for parts in inside for part in parts]
            assert {str(part.device) for part in left} == {CARDS[1]}


def main() -> None:
    _setup_privateuseone_for_python_backend("card", backend_module=Cards())
    served = 0
    for number, (folder, numerics) in enumerate(product(sys.argv[1:], ("float32", "bfloat16"))):
        for span in SPANS if number == 0 else SPANS[:1]:
            serve(Path(folder), numerics, span)
            served += 1
    print(served, "served")


if __name__ == "__main__":
    main()
