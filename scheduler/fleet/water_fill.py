"""How many layers should each stage of one pipeline take so that stage times are even?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.fleet.errors import PlanError

BISECTIONS = 200


def water_fill(
    layers: int,
    caps: Sequence[int],
    rates: Sequence[float],
    extra_layers: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Whole layers per stage, in stage order (Parallax §3.2, water-filling).

    x_i = min(c_i, λ F_i) with λ by bisection so that Σ x_i = L, then largest remainders under the
    caps. Every stage gets at least one layer, none more than its cap, and the counts sum to L
    exactly. ``extra_layers`` is fixed work of a stage in units of its own layers (the head on the
    last stage): then x_i = min(c_i, λ F_i − extra_i). Ties go to the earlier stage. Raises
    PlanError when the caps cannot hold L or there are more stages than layers.
    """
    if not caps or min(caps) < 1 or len(caps) > layers or sum(caps) < layers:
        raise PlanError("over-capacity", f"{layers} layers on stages of capacity {list(caps)}")
    extra = extra_layers or [0.0] * len(caps)

    def level(lam: float) -> list[float]:
        return [
            min(float(cap), max(1.0, lam * rate - more))
            for cap, rate, more in zip(caps, rates, extra, strict=True)
        ]

    low, high = (
        0.0,
        max((cap + more) / rate for cap, rate, more in zip(caps, rates, extra, strict=True)),
    )
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if sum(level(middle)) < layers:
            low = middle
        else:
            high = middle
    # A level a hair below a whole number is that number: λ is only as exact as a float.
    level_layers = [x if abs(x - round(x)) > 1e-9 else float(round(x)) for x in level(high)]
    counts = [math.floor(x) for x in level_layers]
    # `layers - sum(counts)` is below the number of stages, yet a stage at its cap passes its turn
    # on.
    by_remainder = sorted(range(len(caps)), key=lambda i: (counts[i] - level_layers[i], i))
    while sum(counts) < layers:
        for i in by_remainder:
            if sum(counts) < layers and counts[i] < caps[i]:
                counts[i] += 1
    while sum(counts) > layers:
        for i in reversed(by_remainder):
            if sum(counts) > layers and counts[i] > 1:
                counts[i] -= 1
    return tuple(counts)
