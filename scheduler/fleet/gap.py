"""How far can a value be from the best there is?"""

from __future__ import annotations


def relative_gap(value: float, at_most: float) -> float:
    """Share of the bound that the value may lack; 0 when it meets the bound, which proves it."""
    return 0.0 if at_most <= value else 1 - value / at_most
