"""What does a model take in memory that people publish packed, and is a cut of it the whole?"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.models.packers import KINDS, by_library, pack, write_tiny_gpt_oss
from benchmarks.models.random_llama import write_random_llama
from benchmarks.table import Row

REACH, SPARE_MIB = 1.2, 400
LAYERS, HIDDEN, FFN = 12, 2048, 5632
#: One of every format; MXFP4 is compressed-tensors' here, of matrices and not of experts.
FORMATS = {
    "FP8": "fp8",
    "MXFP4": "compressed-mxfp4",
    "GPTQ": "gptq",
    "AWQ": "awq",
    "int8": "compressed-int8",
    "int4": "compressed-int4",
}
FAMILIES = ("llama", "qwen3", "gemma3_text")
QUICK = {"LAYERS": 1, "HIDDEN": 128, "FFN": 256, "FORMATS": {"FP8": "fp8"}, "FAMILIES": ("llama",)}
_CUT_LAYERS = 3
_MIB = 2**20
_LOAD = """
import json, re, sys, time
from pathlib import Path
import torch
from core.engine.kernels.prepack import prepack
from core.engine.weights import loading
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import layer_count
from core.engine.model.config_facts import read_config
from core.protocol.types import LayerRange
torch.set_num_threads(1)
folder, keeps = Path(sys.argv[1]), sys.argv[2] == "packed"
if not keeps:
    loading.FolderSource.keep_packed = lambda *_: None
shard = load_shard(folder, LayerRange(0, layer_count(read_config(folder))), numerics="bfloat16")
prepack(shard, model_dir=folder)
took = []
for rows in (1, 16):
    x, cache = torch.arange(rows), shard.new_cache()
    tries = []
    for _ in range(5):
        began = time.perf_counter()
        shard.forward(x, cache)
        tries.append(time.perf_counter() - began)
    took.append(min(tries))
# Pages of mapped files are the cache of the disk: they go when memory is short.
held_kib = re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([int(held_kib) * 1024, *took]))
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="headrace-packed-") as name:
        source = write_random_llama(Path(name) / "source", layers=LAYERS, hidden=HIDDEN, ffn=FFN)
        found = [_memory(source, Path(name) / kind, title, kind) for title, kind in FORMATS.items()]
        return [*found, _cuts(Path(name) / "tiny")]


def _memory(source: Path, folder: Path, title: str, kind: str) -> Row:
    import torch

    pack(source, folder, kind, plain=torch.bfloat16)
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    packed, unpacked = (_loaded(folder, how) for how in ("packed", "unpacked"))
    for file in folder.iterdir():
        file.unlink()
    limit = REACH * stored + SPARE_MIB * _MIB
    steps = ", ".join(
        f"{ours / plain:.2f}" for ours, plain in zip(packed[1:], unpacked[1:], strict=True)
    )
    return Row(
        f"memory of a model in {title}, {stored / _MIB:,.0f} MiB stored",
        f"<= {REACH:g} x stored + {SPARE_MIB} MiB = {limit / _MIB:,.0f} MiB",
        f"{packed[0] / _MIB:,.0f} MiB; steps of 1 and 16 rows {steps} of unpacked",
        f"unpacked {unpacked[0] / _MIB:,.0f} MiB",
        f"stored {stored / _MIB:,.0f} MiB",
        packed[0] <= limit,
    )


def _loaded(folder: Path, how: str) -> list[float]:
    """Bytes that a program holds with the model loaded; seconds of steps of 1 and 16 rows."""
    said = subprocess.run(
        [sys.executable, "-c", _LOAD, str(folder), how], check=True, capture_output=True, text=True
    )
    found: list[float] = json.loads(said.stdout.splitlines()[-1])
    return found


def _cuts(folder: Path) -> Row:
    """Every format in every family: whether each cut has the whole's bits, and the numbers are
    those that the library unpacks, where it does.
    """
    import torch

    from core.engine.weights.load_shard import load_shard
    from core.engine.weights.tensors import TensorFolder
    from core.protocol.types import LayerRange
    from devnet.models.tiny_models import write_tiny_model

    cases = [(family, kind) for family in FAMILIES for kind in KINDS if kind != "mxfp4"]
    right = 0
    for family, kind in [*cases, ("gpt_oss", "mxfp4")]:
        plain, made = folder / family, folder / f"{family}-{kind}"
        if family == "gpt_oss":
            write_tiny_gpt_oss(plain, _CUT_LAYERS)
        elif not plain.exists():
            write_tiny_model(plain, family, layers=_CUT_LAYERS)
        pack(plain, made, kind)

        def answer(*bounds: int, made: Path = made) -> torch.Tensor:
            x = torch.arange(12) * 37 % 256
            for start, end in itertools.pairwise(bounds):
                shard = load_shard(made, LayerRange(start, end), numerics="bfloat16")
                x = shard.forward(x, shard.new_cache())
            return x

        whole = answer(0, _CUT_LAYERS)
        cuts = [answer(0, cut, _CUT_LAYERS) for cut in range(1, _CUT_LAYERS)]
        is_right = all(torch.equal(cut, whole) for cut in cuts)
        if kind.startswith(("fp8", "mxfp4", "compressed")):
            expected, tensors = by_library(made, kind, torch.bfloat16), TensorFolder(made)
            is_right &= all(
                torch.equal(torch.from_numpy(tensors.read_float32(n)).bfloat16(), expected[n])
                for n in tensors.packing.weights
            )
        right += is_right
    return Row(
        f"formats x families, {_CUT_LAYERS} layers: every cut has the whole's bits, numbers are "
        "those that the library unpacks",
        "all",
        f"{right} of {len(cases) + 1}",
        "",
        "",
        right == len(cases) + 1,
    )
