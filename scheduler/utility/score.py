"""What is a pattern worth: θ_p by the exact integer split, and the least time per token at θ_p?

All patterns at once: `counts[t]` is a row with the machines of kind t in every pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scheduler.fleet.arrays import Flags, Floats, Ints
from scheduler.utility.kinds import NEVER, Steps

REF_MS = 100.0


def utility(theta: Floats, latency_ms: Floats, beta: float) -> Floats:
    """u = θ (ref / latency)^β."""
    if beta == 0:
        return theta.copy()
    worth: Floats = theta * (REF_MS / np.maximum(1e-9, latency_ms)) ** beta
    return worth


def rate(counts: Ints, steps: Steps) -> Ints:
    """The step of θ of each column of `counts` [kind, pattern], -1 where it holds no model."""
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
    """Least compute time per token of each pattern at its step, over every choice of ends."""
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
    """The highest step each pattern of two stages or more reaches, -1 for none.

    First as if ends lost nothing, by bisection; then by bisection again below that, where they do.
    """
    at_step = np.ascontiguousarray(steps.plain_or_none.T)
    machines = np.ascontiguousarray(counts.T)

    def enough(rows: Ints, step: Ints) -> Flags:
        held: Ints = np.einsum("pt,pt->p", machines[rows], at_step[step])
        return held >= steps.layers

    def enough_with_ends(rows: Ints, step: Ints) -> Flags:
        return holds(counts[:, rows], step, steps)

    every = np.arange(counts.shape[1])
    found = _last(enough, every, np.full(len(every), len(steps.rates)))
    lossy = every[found >= 0]
    lossy = lossy[~enough_with_ends(lossy, found[lossy])]
    found[lossy] = _last(enough_with_ends, lossy, found[lossy])
    return found


def _last(fits: Callable[[Ints, Ints], Flags], rows: Ints, below: Ints) -> Ints:
    """The last step under `below` that fits each row, -1 for none; slower steps fit longer."""
    reached, missed = np.full(len(rows), -1), below.copy()
    while True:
        open_ = np.flatnonzero(missed - reached > 1)
        if not open_.size:
            return reached
        middle = (reached[open_] + missed[open_]) // 2
        good = fits(rows[open_], middle)
        reached[open_[good]] = middle[good]
        missed[open_[~good]] = middle[~good]


def holds(counts: Ints, step: Ints, steps: Steps) -> Flags:
    """Whether each pattern of several stages holds all layers at its step with its best ends."""
    many = counts.shape[1]
    held = np.zeros(many, dtype=np.int64)
    least, second = np.full(many, NEVER), np.full(many, NEVER)  # lost at an end, of any two
    for t, here in enumerate(counts):
        held += here * steps.plain_or_none[t][step]
        if steps.ends_alike:
            loss = np.where(here > 0, steps.first_loss[t][step], NEVER)
            second = np.minimum(second, np.where(here > 1, loss, np.maximum(least, loss)))
            least = np.minimum(least, loss)
    lost = least + second if steps.ends_alike else _least_of_both(counts, step, steps)
    fits: Flags = held - lost >= steps.layers
    return fits


def _least_of_both(counts: Ints, step: Ints, steps: Steps) -> Ints:
    """Least layers lost at both ends together, over every pair of kinds."""
    lost = np.full(counts.shape[1], 2 * NEVER)
    for t in range(len(counts)):
        as_first = np.where(counts[t] > 0, steps.first_loss[t][step], NEVER)
        for u in range(len(counts)):
            there = counts[u] > (1 if t == u else 0)
            lost = np.minimum(lost, as_first + np.where(there, steps.last_loss[u][step], NEVER))
    return lost


def _fastest_of_several(counts: Ints, step: Ints, steps: Steps) -> Floats:
    """Fast stages are filled first, for each pair of end kinds in their better order.

    The pair of least head comes first: no later one is faster where nothing was lost at the ends.
    """
    alike, kinds = steps.ends_alike, range(len(counts))
    plain, first, last = (table[:, step] for table in (steps.plain, steps.first, steps.last))
    left = (steps.layers - counts.sum(axis=0)).astype(np.float64)
    held = np.cumsum(counts * (plain - 1), axis=0).T.astype(np.float64)  # by the fastest kinds
    slower = np.append(steps.tau_ms[:-1] - steps.tau_ms[1:], steps.tau_ms[-1])
    base = steps.tau_ms @ counts
    least = base + np.minimum(held, left[:, None]) @ slower
    best = np.full(counts.shape[1], np.inf)
    pairs = [
        (float(min(steps.head_ms[t], steps.head_ms[u]) if alike else steps.head_ms[u]), t, u)
        for t in kinds
        for u in kinds
        if t <= u or not alike
    ]
    begins, ends = (counts > 0) & (first > 0), (counts > 0) & (last > 0)
    for head, t, u in sorted(pairs):
        fit = begins[t] & ends[u] & (least + head < best)
        rows = np.flatnonzero(fit & (counts[t] > 1) if t == u else fit)
        if not rows.size:
            continue
        here, rest = held[rows], left[rows]
        here[:, t:] -= (plain[t] - first[t])[rows, None]
        here[:, u:] -= (plain[u] - last[u])[rows, None]
        time_ms = base[rows] + head + np.minimum(here, rest[:, None]) @ slower
        best[rows] = np.minimum(best[rows], np.where(here[:, -1] >= rest, time_ms, np.inf))
    return best
