"""How far are honest machines from float64? Measures what `calibration.json` holds.

    python -m devnet.calibrate FILE [MODEL …]     tiny models of every family, and the named real ones

Every span of a depth is run from the same committed inputs as a whole, in pieces, token by token, beside other requests, and
on one and two threads; each is compared with a float64 execution, whitened by the model's σ.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.engine.blocks import Shard
from core.engine.model import load_shard
from core.engine.numerics import reexecute, whitened_relative_l2
from core.engine.prepack import prepack
from core.engine.shape import describe_model
from core.engine.store import model_path
from core.engine.trace.program import model_program
from core.protocol.trace.families import FP32_TOLERANCES, SIGMA
from core.protocol.types import LayerRange
from devnet.tiny_models import write_tiny_model

TINY = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")
_ROWS = 129
_SEQUENCES = 1
_TINY_LAYERS = 12
Kernel = Callable[[Shard, torch.Tensor], torch.Tensor]


def whole(shard: Shard, x: torch.Tensor) -> torch.Tensor:
    return shard.forward(x, shard.new_cache())


def by_pieces(length: int) -> Kernel:
    def run(shard: Shard, x: torch.Tensor) -> torch.Tensor:
        cache = shard.new_cache()
        return torch.cat(
            [shard.forward(x[i : i + length], cache) for i in range(0, len(x), length)]
        )

    return run


def on_threads(threads: int) -> Kernel:
    def run(shard: Shard, x: torch.Tensor) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return whole(shard, x)
        finally:
            torch.set_num_threads(before)

    return run


PACKED = "our kernels"
KERNELS: dict[str, Kernel] = {
    "prefill": whole,
    "chunks of 16": by_pieces(16),
    "decode": by_pieces(1),
    "two threads": on_threads(2),
}


def deviations(model_dir: Path, depths: tuple[int, ...], seed: int) -> Iterator[tuple[int, Any]]:
    """(depth, whitened errors and sizes by row) of every kernel on every span."""
    shape, rng = describe_model(model_dir), np.random.default_rng(seed)
    sigma = model_program(model_dir).tables[SIGMA].astype(np.float64)
    texts = [torch.from_numpy(rng.integers(3, shape.vocab, _ROWS)) for _ in range(_SEQUENCES)]
    for depth in depths:
        entering = list(texts)
        for start in range(0, shape.layers - 1, depth):
            span = LayerRange(start, min(start + depth, shape.layers - 1))
            exact = load_shard(model_dir, span, dtype=torch.float64)
            served, packed = load_shard(model_dir, span), load_shard(model_dir, span)
            prepack(packed)
            for i, x in enumerate(entering):
                reference = reexecute(exact, x if start == 0 else x.double()).numpy()
                for shard, kernel in (*((served, k) for k in KERNELS.values()), (packed, whole)):
                    y = kernel(shard, x).numpy()
                    yield len(span), (y[1:], reference[1:], sigma[span.end])
                entering[i] = whole(served, x)
            if len(span) < depth:
                break


def largest(model_dir: Path, seed: int = 0) -> dict[tuple[int, int], tuple[float, int]]:
    """(max_depth, min_rows) → the largest D/S of an honest window, and how many windows there were."""
    layers = describe_model(model_dir).layers
    wanted = [(t.max_depth, t.min_rows) for t in FP32_TOLERANCES]
    found = dict.fromkeys(wanted, (0.0, 0))
    depths = tuple(d for d in (1, 6, 10, 29) if d < layers)
    for depth, (served, reference, sigma) in deviations(model_dir, depths, seed):
        for max_depth, rows in wanted:
            if depth > max_depth:
                continue
            worst, count = found[max_depth, rows]
            for at in range(0, len(served) - rows + 1, rows):
                window = slice(at, at + rows)
                worst = max(
                    worst, whitened_relative_l2(served[window], reference[window], sigma).ratio
                )
                count += 1
            found[max_depth, rows] = (worst, count)
    return found


def entries(results: list[dict[tuple[int, int], tuple[float, int]]]) -> list[dict[str, Any]]:
    rows = []
    for tolerance in FP32_TOLERANCES:
        key = (tolerance.max_depth, tolerance.min_rows)
        rows.append(
            {
                "max_depth": tolerance.max_depth,
                "min_rows": tolerance.min_rows,
                "largest": max(float(f"{r[key][0]:.3g}") for r in results),
                "windows": sum(r[key][1] for r in results),
                "parts_per_trillion": tolerance.parts_per_trillion,
            }
        )
    return rows


def machine() -> str:
    """What kind of machine this is, as far as sums depend on it: one kind counts once towards leaving shadow."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def main(file: Path, real: list[str]) -> None:
    families: dict[str, list[dict[tuple[int, int], tuple[float, int]]]] = {}
    models: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in TINY:
            path = write_tiny_model(Path(folder) / name, name, layers=_TINY_LAYERS)
            architecture = describe_model(path).architecture
            families.setdefault(architecture, []).append(largest(path))
            models.setdefault(architecture, []).append(f"{name} of {_TINY_LAYERS} random layers")
            print(name, families[architecture][-1], flush=True)
        for name in real:
            path = model_path(name)
            architecture = describe_model(path).architecture
            families.setdefault(architecture, []).append(largest(path))
            models.setdefault(architecture, []).append(name)
            print(name, families[architecture][-1], flush=True)
    document = {
        "profile": "float32 weights, activations, accumulation and wire",
        "kernels": sorted((*KERNELS, PACKED)),
        "machines": [machine()],
        "models": models,
        "families": {name: entries(results) for name, results in sorted(families.items())},
    }
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
