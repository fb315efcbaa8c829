"""Which operands has a leaf of a trace, and what does an accuser open for it?"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from core.dispute.referee import Leaf, LeafKind
from core.dispute.trace.derive import Boundary, Derivation, DerivedLeaf, TraceRun, Weights
from core.dispute.trace.evidence import TOKEN_BYTES, Evidence, RunOpening
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.program import Form
from core.dispute.trace.sources import Sources


class Trace(Protocol):
    """The values of a layout, and their openings under the trace's root."""

    @property
    def layout(self) -> TraceLayout: ...
    def __getitem__(self, place: Place) -> float: ...
    def run(self, run: TraceRun) -> bytes: ...
    def open(self, run: TraceRun) -> RunOpening: ...


def referee_leaf(
    trace: Trace, leaf: DerivedLeaf, sources: Sources, result: bytes, stated: bytes = b""
) -> Leaf:
    """The leaf with its operands: result, stated partial sums, runs of the trace, and what else."""
    data = result + stated + b"".join(trace.run(run) for run in leaf.runs) + bytes(8 * leaf.padding)
    weights, row = _weights_of(leaf, sources), leaf.row
    if weights is not None:
        data += sources.weights(weights)
    if row is not None and not leaf.by_token:
        width = trace.layout.program.row_format.width_bytes
        data += sources.row(row.boundary, row.row, row.column * width, width)
    return Leaf(leaf.kind, leaf.params, data, leaf.shake)


def evidence_for(
    trace: Trace,
    derivation: Derivation,
    sources: Sources,
    place: Place,
    part: int | None = None,
    tokens: bytes = b"",
    number: int = 0,
) -> Evidence:
    """What the accuser opens for the value at `place`, its sum of parts, or partial sum `part`.

    `tokens` is the list that this place is judged with, each token as u32be: the accused's, or that
    of a claim about top-k. For a token's verdict, the leaf is of token `number` of the list.
    """
    op, witness, named = trace.layout.op(place.section, place.op), 0, None
    if op.kind == LeafKind.STABILISER:
        witness = largest_key(trace, place)
    elif op.kind == LeafKind.GREEDY and tokens:
        witness, named = number, int.from_bytes(tokens[4 * number : 4 * number + 4], "big")
        if named >= trace.layout.program.vocab:
            named = None  # such a list loses before anything is opened
    if part is None:
        leaf = derivation.trial(place, witness, named).whole
    else:
        leaf = derivation.part(place, part)
    found = Evidence(
        runs=tuple(trace.open(run) for run in leaf.runs), witness=witness, tokens=tokens
    )
    if part is None and op.form != Form.VERDICT:
        found = replace(found, result=trace.open(TraceRun(place, 1)))
    weights, row = _weights_of(leaf, sources), leaf.row
    if weights is not None:
        found = replace(found, weights=sources.open_weights(weights))
    if row is not None:
        width = trace.layout.program.row_format.width_bytes
        start = 0 if leaf.by_token else row.column * width
        found = replace(found, row=sources.open_row(row.boundary, row.row, start))
    return found


def largest_key(trace: Trace, place: Place) -> int:
    """The key with the largest score, by which the stabiliser at `place` stands."""
    scores = trace.layout.op(place.section, place.op).a
    return max(
        range(trace.layout.positions),
        key=lambda key: trace[Place(place.section, scores, place.row, place.item, key)],
    )


def _weights_of(leaf: DerivedLeaf, sources: Sources) -> Weights | None:
    """The leaf's weights; their row is the token that was fed where the leaf says so."""
    if leaf.weights is None or not leaf.by_token:
        return leaf.weights
    assert leaf.row is not None
    token = sources.row(Boundary.IN, leaf.row.row, 0, TOKEN_BYTES)
    return replace(leaf.weights, row=int.from_bytes(token, "little"))
