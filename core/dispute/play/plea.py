"""Does the noise of these rows explain a deviation? (`docs/trust.md` §6)

A stage that computed as registered may still be far off where its rows make rounding grow. Its plea
names a seed; D is then held to K times the change that shakes by this seed make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from core.dispute.play.build import Builder, run_section
from core.dispute.play.held import ShardSources, signed_rows
from core.dispute.play.operators import Floats, Plain
from core.dispute.trace.judge import MAX_SEEDS
from core.dispute.trace.layout import TABLES_PART, TraceLayout

_PARTS = 10**12
#: Values here and in a trace differ in their last digits.
_CLOSE = 0.99
#: Seeds that an accuser looks at, and how many times their largest noise a deviation has to be:
#: the accused chooses among all seeds.
_SAMPLED = range(0, MAX_SEEDS, 16)
_ROOM = 2.0


@dataclass(frozen=True)
class Noise:
    """How far off the rows of a window are, and how much they change, whitened."""

    deviation: float  # D
    size: float  # S
    change: float  # N of one seed


def noises(layout: TraceLayout, sources: ShardSources, seeds: Iterable[int]) -> Iterator[Noise]:
    """D, S and N over the window of a layout for each of these seeds, in float64.

    The layout ends in a deviation. One pass through the shard a seed, and one before.
    """
    rows = signed_rows(layout, sources)
    assert rows.outputs is not None, "a deviation needs served rows"
    arithmetic = Plain(layout.program.part_terms)
    sigma = sources.model.tensor(TABLES_PART, layout.program.sigma)[layout.layer_to]
    sigma = np.asarray(sigma, np.float64)

    def whitened(found: Floats) -> float:
        return float(np.sqrt(np.sum((found / sigma) ** 2)))

    def leaving(at: TraceLayout, sections: range) -> Floats:
        """[w, D], what the last of these sections makes of the window."""
        builder = Builder(at, sources.model, rows, arithmetic)
        found = np.zeros((at.positions, at.program.hidden))
        for section in sections:
            made = run_section(builder, at, section, found)
            found = made[max(made)][:, 0]
        return found[at.window_from :]

    plain = replace(layout, plea=None)
    exact = leaving(plain, range(plain.once))
    served = rows.outputs[layout.window_from - rows.first_out : layout.positions - rows.first_out]
    deviation, size = whitened(served.astype(np.float64) - exact), whitened(exact)
    for seed in seeds:
        at = replace(layout, plea=seed)
        shaken = leaving(at, range(at.once, 2 * at.once))
        yield Noise(deviation, size, whitened(shaken - exact))


def winning_seed(layout: TraceLayout, sources: ShardSources) -> int | None:
    """The first seed by which the deviation is no fault; None where none is."""
    most = layout.program.plea.parts_per_trillion / _PARTS
    found = zip(range(MAX_SEEDS), noises(layout, sources, range(MAX_SEEDS)), strict=True)
    fitting = (seed for seed, noise in found if noise.deviation < _CLOSE * most * noise.change)
    return next(fitting, None)


def is_beyond_noise(layout: TraceLayout, sources: ShardSources) -> bool:
    """Whether no plea is to be expected that makes the deviation no fault; a sample of seeds."""
    most = layout.program.plea.parts_per_trillion / _PARTS
    found = list(noises(layout, sources, _SAMPLED))
    return found[0].deviation > _ROOM * most * max((n.change for n in found), default=inf)
