"""What does a toy's trace read beside itself? The tensors and the signed rows, all in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from core.dispute.trace.derive import Boundary, Weights
from core.dispute.trace.evidence import RowOpening, WeightOpening
from core.dispute.trace.sources import CommittedRows
from core.protocol import commit


class CommittedTensors:
    """One part of a model: its tensors in order of name."""

    def __init__(self, tensors: Mapping[str, Sequence[bytes]]) -> None:
        self.names = sorted(tensors)
        self.tensors = [CommittedRows(tensors[name]) for name in self.names]
        self._hashes = [
            commit.leaf_hash(name.encode() + b"\x00" + tensor.root)
            for name, tensor in zip(self.names, self.tensors, strict=True)
        ]
        self.root = commit.root_of_hashes(self._hashes)

    def open(self, want: Weights) -> WeightOpening:
        tensor = self.tensors[want.tensor]
        return WeightOpening(
            tensor.open(want.row, want.column * want.format.width_bytes),
            self.names[want.tensor].encode(),
            tensor.root,
            tuple(commit.merkle_proof(self._hashes, want.tensor)),
        )


@dataclass(frozen=True)
class HeldSources:
    """Everything in memory.

    `parts` counts layers from 0, −1 the embedding, the number of layers the head, −2 the tables;
    `states` are of a last stage.
    """

    parts: Mapping[int, CommittedTensors]
    inputs: CommittedRows
    outputs: CommittedRows
    states: CommittedRows | None = None

    def weights(self, want: Weights) -> bytes:
        width = want.format.width_bytes
        row = self.parts[want.part].tensors[want.tensor].rows[want.row]
        return row[want.column * width : (want.column + want.count) * width]

    def row(self, boundary: Boundary, row: int, start: int, count: int) -> bytes:
        return self._boundaries[boundary].rows[row][start : start + count]

    def open_weights(self, want: Weights) -> WeightOpening:
        return self.parts[want.part].open(want)

    def open_row(self, boundary: Boundary, row: int, start: int) -> RowOpening:
        return self._boundaries[boundary].open(row, start)

    @cached_property
    def _boundaries(self) -> dict[Boundary, CommittedRows]:
        found = {Boundary.IN: self.inputs, Boundary.OUT: self.outputs}
        return found if self.states is None else found | {Boundary.STATES: self.states}
