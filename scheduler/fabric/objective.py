"""What makes one placement better than another (LLMFabric §3.3, equation 1)?

L(W, A, P) is a sum, or the largest, of one convex function of each model's mean latency, written as
its affine pieces so that prices and bounds need no case distinction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from scheduler.fabric.world import Demand
from scheduler.fleet.errors import FleetError

#: "sum" of latencies; "weighted" by weight, by default the mean over requests; "minmax" the slowest
#: model; "slo" the excess over each limit, as a share of it.
Objective: TypeAlias = Literal["sum", "weighted", "minmax", "slo"]
#: cost = max over (slope, offset) of slope × latency_ms + offset.
Pieces: TypeAlias = tuple[tuple[float, float], ...]


def pieces_of(objective: Objective, demands: Sequence[Demand]) -> tuple[Pieces, ...]:
    """The cost of each model's latency. Raises FleetError where a limit is missing."""
    if objective == "slo":
        found = []
        for demand in demands:
            if demand.slo_ms is None:
                raise FleetError(f"model {demand.name} has no slo_ms to hold")
            weight = demand.weight or 1.0
            found.append(((weight / demand.slo_ms, -weight), (0.0, 0.0)))
        return tuple(found)
    if objective == "weighted":
        weights = [demand.weight or demand.requests_per_s for demand in demands]
        return tuple(((weight / sum(weights), 0.0),) for weight in weights)
    if objective not in ("sum", "minmax"):
        raise FleetError(f"no objective is called {objective}")
    return (((1.0, 0.0),),) * len(demands)


def cost(pieces: Pieces, latency_ms: float) -> float:
    """The cost of one latency."""
    return max(slope * latency_ms + offset for slope, offset in pieces)
