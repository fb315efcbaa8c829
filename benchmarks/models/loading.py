"""How much longer does loading take when each tensor is held to its published root?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.models.random_llama import write_random_llama
from benchmarks.table import Row
from core.engine.weights.load_shard import load_shard
from core.engine.weights.pulled import PulledFolder
from core.models.places import FolderPlace
from core.models.publication import publication_of
from core.models.pull import begin, layers_of, pull, pull_small_files
from core.protocol.types import LayerRange

REACH, TRIES = 1.25, 5
LAYERS, HIDDEN, FFN = 28, 1024, 2816
QUICK = {"TRIES": 1, "LAYERS": 2, "HIDDEN": 128, "FFN": 256}
NUMERICS = ("float32", "bfloat16")


def rows() -> list[Row]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-loading-") as name:
            source, target = Path(name) / "source", Path(name) / "target"
            write_random_llama(source, layers=LAYERS, hidden=HIDDEN, ffn=FFN)
            manifest = publication_of(source).manifest
            begin(manifest, target)
            pull_small_files(manifest, target, [FolderPlace(source)])
            pull(PulledFolder(target), layers_of(target, manifest, None), [FolderPlace(source)])
            return [_row(source, target, numerics) for numerics in NUMERICS]
    finally:
        torch.set_num_threads(threads)


def _row(source: Path, target: Path, numerics: str) -> Row:
    plain, proven = [], []
    for _ in range(TRIES):
        plain.append(_load_s(source, numerics))
        proven.append(_load_s(target, numerics))
    ratio = min(proven) / min(plain)
    return Row(
        f"loading float32 files in {numerics}, each tensor proven",
        f"<= {REACH:g} of loading without",
        f"{ratio:.2f}: {min(proven):.2f} s",
        f"without {min(plain):.2f} s",
        "",
        ratio <= REACH,
    )


def _load_s(folder: Path, numerics: str) -> float:
    """As a machine loads it, with the self-check of its architecture."""
    began = time.perf_counter()
    load_shard(folder, LayerRange(0, LAYERS), numerics=numerics, self_check=True)
    return time.perf_counter() - began
