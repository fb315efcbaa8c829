"""A real shard's trace with its tree: what an accuser posts, opens and proves with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from core.dispute.play.build import Boundaries, Builder
from core.dispute.play.in_c import nearest
from core.dispute.play.model import TraceModel
from core.dispute.play.tree import TraceTree
from core.dispute.play.values import TraceValues
from core.dispute.trace.derive import Boundary, TraceRun, Weights
from core.dispute.trace.evidence import RowOpening, RunOpening, WeightOpening, run_chunks
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.program import Program
from core.dispute.trace.sources import CommittedRows, answer_rows, cut_rows

VALUES_FILE, NODES_FILE = "values.f64", "nodes.sha256"


class ShardTrace:
    """Values and tree of one shard's trace, in memory or in a folder."""

    def __init__(self, values: TraceValues, folder: Path | None = None) -> None:
        self.layout = values.layout
        self.values = values
        self.folder = folder

    @cached_property
    def tree(self) -> TraceTree:
        return TraceTree(self.values, self.folder / NODES_FILE if self.folder else None)

    def __getitem__(self, place: Place) -> float:
        return float(self.values.flat[self.values.offset(place)])

    def run(self, run: TraceRun) -> bytes:
        start = self.values.offset(run.place)
        return self.values.flat[start : start + run.count].astype("<f8", copy=False).tobytes()

    def open(self, run: TraceRun) -> RunOpening:
        first, last = run_chunks(self.layout, run)
        data, siblings = self.values.chunk_bytes(first, last), self.tree.proof(first, last)
        return RunOpening(data, tuple(siblings))


@dataclass(frozen=True)
class ShardSources:
    """What a shard's leaves read beside the trace: the model's tensors and the signed rows."""

    model: TraceModel
    inputs: CommittedRows
    outputs: CommittedRows
    states: CommittedRows | None = None  # of a last stage
    inner: bytes = b""  # roots at the boundaries inside the stage

    @classmethod
    def over(
        cls,
        model: TraceModel,
        inputs: Sequence[bytes],
        outputs: Sequence[bytes],
        states: Sequence[bytes] = (),
    ) -> ShardSources:
        """Over rows as they were signed.

        `states` of a last stage, under one root with its token ids.
        """
        entering = CommittedRows(inputs)
        if not states:
            return cls(model, entering, CommittedRows(outputs))
        return cls(model, entering, *answer_rows(outputs, states))

    def weights(self, want: Weights) -> bytes:
        return self.model.weights(want)

    def row(self, boundary: Boundary, row: int, start: int, count: int) -> bytes:
        return self._of(boundary).rows[row][start : start + count]

    def open_weights(self, want: Weights) -> WeightOpening:
        return self.model.open_weights(want)

    def open_row(self, boundary: Boundary, row: int, start: int) -> RowOpening:
        if boundary == Boundary.INNER:
            return RowOpening(self.inner)
        return self._of(boundary).open(row, start)

    def _of(self, boundary: Boundary) -> CommittedRows:
        if boundary == Boundary.STATES:
            assert self.states is not None, "only a last stage has state rows"
            return self.states
        return self.inputs if boundary == Boundary.IN else self.outputs


def signed_rows(layout: TraceLayout, sources: ShardSources) -> Boundaries:
    """The rows that the sources open, as the numbers or token ids that they are."""
    sides = sources.inputs, sources.outputs, sources.states
    return boundaries_of(layout, *(b"".join(side.rows) if side else b"" for side in sides))


def pleaded_trace(
    layout: TraceLayout, sources: ShardSources, first: ShardTrace, *, folder: Path | None = None
) -> ShardTrace:
    """The trace of a pleaded layout, whose first pass is that of `first`; as `build_trace`."""
    rows = signed_rows(layout, sources)
    return build_trace(layout, sources.model, rows, folder=folder, known=first.values)


def boundaries_of(
    layout: TraceLayout, inputs: bytes, outputs: bytes, states: bytes = b""
) -> Boundaries:
    """Rows as they were signed, read as the numbers or token ids that they are.

    `states` of a last stage; of them the one row that enters a token's trace.
    """
    width = layout.program.hidden
    entered: np.ndarray[Any, Any]
    if layout.state_row is not None:
        rows = np.frombuffer(states, dtype="<f4").reshape(-1, width)
        return Boundaries(rows[layout.state_row :][:1])
    if layout.layer_from == 0:
        entered = np.frombuffer(inputs, dtype="<u4")
    else:
        entered = np.frombuffer(inputs, dtype="<f4").reshape(-1, width)
    made = states if layout.program.ends_at(layout.layer_to) else outputs
    left = np.frombuffer(made, dtype="<f4").reshape(-1, width)
    # State rows are those of the last positions, other stages' of all.
    return Boundaries(entered, left, len(entered) - len(left))


def sources_of(
    program: Program,
    layers: tuple[int, int],
    model: TraceModel,
    inputs: bytes,
    outputs: bytes,
    states: bytes = b"",
) -> ShardSources:
    """Sources over rows as a stage of these layers signed them; `states` of a last stage."""
    width = 4 * program.hidden
    start, end = layers
    ends = program.ends_at(end)
    return ShardSources.over(
        model,
        cut_rows(inputs, 4 if start == 0 else width),
        cut_rows(outputs, 4 if ends else width),
        cut_rows(states, width),
    )


def build_trace(
    layout: TraceLayout,
    model: TraceModel,
    boundaries: Boundaries,
    *,
    folder: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
    known: TraceValues | None = None,
) -> ShardTrace:
    """The trace of one request through one shard.

    With a `folder` values and nodes are kept there, outside memory, and what a finished earlier
    time left there is taken up. `known` are values of the same rows, whose sections but the last
    are the first ones here as well. Raises ValueError for boundaries of fewer rows than the layout
    has positions.
    """
    if len(boundaries.inputs) < layout.positions:
        raise ValueError(f"{len(boundaries.inputs)} input rows for {layout.positions} positions")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    values = TraceValues(layout, folder / VALUES_FILE if folder else None)
    if folder is None or not (folder / NODES_FILE).exists():
        arithmetic = nearest(layout.program.part_terms)
        from_section = 0 if known is None else values.take(known)
        Builder(layout, model, boundaries, arithmetic).build(values, progress, from_section)
        if isinstance(values.flat, np.memmap):
            values.flat.flush()
    return ShardTrace(values, folder)
