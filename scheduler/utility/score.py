"""What is a pattern worth: θ_p by the exact integer split, latency_p of the fastest split at θ_p, and u_p?

All patterns of a table at once: `counts[t]` is a row with the machines of kind t in every pattern.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from scheduler.utility.kinds import NEVER, Floats, Ints, Steps

Bools: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
REF_MS = 100.0


def rate(counts: Ints, steps: Steps) -> Ints:
    """The step that θ of every pattern (column) of `counts` [kind, pattern] is, -1 where it cannot hold the model."""
    stages = counts.sum(axis=0)
    found = np.full(counts.shape[1], -1)
    alone = np.flatnonzero(stages == 1)
    if alone.size:
        fits = steps.both >= steps.layers
        top = np.where(fits.any(axis=1), fits.shape[1] - 1 - np.argmax(fits[:, ::-1], axis=1), -1)
        found[alone] = top[np.argmax(counts[:, alone], axis=0)]
    held = steps.plain[:, 0] @ counts
    several = np.flatnonzero((stages > 1) & (stages <= steps.layers) & (held >= steps.layers))
    if several.size:
        found[several] = _highest_step(counts[:, several], steps)
    return found


def fastest_ms(counts: Ints, step: Ints, steps: Steps) -> Floats:
    """Least compute time per token of every pattern at the step it reaches, over every choice of its ends."""
    time_ms = np.empty(counts.shape[1])
    stages = counts.sum(axis=0)
    alone, several = np.flatnonzero(stages == 1), np.flatnonzero(stages > 1)
    if alone.size:
        whole = steps.tau_ms * steps.layers + steps.head_ms
        time_ms[alone] = whole[np.argmax(counts[:, alone], axis=0)]
    if several.size:
        time_ms[several] = _fastest_of_several(counts[:, several], step[several], steps)
    return time_ms


def _highest_step(counts: Ints, steps: Steps) -> Ints:
    """The highest step each pattern of two stages or more reaches by bisection, -1 for none."""
    low = np.full(counts.shape[1], -1)  # reached, or none
    high = np.full(counts.shape[1], len(steps.rates))
    while True:
        open_ = np.flatnonzero(high - low > 1)
        if not open_.size:
            return low
        middle = (low[open_] + high[open_]) // 2
        fits = holds(counts[:, open_], middle, steps)
        low[open_[fits]] = middle[fits]
        high[open_[~fits]] = middle[~fits]


def holds(counts: Ints, step: Ints, steps: Steps) -> Bools:
    """Whether each pattern of several stages holds all layers at its step, with the best choice of its two ends."""
    many = counts.shape[1]
    held = np.zeros(many, dtype=np.int64)
    least, second = (
        np.full(many, NEVER),
        np.full(many, NEVER),
    )  # losses at an end, of any two machines
    for t in range(len(counts)):
        here = counts[t]
        held += here * steps.plain_or_none[t][step]
        if steps.ends_alike:
            loss = np.where(here > 0, steps.first_loss[t][step], NEVER)
            second = np.minimum(second, np.where(here > 1, loss, np.maximum(least, loss)))
            least = np.minimum(least, loss)
    lost = least + second if steps.ends_alike else _least_of_both(counts, step, steps)
    fits: Bools = held - lost >= steps.layers
    return fits


def _least_of_both(counts: Ints, step: Ints, steps: Steps) -> Ints:
    """Least layers lost at both ends together where the ends lose differently: every pair of kinds."""
    lost = np.full(counts.shape[1], 2 * NEVER)
    for t in range(len(counts)):
        as_first = np.where(counts[t] > 0, steps.first_loss[t][step], NEVER)
        for u in range(len(counts)):
            there = counts[u] > (1 if t == u else 0)
            lost = np.minimum(lost, as_first + np.where(there, steps.last_loss[u][step], NEVER))
    return lost


def _fastest_of_several(counts: Ints, step: Ints, steps: Steps) -> Floats:
    """Fast stages are filled first; where both ends lose alike, a pair of kinds is tried in its better order only."""
    alike = steps.ends_alike
    kinds, many = counts.shape
    plain = steps.plain[:, step]
    room = counts * (plain - 1)
    base = (counts * steps.tau_ms[:, None]).sum(axis=0)
    left = steps.layers - counts.sum(axis=0)
    best = np.full(many, np.inf)
    for t in range(kinds):
        for u in range(t, kinds) if alike else range(kinds):
            rows = np.flatnonzero((counts[t] > 0) & (counts[u] > (1 if t == u else 0)))
            if not rows.size:
                continue
            at = step[rows]
            first, last = steps.first[t][at], steps.last[u][at]
            here = room[:, rows].copy()
            here[t] -= plain[t, rows] - first
            here[u] -= plain[u, rows] - last
            legal = (first > 0) & (last > 0) & (here.sum(axis=0) >= left[rows])
            head = min(steps.head_ms[t], steps.head_ms[u]) if alike else steps.head_ms[u]
            rest, time_ms = left[rows].copy(), base[rows] + head
            for v in range(kinds):
                take = np.minimum(here[v], rest)
                time_ms += take * steps.tau_ms[v]
                rest -= take
            best[rows] = np.minimum(best[rows], np.where(legal, time_ms, np.inf))
    return best
