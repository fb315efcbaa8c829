"""A whole trace in memory: its values by place, its chunks, its tree, and the evidence for any leaf of it."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cached_property

from core.dispute.referee import Leaf
from core.dispute.trace.chunks import ChunkTree
from core.dispute.trace.derive import Boundary, Derivation, DerivedLeaf, TraceRun, Weights
from core.dispute.trace.evidence import Evidence, RunOpening, run_chunks
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.sources import Sources
from core.protocol import commit

TOKEN_BYTES = 4


class HeldTrace:
    """Values of every operator, row by row and segment by segment, as float64."""

    def __init__(self, layout: TraceLayout, values: dict[tuple[int, int], list[float]]) -> None:
        self.layout = layout
        self._values = values

    def __getitem__(self, place: Place) -> float:
        return self._values[place.section, place.op][self._offset(place)]

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


def weights_of(leaf: DerivedLeaf, sources: Sources) -> Weights | None:
    """The leaf's weights; their row is the token that was fed where the leaf says so."""
    if leaf.weights is None or not leaf.by_token:
        return leaf.weights
    assert leaf.row is not None
    token = sources.row(Boundary.IN, leaf.row.row, 0, TOKEN_BYTES)
    return replace(leaf.weights, row=int.from_bytes(token, "little"))


def tail(leaf: DerivedLeaf, sources: Sources, row_width: int) -> bytes:
    """Operands that do not come from the trace: padding, the model's, the signed row's."""
    data = bytes(8 * leaf.padding)
    weights = weights_of(leaf, sources)
    if weights is not None:
        data += sources.weights(weights)
    if leaf.row is not None and not leaf.by_token:
        data += sources.row(leaf.row.boundary, leaf.row.row, leaf.row.column * row_width, row_width)
    return data


def operands(
    trace: HeldTrace, leaf: DerivedLeaf, sources: Sources, result: bytes, stated: bytes = b""
) -> bytes:
    """A leaf's operands: the result, stated partial sums, runs of the trace, and what else it reads."""
    row_width = trace.layout.program.row_format.width_bytes
    runs = b"".join(trace.run(run) for run in leaf.runs)
    return result + stated + runs + tail(leaf, sources, row_width)


def referee_leaf(
    trace: HeldTrace, leaf: DerivedLeaf, sources: Sources, result: bytes, stated: bytes = b""
) -> Leaf:
    return Leaf(leaf.kind, leaf.params, operands(trace, leaf, sources, result, stated))


def evidence_for(
    trace: HeldTrace,
    derivation: Derivation,
    sources: Sources,
    place: Place,
    part: int | None = None,
    listed: tuple[bytes, int] | None = None,
) -> Evidence:
    """What the accuser opens for the value at `place`, for its sum of parts, or for partial sum `part`.

    For a token's verdict, `listed` are a list of tokens and the number of the one that is looked at (`answer.py`).
    """
    tokens, witness, named = b"", stabiliser_witness(trace, place), None
    if listed is not None:
        tokens, witness = listed
        named = int.from_bytes(tokens[4 * witness : 4 * witness + 4], "big")
        if named >= trace.layout.program.vocab:
            named = None  # such a list loses before anything is opened
    trial = derivation.trial(place, witness, named)
    leaf = trial.whole if part is None else derivation.part(place, part)
    result = RunOpening()
    if part is None and trace.layout.op(place.section, place.op).form != 15:
        result = trace.open(TraceRun(place, 1))
    weights = weights_of(leaf, sources)
    row_width = trace.layout.program.row_format.width_bytes
    found = Evidence(
        result, tuple(trace.open(run) for run in leaf.runs), witness=witness, tokens=tokens
    )
    if weights is not None:
        found = replace(found, weights=sources.open_weights(weights))
    if leaf.row is not None:
        start = 0 if leaf.by_token else leaf.row.column * row_width
        found = replace(found, row=sources.open_row(leaf.row.boundary, leaf.row.row, start))
    return found


def stabiliser_witness(trace: HeldTrace, place: Place) -> int:
    """The key with the largest score: what a stabiliser's author points at. 0 where there is nothing to point at."""
    from core.dispute.referee import LeafKind

    op = trace.layout.op(place.section, place.op)
    if op.kind != LeafKind.STABILISER:
        return 0
    keys = range(trace.layout.positions)
    scores = [trace[Place(place.section, op.a, place.row, place.item, key)] for key in keys]
    return max(keys, key=scores.__getitem__)
