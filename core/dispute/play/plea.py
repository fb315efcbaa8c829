"""Does the noise of these rows explain a deviation? (`docs/trust.md` §4)

A stage that computed as registered may still be far off where its rows make rounding grow. Its plea
names a seed; D is then held to K times the change that shakes by this seed make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from core.dispute.play.build import Boundaries, Builder, run_section
from core.dispute.play.held import ShardSources, signed_rows
from core.dispute.play.model import TraceModel
from core.dispute.play.operators import Floats, Plain
from core.dispute.trace.judge import MAX_SEEDS
from core.dispute.trace.layout import TraceLayout
from core.dispute.trace.program import Program

_PARTS = 10**12
#: Values here and in a trace differ in their last digits.
_CLOSE = 0.99
#: Seeds that an accuser looks at, and how many times their largest noise a deviation has to be:
#: the accused chooses among all seeds.
SAMPLED = range(0, MAX_SEEDS, 16)
_ROOM = 2.0
#: Largest noise of any seed over the largest of a sample, at most: seeds were seen 28 apart.
_HOPELESS = 32.0


class Conditioning:
    """What a stage makes of some rows in float64, exactly and shaken.

    The layout ends in a deviation. Each answer is one pass through the shard.
    """

    def __init__(
        self,
        layout: TraceLayout,
        model: TraceModel,
        rows: Boundaries,
        arithmetic: Plain | None = None,
    ) -> None:
        """`arithmetic` is numpy's unless another one is given."""
        self._at, self._model, self._rows = replace(layout, plea=None), model, rows
        self._arithmetic = arithmetic or Plain(layout.program.part_terms)
        self._sigma = model.sigma(layout)
        self.exact = self._leaving(self._at, range(self._at.once))  # [w, D], of the window
        self.size = self._squares(self.exact)  # [w], of which S² is the sum

    def deviation(self, served: Floats) -> Floats:
        """[w], of which D² is the sum: how far served rows [w, D] are from the exact ones."""
        return self._squares(served - self.exact)

    def change(self, seed: int) -> Floats:
        """[w], of which N² is the sum: how far shaken rows are from the exact ones."""
        at = replace(self._at, plea=seed)
        return self._squares(self._leaving(at, range(at.once, 2 * at.once)) - self.exact)

    def _squares(self, rows: Floats) -> Floats:
        return np.asarray(np.sum((rows / self._sigma) ** 2, axis=1))

    def _leaving(self, at: TraceLayout, sections: range) -> Floats:
        builder = Builder(at, self._model, self._rows, self._arithmetic)
        found = np.zeros((at.positions, at.program.hidden))
        for section in sections:
            made = run_section(builder, at, section, found)
            found = made[max(made)][:, 0]
        return found[at.window_from :]


def most_noise(program: Program) -> float:
    """K."""
    return program.plea.parts_per_trillion / _PARTS


def winning_seed(layout: TraceLayout, sources: ShardSources) -> int | None:
    """A seed by which the deviation of signed rows is no fault; None where none is to be found."""
    seeds = [*SAMPLED, *(seed for seed in range(MAX_SEEDS) if seed not in SAMPLED)]
    least = np.inf
    for number, ratio in enumerate(_ratios(layout, sources, seeds)):
        if ratio < _CLOSE:
            return seeds[number]
        least = min(least, ratio)
        if number + 1 == len(SAMPLED) and least > _HOPELESS:
            return None
    return None


def is_beyond_noise(layout: TraceLayout, sources: ShardSources) -> bool:
    """Whether no plea is to be expected that makes the deviation no fault; a sample of seeds."""
    return min(_ratios(layout, sources, SAMPLED)) > _ROOM


def _ratios(layout: TraceLayout, sources: ShardSources, seeds: Iterable[int]) -> Iterator[float]:
    """D / (K·N) of the rows that were signed, for each seed."""
    rows, most = signed_rows(layout, sources), most_noise(layout.program)
    conditioning = Conditioning(layout, sources.model, rows)
    deviation = conditioning.deviation(rows.served(layout)).sum()
    for seed in seeds:
        change = conditioning.change(seed).sum()
        yield float(np.sqrt(deviation / change) / most) if change else np.inf
