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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core.dispute.play.program import model_program
from core.dispute.registration.kernels import KERNELS, PACKED
from core.dispute.registration.natural import ROWS, Largest, largest, random_ids
from core.dispute.trace.calibration import tolerance_for
from core.dispute.trace.families import BF16_TOLERANCES, FP32_TOLERANCES, SIGMA
from core.dispute.trace.program import Tolerance
from core.engine.weights.shape import describe_model
from core.engine.weights.store import model_path
from devnet.models.tiny_models import write_tiny_model

TINY = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")
_TINY_LAYERS = 12
_DEPTHS = (1, 6, 10, 18, 29)
#: By (max_depth, min_rows) of a tolerance.
Seen = dict[tuple[int, int], Largest]


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


def seen(model_dir: Path, numerics: Numerics) -> Seen:
    """What machines of these numerics come to on random tokens, for each published tolerance."""
    layers, promised = describe_model(model_dir).layers, numerics.tolerances
    deepest = max(t.max_depth for t in promised)
    depths = [d for d in _DEPTHS if d < layers and d <= deepest]
    sigma, texts = model_program(model_dir).tables[SIGMA], [random_ids(model_dir, ROWS, seed=0)]
    return largest(model_dir, sigma, promised, numerics.name, texts, depths)


def entries(results: list[Seen], tolerances: Sequence[Tolerance]) -> list[dict[str, Any]]:
    rows = []
    for tolerance in tolerances:
        key = (tolerance.max_depth, tolerance.min_rows)
        rows.append(
            {
                "max_depth": tolerance.max_depth,
                "min_rows": tolerance.min_rows,
                "largest": (most := max(float(f"{r[key].ratio:.3g}") for r in results)),
                "windows": sum(r[key].windows for r in results),
                "parts_per_trillion": tolerance_for(most, tolerance.parts_per_trillion),
            }
        )
    return rows


def machine() -> str:
    """What sums depend on here: machines that are alike count once towards leaving shadow."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def main(file: Path, numerics: Numerics, real: Sequence[str]) -> None:
    found: dict[str, list[Seen]] = {}
    models: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tiny = {}
        for name in TINY:
            path = write_tiny_model(Path(folder) / name, name, layers=_TINY_LAYERS)
            tiny[f"{name} of {_TINY_LAYERS} random layers"] = path
        for name, path in {**tiny, **{name: model_path(name) for name in real}}.items():
            architecture = describe_model(path).architecture
            found.setdefault(architecture, []).append(seen(path, numerics))
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
