"""Which columns cost least, found without a solver? What HiGHS picks is checked against this."""

from __future__ import annotations

import math
from typing import TypeAlias

from scheduler.fabric.knapsack import Knapsack, Picked

#: (models covered as bits, GPUs used by type): (cost, columns chosen)
_Key: TypeAlias = tuple[int, tuple[int, ...]]
_Found: TypeAlias = tuple[float, tuple[int, ...]]
_States: TypeAlias = dict[_Key, _Found]


def merge(knapsack: Knapsack) -> Picked | None:
    """Model by model, keeping the partial choices that no other matches in GPUs and cost."""
    counts = knapsack.counts
    by_model: list[list[int]] = [[] for _ in range(knapsack.models)]
    for c, column in enumerate(knapsack.columns):
        by_model[min(part.model for part in column.parts)].append(c)
    front: _States = {(0, (0,) * len(counts)): (0.0, ())}
    for model in range(knapsack.models):
        grown: _States = {}
        for (covered, used), (cost, chosen) in front.items():
            if covered >> model & 1:
                _keep(grown, (covered, used), (cost, chosen))
                continue
            for c in by_model[model]:
                mask = sum(1 << part.model for part in knapsack.columns[c].parts)
                now = tuple(a + b for a, b in zip(used, knapsack.columns[c].gpus, strict=True))
                if mask & covered or any(a > d for a, d in zip(now, counts, strict=True)):
                    continue
                costs = knapsack.costs[c]
                more = max(cost, *costs) if knapsack.worst else cost + math.fsum(costs)
                _keep(grown, (covered | mask, now), (more, (*chosen, c)))
        front = _front(grown)
    if not front:
        return None
    cost, chosen = min(front.values())
    return Picked(tuple(sorted(chosen)), cost, cost)


def _keep(states: _States, key: _Key, found: _Found) -> None:
    if key not in states or found < states[key]:
        states[key] = found


def _front(states: _States) -> _States:
    """The states that no other of the same models matches in GPUs and cost."""
    kept: dict[int, list[tuple[int, ...]]] = {}
    front: _States = {}
    for (covered, used), found in sorted(states.items(), key=lambda item: (item[1], item[0])):
        others = kept.setdefault(covered, [])
        if not any(all(a <= b for a, b in zip(o, used, strict=True)) for o in others):
            others.append(used)
            front[covered, used] = found
    return front
