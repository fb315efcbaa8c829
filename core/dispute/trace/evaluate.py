"""What are the values of a trace? Every operator of a program, element by element, for small shapes
and for tests: `core/engine/trace` makes the same bits over whole arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from core.dispute.referee import LeafKind, exact_value
from core.dispute.trace.derive import Derivation, DerivedLeaf
from core.dispute.trace.held import HeldTrace, referee_leaf
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.sources import Sources

#: Called after each value: what stands in the trace instead of it.
Tamper = Callable[[Place, float], float]


class Evaluator:
    """Evaluates a layout's program over sources, place by place in the order of the trace.

    Raises ArithmeticError for operands on which no number is right; no stage's rows and weights lead
    there unless they are malformed.
    """

    def __init__(self, derivation: Derivation, layout: TraceLayout, sources: Sources) -> None:
        self._derivation = derivation
        self._layout = layout
        self._sources = sources

    def evaluate(self, tamper: Tamper | None = None) -> HeldTrace:
        """The trace; values that `tamper` changes are carried on, so that later leaves hold."""
        values: dict[tuple[int, int], list[float]] = {}
        trace = HeldTrace(self._layout, values)
        for section in range(len(self._layout.section_types)):
            for op, described in enumerate(self._layout.section(section).ops):
                shape = self._layout.shape(described.form)
                line = values.setdefault((section, op), [])
                for row in range(shape.rows):
                    for segment in range(shape.segments):
                        for index in range(shape.length):
                            place = Place(section, op, row, segment, index)
                            found = self.value(trace, place)
                            line.append(found if tamper is None else tamper(place, found))
        return trace

    def value(self, trace: HeldTrace, place: Place) -> float:
        """The value at a place, from the operands in `trace`."""
        op = self._layout.op(place.section, place.op)
        if op.kind == LeafKind.STABILISER:
            keys = range(self._layout.positions)
            return max(trace[Place(place.section, op.a, place.row, place.item, j)] for j in keys)
        trial = self._derivation.trial(place)
        if not trial.parts:
            return self._compute(trace, trial.whole, b"")
        return self._compute(trace, trial.whole, self.partial_sums(trace, place))

    def partial_sums(self, trace: HeldTrace, place: Place) -> bytes:
        """The parts that an accuser states for the value at `place`."""
        trial = self._derivation.trial(place)
        parts = [
            self._compute(trace, self._derivation.part(place, part), b"")
            for part in range(trial.parts)
        ]
        return struct.pack(f"<{len(parts)}d", *parts)

    def _compute(self, trace: HeldTrace, leaf: DerivedLeaf, stated: bytes) -> float:
        found = exact_value(referee_leaf(trace, leaf, self._sources, bytes(8), stated))
        if found is None:
            raise ArithmeticError(f"{leaf.kind.name} of these operands is no number")
        (value,) = struct.unpack("<d", found)
        return float(value)
