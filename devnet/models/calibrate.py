"""How far are honest machines from float64? Measures what `calibration.json` holds.

    python -m devnet.models.calibrate [--device cuda] FILE NUMERICS [MODEL …]

measures this machine in these numerics (float32 or bfloat16) on tiny models of every family and on
the named real ones; what FILE holds of other numerics and of other machines stays. Every span of a
depth is run from the same committed inputs as a whole, in pieces, token by token, with either kind
of attention, and as the engine serves it; each is compared with a float64 execution, whitened by
the model's σ.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core.dispute.play.program import model_program
from core.dispute.registration.kernels import kernel_names
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


def seen(model_dir: Path, numerics: Numerics, device: str) -> Seen:
    """What machines of these numerics come to on random tokens, for each published tolerance."""
    layers, promised = describe_model(model_dir).layers, numerics.tolerances
    deepest = max(t.max_depth for t in promised)
    depths = [d for d in _DEPTHS if d < layers and d <= deepest]
    sigma, texts = model_program(model_dir).tables[SIGMA], [random_ids(model_dir, ROWS, seed=0)]
    return largest(model_dir, sigma, promised, numerics.name, texts, depths, device)


def entries(results: list[Seen], tolerances: Sequence[Tolerance]) -> list[dict[str, Any]]:
    """What one machine came to on the models of a family."""
    return [
        {
            "max_depth": depth,
            "min_rows": rows,
            "largest": max(float(f"{r[depth, rows].ratio:.3g}") for r in results),
            "windows": sum(r[depth, rows].windows for r in results),
        }
        for depth, rows in ((t.max_depth, t.min_rows) for t in tolerances)
    ]


def promised(
    machines: Mapping[str, Any], tolerances: Sequence[Tolerance]
) -> dict[str, list[dict[str, Any]]]:
    """What may be promised of each family, by all machines that measured it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for family in sorted({name for machine in machines.values() for name in machine["families"]}):
        measured = [m["families"][family] for m in machines.values() if family in m["families"]]
        found[family] = []
        for tolerance, rows in zip(tolerances, zip(*measured, strict=True), strict=True):
            most = max(row["largest"] for row in rows)
            found[family].append(
                {
                    "max_depth": tolerance.max_depth,
                    "min_rows": tolerance.min_rows,
                    "largest": most,
                    "windows": sum(row["windows"] for row in rows),
                    "parts_per_trillion": tolerance_for(most, tolerance.parts_per_trillion),
                }
            )
    return found


def machine(device: str) -> str:
    """What sums depend on here: machines that are alike count once towards leaving shadow."""
    if torch.device(device).type == "cpu":
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda {major}.{minor}"


def measure(numerics: Numerics, real: Sequence[str], device: str) -> dict[str, Any]:
    """What this machine comes to: its kernels, the models, and entries by family."""
    found: dict[str, list[Seen]] = {}
    models: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tiny = {}
        for name in TINY:
            path = write_tiny_model(Path(folder) / name, name, layers=_TINY_LAYERS)
            tiny[f"{name} of {_TINY_LAYERS} random layers"] = path
        for name, path in {**tiny, **{name: model_path(name) for name in real}}.items():
            architecture = describe_model(path).architecture
            found.setdefault(architecture, []).append(seen(path, numerics, device))
            models.setdefault(architecture, []).append(name)
            print(name, found[architecture][-1], flush=True)
    return {
        "kernels": kernel_names(device),
        "models": models,
        "families": {
            name: entries(results, numerics.tolerances) for name, results in sorted(found.items())
        },
    }


def main(file: Path, numerics: Numerics, real: Sequence[str], device: str) -> None:
    document = json.loads(file.read_text("utf-8")) if file.exists() else {"profiles": {}}
    before = document["profiles"].get(numerics.name, {"machines": {}})
    machines = before["machines"] | {machine(device): measure(numerics, real, device)}
    document["profiles"][numerics.name] = {
        "meaning": numerics.meaning,
        "machines": machines,
        "families": promised(machines, numerics.tolerances),
    }
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m devnet.models.calibrate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("file", type=Path)
    parser.add_argument("numerics", choices=NUMERICS)
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args()
    main(asked.file, NUMERICS[asked.numerics], asked.models, asked.device)
