"""Does a graphics processor run the same shards by the same code?"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from core.engine.batch.batch import BatchEngine
from core.engine.batch.pieces import RequestPiece
from core.engine.model.blocks import ModelShard
from core.engine.weights.formats import FORMATS
from core.engine.weights.load_shard import load_shard
from core.protocol.types import LayerRange
from tests.core.engine.architectures import CHUNKS, write_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
#: Largest difference, in units of the largest logit. Rotary angles are each device's float32.
TOLERANCE = {"float64": 1e-7, "float32": 1e-4, "int8-weight-only": 1e-4}


def run(folder: Path, numerics: str, **options: Any) -> torch.Tensor:
    stages = [
        load_shard(folder, LayerRange(a, b), numerics=numerics, **options)
        for a, b in itertools.pairwise((0, 1, 4))
    ]
    caches = [stage.new_cache() for stage in stages]
    got = []
    for x in CHUNKS:
        for stage, cache in zip(stages, caches, strict=True):
            x = stage.forward(x, cache)
        got.append(x)
    return torch.cat(got).double()


@pytest.mark.parametrize("numerics", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "phi", "opt"])
def test_a_gpu_answers_as_the_processor_does(name: str, numerics: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, name)
    here, there = run(folder, numerics), run(folder, numerics, device="cuda")
    assert here.device == there.device
    off = float((here - there).abs().max() / here.abs().max())
    print(f"{name}, {numerics}: {off:.2e}")
    assert off < TOLERANCE.get(numerics, 0.05)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss", "falcon", "bloom"])
def test_other_kinds_of_decoders_run_there_too(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, name)
    here, there = run(folder, "float32"), run(folder, "float32", device="cuda")
    assert float((here - there).abs().max() / here.abs().max()) < 1e-4


def test_weights_in_integers_are_the_same_numbers_on_both(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama")
    for numerics in (name for name, form in FORMATS.items() if form.bits):
        here, there = (
            load_shard(folder, LayerRange(0, 1), numerics=numerics, device=device)
            for device in ("cpu", "cuda")
        )
        for ours, theirs in zip(_matrices(here), _matrices(there), strict=True):
            identity = torch.eye(ours.in_features, dtype=here.dtype)
            values = ours(identity).float() - ours(0 * identity).float()
            others = (theirs(identity.cuda()) - theirs(0 * identity.cuda())).cpu().float()
            # The kernels may round what an integer stands for to bfloat16, and bias and sum.
            rounding = 1e-6 if here.dtype == torch.float32 else 2**-7
            assert float((values - others).abs().max()) <= rounding * float(values.abs().max())


def _matrices(shard: ModelShard) -> list[torch.nn.Linear]:
    return [m for m in shard.decoder_layers.modules() if isinstance(m, torch.nn.Linear)]


@pytest.mark.parametrize("name", ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"])
def test_a_machine_that_was_told_to_round_float32_serves_nothing(name: str) -> None:
    code = (
        "import torch\n"
        "from core.engine.weights.precision import require_precision\n"
        "torch.mm(torch.ones(8, 8).cuda(), torch.ones(8, 8).cuda())\n"
        "require_precision(torch.device('cuda'))\n"
        "print(torch.get_float32_matmul_precision())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {name: "1"}, capture_output=True, text=True
    )
    is_exact = done.returncode == 0 and done.stdout.strip() == "highest"
    assert is_exact or "rounds float32 before it multiplies" in done.stderr
    print(name, done.returncode, done.stdout, done.stderr[-400:])


def test_a_shard_lies_where_it_was_told_to(tmp_path: Path) -> None:
    shard = load_shard(write_model(tmp_path, "llama"), LayerRange(1, 3), device="cuda")
    assert shard.device.type == "cuda"
    assert all(p.is_cuda for p in shard.decoder_layers.parameters())
    cache = shard.new_cache()
    assert shard.forward(torch.randn(3, shard.hidden), cache).device.type == "cpu"
    assert cache._stores[0]._keys.is_cuda


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mixtral"])
def test_captured_steps_answer_as_launched_ones(name: str, numerics: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, name)
    outs = []
    for captured in (False, True):
        shard = load_shard(folder, LayerRange(0, 4), numerics=numerics, device="cuda")
        engine = BatchEngine(shard, kv_bytes=2**24)
        if not captured:
            engine.graphs = None
        engine.open("a")
        engine.open("b")
        engine.step(
            [RequestPiece("a", torch.arange(1, 30), 0), RequestPiece("b", torch.arange(3, 10), 0)]
        )
        for at in range(20):
            x = torch.tensor([at + 5])
            outs += engine.step([RequestPiece("a", x, 29 + at), RequestPiece("b", x, 7 + at)])
        if captured:
            assert engine.graphs is not None
            assert engine.graphs.replays or engine.graphs.refusal, "llama and gemma are captured"
            assert name == "mixtral" or not engine.graphs.refusal
        engine.close()
    launched, replayed = torch.cat(outs[:40]), torch.cat(outs[40:])
    off = float((launched - replayed).abs().max() / launched.abs().max())
    assert off < TOLERANCE.get(numerics, 0.05)


def test_chunks_of_prompts_are_the_processors(tmp_path: Path) -> None:
    """Flash attention behind earlier chunks, in bfloat16, against float32 on the processor."""
    folder, ids = write_model(tmp_path, "llama"), torch.arange(200) % 60
    outs = []
    for device, numerics in (("cpu", "float32"), ("cuda", "bfloat16")):
        shard = load_shard(folder, LayerRange(0, 4), numerics=numerics, device=device)
        engine = BatchEngine(shard, kv_bytes=2**24)
        engine.open("r")
        for first in range(0, 200, 50):
            (out,) = engine.step([RequestPiece("r", ids[first : first + 50], first, "all")])
            outs.append(out.cpu())
        engine.close()
    here, there = torch.cat(outs[:4]), torch.cat(outs[4:])
    assert float((here - there).abs().max() / here.abs().max()) < 0.05
