"""Does a trace hold to the bit where it is looked at?

What either side asks before it stakes money on one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from core.dispute.play.players import Player
from core.dispute.referee import Ruling
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.program import Form


def sampled(layout: TraceLayout, each: int, rng: random.Random) -> Iterator[Place]:
    """`each` random places of every operator, verdicts left out."""
    for section in range(len(layout.section_types)):
        for number, op in enumerate(layout.section(section).ops):
            if op.form == Form.VERDICT:
                continue
            shape = layout.shape(op.form)
            for _ in range(each):
                yield Place(
                    section,
                    number,
                    rng.randrange(shape.rows),
                    rng.randrange(shape.segments),
                    rng.randrange(shape.length),
                )


def faults(player: Player, each: int, rng: random.Random) -> list[Place]:
    """Sampled places whose leaf the referee would not let stand."""
    places = sampled(player.case.layout, each, rng)
    return [place for place in places if player.checker.ruling(player.trace, place) != Ruling.HOLDS]
