"""When may a model's machines be slashed for deviating? (`docs/trust.md`, shadow mode)

Until then their deviations are measured and held against nobody. No program decides this:
tolerances are part of the operator program and so of the model's id, and a person registers the
model with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from core.dispute.trace.calibration import LEAST_ROOM

#: Honest windows, and kinds of machines that served them, before money hangs on a tolerance.
LEAST_WINDOWS, LEAST_MACHINES = 10_000, 3
_PARTS = 10**12


@dataclass(frozen=True)
class Measured:
    """What honest machines were seen to do at one depth and window length."""

    windows: int
    largest: float  # D/S
    machines: Collection[str]


def in_shadow_because(measured: Measured, tolerance_parts: int) -> list[str]:
    """What keeps a tolerance from being held against machines; nothing when it may be."""
    why = []
    if measured.windows < LEAST_WINDOWS:
        why.append(f"{measured.windows} of {LEAST_WINDOWS} honest windows")
    if len(set(measured.machines)) < LEAST_MACHINES:
        why.append(f"{len(set(measured.machines))} of {LEAST_MACHINES} kinds of machines")
    if LEAST_ROOM * measured.largest * _PARTS > tolerance_parts:
        why.append(f"an honest window reached {measured.largest:.2g}, more than half of T")
    return why
