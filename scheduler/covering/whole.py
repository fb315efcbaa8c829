"""Which whole numbers of patterns waste least?

With prices w of the relaxation, a plan falls short of the bound by exactly Σ −(reduced cost of what
it uses) + w · (what it leaves): its *waste*. Only patterns outside the relaxation's basis cost
waste, and few of them can be part of a plan that wastes less than a good one: they are chosen
(`outside`), and the basis fills the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.covering.outside import TINY, Outside
from scheduler.covering.simplex import Mix, maximise
from scheduler.fleet.arrays import Floats, Ints
from scheduler.fleet.gap import relative_gap


@dataclass(frozen=True)
class Whole:
    """How often each column is used, what that is worth, and what no choice of them passes."""

    times: Ints
    value: float
    bound: float


@dataclass(frozen=True, slots=True)
class Search:
    """``width`` states are kept per level, until a plan is within ``gap`` of the bound."""

    width: int
    gap: float


def best_whole(
    counts: Ints,
    worth: Floats,
    supply: Ints,
    mix: Mix,
    bound: float,
    searches: Sequence[Search],
    classes: int,
    first: float,
) -> Whole:
    """The best whole plan of the columns of `counts` [kind, column] that the searches find.

    Every column must fit the supply. `bound` is that of the mix, its prices times the supply; other
    prices make it and the bound of the plan looser. The less waste is allowed the fewer are the
    states: so the first search is for plans that waste at most `first` more than all do, the next
    for twice as much.
    """
    times = dive(counts, worth, supply, mix)
    value = float(worth @ times)
    kinds, many = counts.shape
    # A machine that is left over is a column too, worth nothing.
    columns = np.column_stack([counts, np.eye(kinds, dtype=np.int64)])
    waste = np.maximum(0.0, np.append(mix.prices @ counts - worth, mix.prices))
    basis = np.where(mix.basis >= 0, mix.basis, many - 1 - mix.basis)
    near = np.setdiff1d(np.flatnonzero(waste < bound - value), basis)
    outside = Outside(
        columns[:, basis], columns[:, near], waste[near], supply, bound - value, classes
    )
    proven = outside.least
    for how in searches:
        more = first
        while relative_gap(value, bound - proven) > how.gap and bound - value > proven + TINY:
            limit = min(bound - value, outside.least + more)
            last = limit == bound - value
            found, wasted = outside.search(limit, how.width)
            proven = max(proven, wasted)
            if found is not None:
                all_times = np.zeros(columns.shape[1], dtype=np.int64)
                np.add.at(all_times, near[found.columns], 1)
                np.add.at(all_times, basis, found.basis)
                if float(worth @ all_times[:many]) > value:
                    times, value = all_times[:many], float(worth @ all_times[:many])
            if last:
                break
            more *= 2
    return Whole(times, value, max(value, bound - proven))


def dive(counts: Ints, worth: Floats, supply: Ints, mix: Mix) -> Ints:
    """A plan in no time: round the mix down, solve the relaxation of what is left, and so on."""
    times = np.zeros(counts.shape[1], dtype=np.int64)
    fits = np.arange(counts.shape[1])
    while fits.size:
        used = mix.basis >= 0
        whole = (mix.amounts[used] + TINY).astype(np.int64)
        if not whole.any():  # one of what there is most of
            whole[np.argmax(mix.amounts[used])] = 1
        np.add.at(times, fits[mix.basis[used]], whole)
        left = supply - counts @ times
        fits = np.flatnonzero((counts <= left[:, None]).all(axis=0) & (worth > 0))
        mix = maximise(counts[:, fits].astype(np.float64), worth[fits], left.astype(np.float64))
    return times
