"""Which patterns can a scope use at all, when its kinds are few enough to list them?"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from scheduler.utility.kinds import Ints, Steps

#: Patterns of one or two kinds are listed up to so many stages above their fewest.
LONG = 6


def every_pattern(steps: Steps, most: Sequence[int], limit: int) -> tuple[Ints, int] | None:
    """(counts [kind, pattern], S): every choice of at most most[t] machines of kind t and S stages with enough room.

    S is as large as `limit` rows allow; None when not even the shortest patterns fit below it. Patterns of at most
    two kinds, which slow machines among themselves need, follow beyond S.
    """
    room = steps.plain[:, 0]
    fewest = _fewest_stages(room, most, steps.layers)
    if fewest is None:
        return None
    top = min(steps.layers, sum(most))
    best: tuple[Ints, int] | None = None
    stages = fewest + 1
    while comb(stages + 1 + len(most), len(most)) <= limit:
        stages += 1  # so many fit for sure
    while True:
        stages = min(top, stages)
        counts = _grow(room, most, stages, steps.layers, limit)
        if counts is None:
            break
        best = counts, stages
        if stages >= top:
            return best
        stages += 1 + (2 * counts.shape[1] < limit)
    if best is None:
        return None
    longer = [best[0]]
    kinds = range(len(most))
    for t, u in [(t, u) for t in kinds for u in kinds if t <= u]:
        few = [m if v in (t, u) else 0 for v, m in enumerate(most)]
        slowest = _fewest_stages(np.full_like(room, min(room[t], room[u])), few, steps.layers)
        stages = min(top, (slowest or sum(few)) + LONG)
        counts = None if stages <= best[1] else _grow(room, few, stages, steps.layers, limit)
        if counts is not None:
            longer.append(
                counts[:, (counts.sum(axis=0) > best[1]) & (counts[[t, u]] > 0).all(axis=0)]
            )
    return np.column_stack(longer), best[1]


def _fewest_stages(room: Ints, most: Sequence[int], layers: int) -> int | None:
    held = stages = 0
    for t in np.argsort(-room, kind="stable"):
        for _ in range(most[t]):
            if held >= layers:
                return stages
            held += int(room[t])
            stages += 1
    return stages if held >= layers else None


def _grow(room: Ints, most: Sequence[int], stages: int, layers: int, limit: int) -> Ints | None:
    kinds = len(most)
    counts = np.zeros((kinds, 1), dtype=np.int64)
    used, held = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    beyond = [sum(int(room[u]) * most[u] for u in range(t + 1, kinds)) for t in range(kinds)]
    largest_beyond = [
        max((int(room[u]) for u in range(t + 1, kinds)), default=0) for t in range(kinds)
    ]
    for t in range(kinds):
        choices = min(most[t], stages) + 1
        if counts.shape[1] * choices > 4 * limit:
            return None
        copies = np.tile(np.arange(choices), counts.shape[1])
        counts, used, held = (np.repeat(a, choices, axis=-1) for a in (counts, used, held))
        counts[t] = copies
        used, held = used + copies, held + copies * int(room[t])
        reach = held + np.minimum(beyond[t], (stages - used) * largest_beyond[t])
        keep = (used <= stages) & (reach >= layers)
        counts, used, held = counts[:, keep], used[keep], held[keep]
        if counts.shape[1] > limit:
            return None
    return counts
