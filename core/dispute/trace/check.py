"""Does every leaf of a trace hold? What both sides run before a move: the accuser on its own trace, the accused on the accuser's."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from core.dispute.referee import Leaf, Ruling, rule
from core.dispute.trace.derive import Derivation
from core.dispute.trace.evaluate import Evaluator
from core.dispute.trace.held import HeldTrace, referee_leaf, stabiliser_witness
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.program import Form
from core.dispute.trace.sources import Sources


def all_places(layout: TraceLayout) -> Iterator[Place]:
    """Every value of a layout in the order of the trace, verdicts included."""
    for section in range(len(layout.section_types)):
        for op, described in enumerate(layout.section(section).ops):
            if described.form == Form.VERDICT:
                yield Place(section, op)
                continue
            shape = layout.shape(described.form)
            for row in range(shape.rows):
                for segment in range(shape.segments):
                    for index in range(shape.length):
                        yield Place(section, op, row, segment, index)


class Checker:
    """Judges places of a trace on the trace's own operands, as the chain would."""

    def __init__(self, derivation: Derivation, layout: TraceLayout, sources: Sources) -> None:
        self._derivation = derivation
        self._layout = layout
        self._sources = sources
        self._evaluator = Evaluator(derivation, layout, sources)

    def ruling(self, trace: HeldTrace, place: Place) -> Ruling:
        """What the referee would rule, were this place on trial and its partial sums the right ones."""
        trial = self._derivation.trial(place, stabiliser_witness(trace, place))
        stated = self._evaluator.partial_sums(trace, place) if trial.parts else b""
        leaf = referee_leaf(trace, trial.whole, self._sources, self._result(trace, place), stated)
        return rule(leaf)

    def partial_sums(self, trace: HeldTrace, place: Place) -> bytes:
        """The right partial sums of the value at `place` from the operands in `trace`."""
        return self._evaluator.partial_sums(trace, place)

    def part_ruling(self, trace: HeldTrace, place: Place, part: int, stated: bytes) -> Ruling:
        """What the referee would rule on partial sum `part` of those that were stated."""
        leaf = self._derivation.part(place, part)
        result = stated[8 * part : 8 * part + 8]
        found: Leaf = referee_leaf(trace, leaf, self._sources, result)
        return rule(found)

    def faults(self, trace: HeldTrace, places: Iterable[Place] | None = None) -> Iterator[Place]:
        """Places whose leaf does not hold, in the order of the trace."""
        for place in all_places(self._layout) if places is None else places:
            if self.ruling(trace, place) != Ruling.HOLDS:
                yield place

    def _result(self, trace: HeldTrace, place: Place) -> bytes:
        if self._layout.op(place.section, place.op).form == Form.VERDICT:
            return b""
        return struct.pack("<d", trace[place])
