"""When may a model's machines be slashed for deviating? Until then their deviations are measured and held against nobody.

The tolerances are part of the operator program and so of the model's id: a model that is to leave shadow is registered again, with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: Honest windows, and kinds of machines that they were served by, before money hangs on a tolerance.
LEAST_WINDOWS, LEAST_MACHINES = 10_000, 3
#: T is at least so many times the largest honest deviation.
LEAST_ROOM = 2.0
_PARTS = 10**12


@dataclass(frozen=True)
class Measured:
    """What honest machines were seen to do at one depth and window length."""

    windows: int
    largest: float  # D/S
    machines: Collection[str]


def tolerance_for(largest: float, published_parts: int) -> int:
    """T in parts per trillion: the published one, or more where what was measured needs more room; one digit, rounded up."""
    needed = LEAST_ROOM * largest * _PARTS
    if needed <= published_parts:
        return published_parts
    digit = int(10 ** (len(str(int(needed))) - 1))
    return int(-(-needed // digit)) * digit


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
