"""Which pattern is cheapest when every machine of kind t costs w_t?

The pricing problem of column generation: a bounded covering knapsack that also chooses which two
machines hold the embedding and the head. Exact, in O(kinds · copies) numpy steps over tables of 4 ×
(L + 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.fleet.arrays import Floats
from scheduler.fleet.costs import Capacities
from scheduler.fleet.kinds import Pattern, Pool

#: Rows of a table say which ends are taken: 0 none, 1 first, 2 last, 3 both.
#: (first taken now, last taken now, rows it may come from, rows it leads to)
ENDS = (
    (0, 0, slice(0, 4), slice(0, 4)),
    (1, 0, slice(0, 4, 2), slice(1, 4, 2)),
    (0, 1, slice(0, 2), slice(2, 4)),
    (1, 1, slice(0, 1), slice(3, 4)),
)


def cheapest_pattern(
    pool: Pool, counts: Sequence[int], weights: Floats
) -> tuple[float, Pattern] | None:
    """(cost, pattern) of the cheapest pattern within `counts`, or None. Weights are ≥ 0."""
    single = min(
        (
            (float(weights[t]), (t,))
            for t, kind in enumerate(pool.kinds)
            if counts[t] and kind.both >= pool.layers
        ),
        default=None,
    )
    several = _cheapest_of_several(pool, counts, weights) if pool.layers > 1 else None
    return min((found for found in (single, several) if found is not None), default=None)


def _uses(kind: Capacities, count: int, layers: int) -> Iterator[tuple[int, int, int]]:
    """Ways to use machines of one kind: (index into ENDS, copies, layers they hold, at most L)."""
    for way, (first, last, _, _) in enumerate(ENDS):
        if (first and kind.first < 1) or (last and kind.last < 1):
            continue
        ends_hold = first * kind.first + last * kind.last
        useful = -(-max(0, layers - ends_hold) // kind.plain)
        for plain in range(min(count - first - last, useful) + 1):
            if plain + first + last:
                yield way, plain + first + last, min(layers, plain * kind.plain + ends_hold)


def _cheapest_of_several(
    pool: Pool, counts: Sequence[int], weights: Floats
) -> tuple[float, Pattern] | None:
    layers = pool.layers
    table = np.full((4, layers + 1), np.inf)  # [ends taken, layers held at least]: cost
    table[0, 0] = 0.0
    tables = [table]
    for t, kind in enumerate(pool.kinds):
        after = table.copy()
        for way, copies, gain in _uses(kind, counts[t], layers):
            _, _, source, target = ENDS[way]
            cost = table[source] + copies * weights[t]
            np.minimum(after[target, gain:], cost[:, : layers + 1 - gain], out=after[target, gain:])
            np.minimum(after[target, :gain], cost[:, :1], out=after[target, :gain])
        table = after
        tables.append(table)
    if not np.isfinite(table[3, layers]):
        return None
    pattern: list[int] = []
    row, held = 3, layers
    for t in range(len(pool.kinds) - 1, -1, -1):
        cost, table = tables[t + 1][row, held], tables[t]
        if table[row, held] == cost:
            continue
        for way, copies, gain in _uses(pool.kinds[t], counts[t], layers):
            first, last, _, _ = ENDS[way]
            taken = first + 2 * last
            before = max(0, held - gain)
            if row & taken == taken and table[row - taken, before] + copies * weights[t] == cost:
                pattern += [t] * copies
                row, held = row - taken, before
                break
        else:
            raise AssertionError("a table entry without an origin")
    return float(tables[-1][3, layers]), tuple(sorted(pattern))
