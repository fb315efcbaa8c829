"""How far off is an honest stage on rows that were chosen against it?

The search is the one that every registration makes, for longer, and over kernels with other orders
of summation too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.table import Row
from benchmarks.trust.kernels import OTHER_SUMS
from core.dispute.play.program import model_program
from core.dispute.registration.search import HALF, Searched, SearchEffort, Site, search
from core.dispute.trace.families import (
    BF16_PLEA,
    BF16_TOLERANCES,
    FAMILIES,
    FP32_PLEA,
    FP32_TOLERANCES,
)
from core.protocol.types import LayerRange

#: Of search, for each family and profile.
MINUTES = 1.0
QUICK: dict[str, Any] = {
    "MINUTES": 0.0,
    "FAMILIES": ("llama",),
    "PROFILES": ("fp32",),
    "DEPTHS": (1,),
    "MOST_ROWS": 1,
    "STEPS": 3,
    "GROUND": 1,
}
PROFILES = ("fp32", "bf16")
PROMISES = {
    "fp32": (FP32_TOLERANCES, FP32_PLEA),
    "bf16": (BF16_TOLERANCES, BF16_PLEA),
}
FORMS = {"fp32": "float32", "bf16": "bfloat16"}
LAYERS, FIRST, DEPTHS, MOST_ROWS = 4, 1, (1, 2), 64
GROUND, STEPS = 24, 80


def rows() -> list[Row]:
    """One row a family, profile and device."""
    torch.set_num_threads(1)
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with tempfile.TemporaryDirectory() as folder:
        return [
            _row(family, profile, device, searched(Path(folder), family, profile, device))
            for family in FAMILIES
            for profile in PROFILES
            for device in devices
        ]


def _row(family: str, profile: str, device: str, found: Searched) -> Row:
    worst = found.worst
    how = f"{worst.how}, {worst.rows} rows of layers {worst.span}" if worst else "–"
    return Row(
        f"rows chosen against an honest stage, {family}, {profile}, {device}",
        f"≤ {HALF} of the limit",
        f"{found.share:.3f} ({how}; {found.judged} executions, {MINUTES:g} min)",
        f"{found.bare:.3g} T without a plea",
        "1",
        found.judged > 0 and found.share <= HALF,
    )


def searched(folder: Path, family: str, profile: str, device: str) -> Searched:
    """The worst that the searches find within MINUTES, at each depth, of a device's kernels."""
    from devnet.models.tiny_models import write_tiny_model

    path = folder / f"{family}-{profile}-{device}"
    name = {"gemma3_text": "gemma3"}.get(family, family)
    write_tiny_model(path, name, layers=LAYERS, dtype=FORMS[profile])
    tolerances, plea = PROMISES[profile]
    ours = model_program(path, tolerances, plea=plea)
    found, model = Searched(), ours.trace_model(path)
    effort = SearchEffort(STEPS, GROUND, 10**6, 60 * MINUTES / len(DEPTHS), MOST_ROWS)
    for depth in DEPTHS:
        site = Site(path, ours.program, model, LayerRange(FIRST, FIRST + depth), device)
        search(site, effort, found, OTHER_SUMS if device == "cpu" else None)
    return found
