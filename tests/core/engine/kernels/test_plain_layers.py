"""Do layers in C give the library's numbers, with the same bits beside any rows?

Do they step aside for layers of another kind?
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.kernels.plain_layers import plain_layers
from core.engine.kernels.prepack import prepack
from core.engine.native.native import NoKernels, kernels
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from tests.core.engine.serving import CLOSE, feed, ids_of, make_stages, off, reference

LAYERS = 3


@pytest.fixture(autouse=True)
def _compiled() -> None:
    try:
        kernels()
    except NoKernels as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_plain_layers_are_known_and_right(
    architecture: str, tiny: Callable, whole_model: Callable
) -> None:
    """Prompts in chunks, single steps, and rows that enter and leave in the middle."""
    folder = tiny(architecture, layers=LAYERS, hidden=96)
    (engine,) = make_stages(folder, (0, LAYERS), packed=True)
    assert engine._plain is not None
    ids = ids_of(1, 60)
    engine.open("r")
    got = [feed([engine], "r", ids[:40], 17), feed([engine], "r", ids[40:], 1, 40)]
    assert off(torch.cat(got), reference(whole_model(folder), ids)) < CLOSE
    engine.open("low", LayerRange(0, 1))
    engine.open("high", LayerRange(1, LAYERS))
    rows = engine.step([RequestPiece("low", ids, 0)])[0]
    logits = engine.step([RequestPiece("high", rows, 0, "all")])[0]
    assert off(logits, reference(whole_model(folder), ids)) < CLOSE


@pytest.mark.parametrize("architecture", ["gemma2", "gpt2", "olmo2", "mixtral"])
def test_other_layers_run_through_the_library(architecture: str, tiny: Callable) -> None:
    shard = load_shard(tiny(architecture, layers=2), LayerRange(0, 2))
    prepack(shard)
    assert plain_layers(shard) is None


def test_capped_logits_are_left_to_the_library(tiny: Callable, whole_model: Callable) -> None:
    folder = tiny("gemma3", layers=2, options={"final_logit_softcapping": 0.05})
    for layers, is_plain in ((LayerRange(0, 1), True), (LayerRange(0, 2), False)):
        shard = load_shard(folder, layers)
        packed = prepack(shard)
        assert (plain_layers(shard) is not None) == is_plain
    engine = BatchEngine(shard, kv_bytes=2**22, prefix_share=0, least_rows=packed.least_rows)
    ids = ids_of(3, 20)
    engine.open("r")
    assert off(feed([engine], "r", ids, 7), reference(whole_model(folder), ids)) < CLOSE
    engine.close()


def test_what_differs_from_the_library_is_not_used(tiny: Callable) -> None:
    shard = load_shard(tiny("llama", layers=2), LayerRange(0, 2))
    assert plain_layers(shard) is None  # not packed
    prepack(shard)
    assert plain_layers(shard) is not None
    layer = shard.decoder_layers[1]
    inner = layer.forward
    layer.forward = lambda *a, **k: 1.001 * inner(*a, **k)
    assert plain_layers(shard) is None
    del layer.forward
    assert plain_layers(shard) is not None
    watching = layer.mlp.register_forward_hook(lambda *_: None)
    assert plain_layers(shard) is None  # whoever watches would see nothing
    watching.remove()
    layer.mlp.act_fn = torch.nn.GELU()
    assert plain_layers(shard) is None


def test_a_row_has_the_same_bits_beside_a_prompt_and_with_more_threads(tiny: Callable) -> None:
    """Batches of single rows take one call, those with a prompt one for each half of a layer."""
    folder = tiny("llama", layers=LAYERS, hidden=160)
    shard = load_shard(folder, LayerRange(0, LAYERS))
    packed = prepack(shard)
    ids = ids_of(2, 50)
    seen = []
    for others, threads in ((False, 1), (True, 1), (False, 2), (True, 2)):
        engine = BatchEngine(shard, kv_bytes=2**22, prefix_share=0, least_rows=packed.least_rows)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            engine.open("r")
            outs = [engine.step([RequestPiece("r", ids[:30], 0)])[0]]
            for at in range(30, 50):
                pieces = [RequestPiece("r", ids[at : at + 1], at)]
                if others:
                    engine.open(at)
                    pieces.insert(at % 2, RequestPiece(at, ids_of(at, 9), 0))
                outs.append(
                    engine.step(pieces)[pieces.index(next(p for p in pieces if p.request == "r"))]
                )
        finally:
            torch.set_num_threads(before)
            engine.close()
        seen.append(torch.cat(outs))
    assert all(torch.equal(seen[0], other) for other in seen[1:])
