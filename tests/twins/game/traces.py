"""A whole trace in memory, made by the referee element by element, for small shapes and lies.

`core/dispute/play` makes the same bits over whole arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from core.dispute.referee import LeafKind, Ruling, rule
from core.dispute.trace.check import Checker
from core.dispute.trace.chunks import ChunkTree
from core.dispute.trace.derive import TraceRun
from core.dispute.trace.evidence import RunOpening, run_chunks
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.operands import largest_key, referee_leaf
from core.dispute.trace.program import Form
from core.protocol import commit

#: Called after each value: what stands in the trace instead of it.
Tamper = Callable[[Place, float], float]


class HeldTrace:
    """Values of every operator, row by row and segment by segment, as float64."""

    def __init__(self, layout: TraceLayout, values: dict[tuple[int, int], list[float]]) -> None:
        self.layout = layout
        self._values = values

    def __getitem__(self, place: Place) -> float:
        return self._values[place.section, place.op][self._offset(place)]

    def line(self, section: int, op: int) -> list[float]:
        """What an operator made, row by row and segment by segment."""
        return self._values[section, op]

    def replaced(self, place: Place, value: float) -> HeldTrace:
        """This trace with one other value."""
        key = (place.section, place.op)
        line = list(self._values[key])
        line[self._offset(place)] = value
        return HeldTrace(self.layout, {**self._values, key: line})

    def _offset(self, place: Place) -> int:
        shape = self.layout.shape(self.layout.op(place.section, place.op).form)
        return (place.row * shape.segments + place.segment) * shape.length + place.item

    def run(self, run: TraceRun) -> bytes:
        """The bytes of a run."""
        line = self._values[run.place.section, run.place.op]
        start = self._offset(run.place)
        return struct.pack(f"<{run.count}d", *line[start : start + run.count])

    @cached_property
    def chunks(self) -> list[bytes]:
        found = []
        for number, starts in enumerate(self.layout.bases):
            for op in range(len(starts)):
                found += self._chunks_of(number, op)
        return found

    def _chunks_of(self, section: int, op: int) -> list[bytes]:
        line = self._values.get((section, op), [])
        length = self.layout.shape(self.layout.op(section, op).form).length
        return [
            struct.pack(f"<{stop - at}d", *line[at:stop])
            for first in range(0, len(line), length or 1)
            for at in range(first, first + length, 8)
            for stop in (min(at + 8, first + length),)
        ]

    @cached_property
    def tree(self) -> ChunkTree:
        return ChunkTree([commit.leaf_hash(chunk) for chunk in self.chunks])

    def open(self, run: TraceRun) -> RunOpening:
        first, last = run_chunks(self.layout, run)
        return RunOpening(b"".join(self.chunks[first:last]), tuple(self.tree.proof(first, last)))


class Evaluator(Checker):
    """Evaluates a layout's program over sources, place by place in the order of the trace.

    Raises ArithmeticError for operands on which no number is right; no stage's rows and weights
    lead there unless they are malformed.
    """

    def evaluate(self, layout: TraceLayout, tamper: Tamper | None = None) -> HeldTrace:
        """The trace; values that `tamper` changes are carried on, so that later leaves hold."""
        values: dict[tuple[int, int], list[float]] = {}
        trace = HeldTrace(layout, values)
        for place in all_places(layout):
            line = values.setdefault((place.section, place.op), [])
            if layout.op(place.section, place.op).form != Form.VERDICT:
                found = self._value(trace, place)
                line.append(found if tamper is None else tamper(place, found))
        return trace

    def _value(self, trace: HeldTrace, place: Place) -> float:
        """The value at a place, from the operands in `trace`."""
        op = trace.layout.op(place.section, place.op)
        if op.kind == LeafKind.STABILISER:
            key = largest_key(trace, place)
            return trace[Place(place.section, op.a, place.row, place.item, key)]
        trial = self._derivation.trial(place)
        stated = self.partial_sums(trace, place) if trial.parts else b""
        (value,) = struct.unpack("<d", self.right(trace, trial.whole, stated))
        return float(value)

    def part_ruling(self, trace: HeldTrace, place: Place, part: int, stated: bytes) -> Ruling:
        """What the referee would rule on partial sum `part` of those that were stated."""
        leaf = self._derivation.part(place, part)
        return rule(referee_leaf(trace, leaf, self._sources, stated[8 * part : 8 * part + 8]))


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


def faults(
    checker: Checker, trace: HeldTrace, places: Iterable[Place] | None = None
) -> Iterator[Place]:
    """Places whose leaf does not hold, in the order of the trace."""
    for place in all_places(trace.layout) if places is None else places:
        if checker.ruling(trace, place) != Ruling.HOLDS:
            yield place
