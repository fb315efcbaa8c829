"""How far are honest machines from float64? Measures what `calibration.json` holds.

    python -m devnet.models.calibrate FILE NUMERICS [MODEL …]

measures machines of these numerics (float32 or bfloat16) on tiny models of every family and on the
named real ones; what FILE holds of other numerics stays. Every span of a depth is run from the same
committed inputs as a whole, in pieces, token by token, with either kind of attention, on one and
two threads, and by our own kernels; each is compared with a float64 execution, whitened by the
model's σ.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.dispute.judging.numerics import reexecute, whitened_relative_l2
from core.dispute.play.program import model_program
from core.dispute.trace.calibration import tolerance_for
from core.dispute.trace.families import BF16_TOLERANCES, FP32_TOLERANCES, SIGMA
from core.dispute.trace.program import Tolerance
from core.engine.kernels.prepack import prepack
from core.engine.model.attention import attention_by
from core.engine.model.blocks import ModelShard, output_of
from core.engine.weights.load_shard import load_shard
from core.engine.weights.shape import describe_model
from core.engine.weights.store import model_path
from core.protocol.types import LayerRange
from devnet.models.tiny_models import write_tiny_model

TINY = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")
_ROWS = 129
_SEQUENCES = 1
_TINY_LAYERS = 12
_DEPTHS = (1, 6, 10, 18, 29)
Kernel = Callable[[ModelShard, torch.Tensor], torch.Tensor]
#: (max_depth, min_rows) → the largest D/S of an honest window, and how many windows there were.
Largest = dict[tuple[int, int], tuple[float, int]]


@dataclass(frozen=True)
class Numerics:
    """What machines compute in, in words, and what is published of it."""

    name: str
    meaning: str
    tolerances: tuple[Tolerance, ...]


NUMERICS = {
    numerics.name: numerics
    for numerics in (
        Numerics("float32", "float32 weights, activations, accumulation and wire", FP32_TOLERANCES),
        Numerics(
            "bfloat16", "bfloat16 weights, activations and wire, sums in float32", BF16_TOLERANCES
        ),
    )
}


def whole(shard: ModelShard, x: torch.Tensor) -> torch.Tensor:
    return shard.forward(x, shard.new_cache())


def by_pieces(length: int) -> Kernel:
    def run(shard: ModelShard, x: torch.Tensor) -> torch.Tensor:
        cache = shard.new_cache()
        return torch.cat(
            [shard.forward(x[i : i + length], cache) for i in range(0, len(x), length)]
        )

    return run


def on_threads(threads: int) -> Kernel:
    def run(shard: ModelShard, x: torch.Tensor) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return whole(shard, x)
        finally:
            torch.set_num_threads(before)

    return run


def attending(kind: str) -> Kernel:
    def run(shard: ModelShard, x: torch.Tensor) -> torch.Tensor:
        with attention_by(shard.model.config, kind):
            return whole(shard, x)

    return run


def rows_of(kernel: Kernel, shard: ModelShard, x: torch.Tensor) -> torch.Tensor:
    """What a machine signs: the rows of the shard's last layer, at the model's end too."""
    if not shard.is_last:
        return kernel(shard, x)
    with output_of(shard.decoder_layers[-1]) as left:
        kernel(shard, x)
    return torch.cat([part.reshape(-1, shard.hidden) for part in left])


PACKED, FUSED = "our kernels", "fused attention"
KERNELS: dict[str, Kernel] = {
    "prefill": whole,
    "chunks of 16": by_pieces(16),
    "decode": by_pieces(1),
    "two threads": on_threads(2),
    "eager attention": attending("eager"),
    FUSED: attending("sdpa"),
}


def _kernels_for(shard: ModelShard) -> list[Kernel]:
    """Scores with a soft cap have no fused attention."""
    has_cap = getattr(shard.model.config, "attn_logit_softcapping", None) is not None
    return [kernel for name, kernel in KERNELS.items() if not (has_cap and name == FUSED)]


def deviations(
    model_dir: Path, depths: tuple[int, ...], seed: int, numerics: str
) -> Iterator[tuple[int, Any]]:
    """(depth, whitened errors and sizes by row) of every kernel on every span."""
    shape, rng = describe_model(model_dir), np.random.default_rng(seed)
    sigma = model_program(model_dir).tables[SIGMA].astype(np.float64)
    texts = [torch.from_numpy(rng.integers(3, shape.vocab, _ROWS)) for _ in range(_SEQUENCES)]
    for depth in depths:
        entering = list(texts)
        for start in range(0, shape.layers, depth):
            span = LayerRange(start, min(start + depth, shape.layers))
            exact = load_shard(model_dir, span, numerics=numerics, reference=True)
            served, packed = (load_shard(model_dir, span, numerics=numerics) for _ in range(2))
            prepack(packed)
            for i, x in enumerate(entering):
                made = reexecute(exact, x if start == 0 else x.double(), states=True)
                reference = (made.rows if exact.is_last else made).numpy()
                for shard, kernel in (
                    *((served, k) for k in _kernels_for(served)),
                    (packed, whole),
                ):
                    y = rows_of(kernel, shard, x).float().numpy()
                    yield len(span), (y[1:], reference[1:], sigma[span.end])
                entering[i] = rows_of(whole, served, x)
            if len(span) < depth:
                break


def largest(model_dir: Path, numerics: Numerics, seed: int = 0) -> Largest:
    """What machines of these numerics come to, for every tolerance that is published."""
    layers = describe_model(model_dir).layers
    wanted = [(t.max_depth, t.min_rows) for t in numerics.tolerances]
    found = dict.fromkeys(wanted, (0.0, 0))
    deepest = max(t.max_depth for t in numerics.tolerances)
    depths = tuple(d for d in _DEPTHS if d < layers and d <= deepest)
    for depth, (served, reference, sigma) in deviations(model_dir, depths, seed, numerics.name):
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


def entries(results: list[Largest], tolerances: Sequence[Tolerance]) -> list[dict[str, Any]]:
    rows = []
    for tolerance in tolerances:
        key = (tolerance.max_depth, tolerance.min_rows)
        rows.append(
            {
                "max_depth": tolerance.max_depth,
                "min_rows": tolerance.min_rows,
                "largest": (most := max(float(f"{r[key][0]:.3g}") for r in results)),
                "windows": sum(r[key][1] for r in results),
                "parts_per_trillion": tolerance_for(most, tolerance.parts_per_trillion),
            }
        )
    return rows


def machine() -> str:
    """What sums depend on here: machines that are alike count once towards leaving shadow."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def main(file: Path, numerics: Numerics, real: Sequence[str]) -> None:
    found: dict[str, list[Largest]] = {}
    models: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tiny = {}
        for name in TINY:
            path = write_tiny_model(Path(folder) / name, name, layers=_TINY_LAYERS)
            tiny[f"{name} of {_TINY_LAYERS} random layers"] = path
        for name, path in {**tiny, **{name: model_path(name) for name in real}}.items():
            architecture = describe_model(path).architecture
            found.setdefault(architecture, []).append(largest(path, numerics))
            models.setdefault(architecture, []).append(name)
            print(name, found[architecture][-1], flush=True)
    document = json.loads(file.read_text("utf-8")) if file.exists() else {"profiles": {}}
    document["profiles"][numerics.name] = {
        "meaning": numerics.meaning,
        "kernels": sorted((*KERNELS, PACKED)),
        "machines": [machine()],
        "models": models,
        "families": {
            name: entries(results, numerics.tolerances) for name, results in sorted(found.items())
        },
    }
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), NUMERICS[sys.argv[2]], sys.argv[3:])
