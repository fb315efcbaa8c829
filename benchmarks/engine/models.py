"""Which models is the engine measured on?"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.engine.weights.store import model_path

if TYPE_CHECKING:
    from core.engine.model.blocks import ModelShard

NAMES = {"gemma": "Gemma 3 270M", "smollm": "SmolLM2 135M", "llama": "random Llama 18 × 640"}
QUICK_NAMES = {"llama": "tiny random Llama"}
#: Random Llamas by name: layers, hidden and vocabulary.
_LLAMAS: dict[str, dict[str, Any]] = {
    "llama": {
        "layers": 18,
        "hidden": 640,
        "vocab": 32000,
        "options": {"intermediate_size": 2048, "num_key_value_heads": 4},
    },
    "llama-1b": {
        "layers": 16,
        "hidden": 2048,
        "vocab": 128256,
        "dtype": "bfloat16",
        "options": {
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
        },
    },
}


@cache
def model_folder(name: str) -> Path:
    """`gemma` (Gemma 3 270M) and `smollm` (SmolLM2 135M) where installed, random Llamas and `tiny`.

    `llama` has 18 layers of 640 and half a gigabyte, `llama-1b` 16 of 2048 and two and a half. They
    are written once, beside the others.
    """
    if name == "tiny":
        return tiny_folder(name)
    if name not in _LLAMAS:
        return model_path({"gemma": "gemma3-270m", "smollm": "smollm2-135m"}[name])
    from devnet.models.tiny_models import write_tiny_model

    sizes = _LLAMAS[name]
    target = model_path(f"random-llama-{sizes['layers']}x{sizes['hidden']}")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            write_tiny_model(
                Path(work) / "model", "llama", context=2048, weight_std=0.02, **sizes
            ).rename(target)
    return target


@cache
def tiny_folder(name: str) -> Path:
    """A random model of two layers under any name, for the shortest form of a part."""
    from devnet.models.tiny_models import write_tiny_model

    scratch = tempfile.mkdtemp(prefix="headrace-tiny-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return write_tiny_model(Path(scratch) / name, "llama", layers=2, hidden=32)


def whole_shard(folder: Path) -> ModelShard:
    """All layers of a model, in float32."""
    from core.engine.model.config_facts import read_config
    from core.engine.weights.load_shard import load_shard
    from core.engine.weights.shape import layer_count
    from core.protocol.types import LayerRange

    return load_shard(folder, LayerRange(0, layer_count(read_config(folder))))


def packed_shard(folder: Path) -> tuple[ModelShard, int]:
    """The same with packed linears, and the fewest rows that they keep their bits with."""
    from core.engine.kernels.prepack import prepack

    shard = whole_shard(folder)
    return shard, prepack(shard, model_dir=folder).least_rows
