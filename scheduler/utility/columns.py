"""Which patterns can a scope use at all, when its kinds are few enough to list them?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.fleet.arrays import Ints
from scheduler.utility.kinds import Steps

#: Patterns of one or two kinds are listed up to this many stages above their fewest.
LONG = 6
#: How far to count patterns by stages at first.
HORIZON = 16


def every_pattern(steps: Steps, most: Sequence[int], limit: int) -> Ints:
    """Counts [kind, pattern]: every choice of at most most[t] of kind t and S stages with room.

    S is as large as `limit` rows allow; no patterns when not even the shortest ones fit below it.
    Patterns of at most two kinds, which slow machines among themselves need, follow beyond S.
    """
    room, top = steps.plain[:, 0], min(steps.layers, sum(most))
    stages = _longest(room, most, steps.layers, top, limit)
    if stages is None:
        return np.zeros((len(most), 0), dtype=np.int64)
    listed = [_up_to(room, most, stages, steps.layers)]
    for t in range(len(most)):
        for u in range(t, len(most)):
            longer = _of_two(room, most, t, u, stages, steps.layers, top)
            if longer.shape[1] <= limit:
                listed.append(longer)
    return np.column_stack(listed)


def _longest(room: Ints, most: Sequence[int], layers: int, top: int, limit: int) -> int | None:
    """The most stages S ≤ `top` for which at most `limit` patterns have S or fewer; None when even
    the shortest have more, or there are none.
    """
    horizon = min(top, HORIZON)
    while True:
        # [stages, layers held at most L]: how many choices of the kinds so far; as floats, for they
        # may be very many
        ways = np.zeros((horizon + 1, layers + 1))
        ways[0, 0] = 1.0
        for each, many in zip(room.tolist(), most, strict=True):
            before = ways.copy()
            for n in range(1, min(many, horizon) + 1):
                more = min(layers, n * each)
                ways[n:, more:] += before[: horizon + 1 - n, : layers + 1 - more]
                ways[n:, layers] += before[: horizon + 1 - n, layers + 1 - more :].sum(axis=1)
        patterns = np.cumsum(ways[:, layers])
        if patterns[horizon] > limit or horizon == top:
            listed = np.flatnonzero((patterns > 0) & (patterns <= limit))
            return int(listed[-1]) if listed.size else None
        horizon = min(top, 2 * horizon)


def _up_to(room: Ints, most: Sequence[int], stages: int, layers: int) -> Ints:
    """Every pattern of at most `stages` stages, kind by kind, that can still reach all layers."""
    kinds = len(most)
    counts = np.zeros((kinds, 1), dtype=np.int64)
    used, held = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for t in range(kinds):
        copies = np.minimum(most[t], stages - used) + 1
        first = np.repeat(np.cumsum(copies) - copies, copies)
        counts, used, held = (np.repeat(a, copies, axis=-1) for a in (counts, used, held))
        counts[t] = np.arange(len(used)) - first
        used, held = used + counts[t], held + counts[t] * int(room[t])
        beyond = sum(int(room[u]) * most[u] for u in range(t + 1, kinds))
        largest = max((int(room[u]) for u in range(t + 1, kinds)), default=0)
        keep = held + np.minimum(beyond, (stages - used) * largest) >= layers
        counts, used, held = counts[:, keep], used[keep], held[keep]
    return counts


def _of_two(
    room: Ints, most: Sequence[int], t: int, u: int, beyond: int, layers: int, top: int
) -> Ints:
    """Patterns of kinds t and u alone with more than `beyond` stages, up to LONG above need."""
    slow = max(1, int(min(room[t], room[u])))
    together = most[t] + (most[u] if t != u else 0)
    top = min(top, min(-(-layers // slow), together) + LONG)
    a = np.arange(1, min(most[t], top) + 1)[:, None]
    b = np.arange(1, min(most[u], top) + 1)[None] if t != u else np.zeros((1, 1), dtype=np.int64)
    enough = (a + b > beyond) & (a + b <= top) & (a * room[t] + b * room[u] >= layers)
    of_t, of_u = np.nonzero(enough)
    counts = np.zeros((len(most), len(of_t)), dtype=np.int64)
    counts[t] += a[of_t, 0]
    counts[u] += b[0, of_u]
    return counts
