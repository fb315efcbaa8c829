"""How far may honest machines be from float64? As `calibration.json` has measured on real models.

Each entry says what it rests on: how many honest windows, over which kernels, and the largest
deviation among them. T is a round number at least twice that. A family without an entry is in
shadow: its deviations are measured and no machine is accused of one. Machines that compute in
float32 and those that compute in bfloat16 were measured apart.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from core.dispute.trace.calibration import LEAST_ROOM
from core.dispute.trace.program import Tolerance

CALIBRATION_FILE = "calibration.json"
FLOAT32 = "float32"


def measured() -> dict[str, Any]:
    """The shipped measurements: `profiles` by numerics, and in each `families`."""
    found: dict[str, Any] = json.loads(
        resources.files("core.dispute.registration").joinpath(CALIBRATION_FILE).read_text("utf-8")
    )
    return found


def _profile(numerics: str) -> dict[str, Any]:
    found: dict[str, Any] = measured()["profiles"].get(numerics, {})
    return found


def entries_of(architecture: str, numerics: str = FLOAT32) -> list[dict[str, Any]]:
    """What was measured of a family, an entry for each tolerance; none where it was not."""
    found: list[dict[str, Any]] = _profile(numerics).get("families", {}).get(architecture, [])
    return found


def calibrated(architecture: str, numerics: str = FLOAT32) -> tuple[Tolerance, ...]:
    """Tolerances of a family, none for one that was not measured.

    Raises ValueError for a measurement that its own T does not cover twice.
    """
    entries = entries_of(architecture, numerics)
    for entry in entries:
        if entry["parts_per_trillion"] < LEAST_ROOM * entry["largest"] * 10**12:
            raise ValueError(f"T of {architecture} at depth {entry['max_depth']} is too small")
    return tuple(
        Tolerance(entry["max_depth"], entry["min_rows"], entry["parts_per_trillion"])
        for entry in entries
    )
