"""Is a number that somebody wrote one that can be counted with?"""

from __future__ import annotations

from scheduler.fleet.errors import FleetError

#: What a machine may claim of itself (Tflop/s, GB/s, ms); NaN is outside too.
SMALLEST, LARGEST = 1e-6, 1e9
#: More things or bytes than this are a mistake.
MOST_THINGS = 2**62 - 1


def check_number(name: str, value: object, least: float = SMALLEST, most: float = LARGEST) -> None:
    """Raise FleetError with the name where a value is no number from `least` to `most`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise FleetError(f"{name} is {value!r}, not a number from {least:g} to {most:g}")


def check_whole(name: str, value: object, least: int = 0, most: int = MOST_THINGS) -> None:
    """Raise FleetError with the name where a value is no int from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise FleetError(f"{name} is {value!r}, not a whole number from {least} to {most}")
