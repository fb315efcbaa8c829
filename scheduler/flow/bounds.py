"""How much flow can no placement exceed?

Both bounds look at compute only, so they hold with and without partial inference and for any links.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from scheduler.fleet.costs import capacities, tokens_per_s
from scheduler.fleet.fleet import Fleet, Machine, ModelShape

#: Rates T(1), T(2), … of one machine, and how many machines have just these.
Tables = Mapping[tuple[float, ...], int]


def rate_table(machine: Machine, model: ModelShape) -> tuple[float, ...]:
    """T(1), T(2), … up to the most layers the machine holds anywhere in the model."""
    most = max(capacities(machine, model))
    return tuple(tokens_per_s(machine, model, k) for k in range(1, most + 1))


def trivial_bound(fleet: Fleet, model: ModelShape) -> float:
    """Σ_i max_k k T_i(k) / L: the early stop of Helix §4.5, hardly ever attained."""
    tables = _tables(fleet, model)
    return sum(many * _most_work(rates, math.inf) for rates, many in tables.items()) / model.layers


def capped_bound(fleet: Fleet, model: ModelShape) -> float:
    """Largest F with Σ_i max_k k min(T_i(k), F) ≥ L F: no rate above the flow is of use.

    A flow of F needs L F layer-tokens a second, and a machine with k layers passes at most
    min(T(k), F) tokens through each. Σ_i max_k k min(T_i(k) / F, 1) falls with F, so bisection down
    to neighbouring floats finds the largest; the result is at or just above it; 0 when the machines
    cannot hold the model.
    """
    tables = _tables(fleet, model)
    low, high = 0.0, trivial_bound(fleet, model)

    def feasible(flow: float) -> bool:
        work = math.fsum(many * _most_work(rates, flow) for rates, many in tables.items())
        return work >= model.layers * flow * (1 - 1e-15)

    if not _holds_model(tables, model):
        return 0.0
    if feasible(high):
        return high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return high


def _tables(fleet: Fleet, model: ModelShape) -> Tables:
    return Counter(rates for m in fleet.machines if (rates := rate_table(m, model)))


def _holds_model(tables: Tables, model: ModelShape) -> bool:
    return sum(many * len(rates) for rates, many in tables.items()) >= model.layers


def _most_work(rates: tuple[float, ...], flow: float) -> float:
    return max(k * min(rate, flow) for k, rate in enumerate(rates, 1))
