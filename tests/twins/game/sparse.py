"""A trace too large to hold, of which a few runs exist: other hashes are of nothing.

What a game costs on a model of 70 billion weights depends on its shapes alone; so the values on
trial are made and the weights of one row, and every sibling is a hash of its place.
"""

from __future__ import annotations

import random
import struct
from hashlib import sha256

from core.dispute.referee import Format
from core.dispute.trace import chunks
from core.dispute.trace.derive import Derivation, DerivedLeaf, TraceRun, Weights
from core.dispute.trace.evidence import (
    CHUNK_BYTES,
    Evidence,
    RowOpening,
    RunOpening,
    WeightOpening,
    chunk_hashes,
    run_chunks,
)
from core.dispute.trace.layout import TraceLayout
from core.protocol import commit


def nothing(*place: object) -> bytes:
    return sha256(repr(place).encode()).digest()


class SparseTree(chunks.HashTree):
    """A tree over `count` leaves of which some are known."""

    def __init__(self, tag: object, count: int, known: dict[int, bytes]) -> None:
        super().__init__(count)
        self.tag, self.known = tag, known
        self._nodes: dict[tuple[int, int], bytes] = {}

    def node(self, level: int, index: int) -> bytes:
        if (level, index) in self._nodes:
            return self._nodes[level, index]
        first, last = index << level, min((index + 1) << level, self.count)
        empty = not any(first <= leaf < last for leaf in self.known)
        if empty and (level == 0 or (self.height - level) % chunks.STEP_LEVELS == 0):
            found = nothing(
                self.tag, level, index
            )  # where an opening ends; above, nodes follow from these
        elif level == 0:
            found = self.known[index]
        elif 2 * index + 1 < chunks.width(self.count, level - 1):
            found = chunks.node(
                self.node(level - 1, 2 * index), self.node(level - 1, 2 * index + 1)
            )
        else:
            found = self.node(level - 1, 2 * index)
        self._nodes[level, index] = found
        return found

    @property
    def root(self) -> bytes:
        return self.node(self.height, 0)


def seal(count: int, top: bytes) -> bytes:
    return sha256(b"\x02" + count.to_bytes(4, "big") + top).digest()


class SparseTrace:
    """Values of given runs, so that their leaves can be opened.

    The shown group of 32 chunks around `shown` too.
    """

    def __init__(self, layout: TraceLayout, runs: dict[TraceRun, list[float]]) -> None:
        self.layout = layout
        self.data: dict[int, bytearray] = {}
        for run, values in runs.items():
            first = layout.first_chunk(run.place)
            for offset, value in enumerate(values):
                index = run.place.item + offset
                chunk = self._chunk(first + index // 8)
                chunk[8 * (index % 8) : 8 * (index % 8) + 8] = struct.pack("<d", value)
        self.tree: SparseTree | None = None

    def _chunk(self, number: int) -> bytearray:
        if number not in self.data:
            size = self.layout.chunk_bytes(number)
            rng = random.Random(number)
            values = [rng.uniform(-1, 1) for _ in range(size // 8)]
            self.data[number] = bytearray(struct.pack(f"<{size // 8}d", *values))
        return self.data[number]

    def show(self, first: int, last: int) -> list[bytes]:
        """Make the chunks [first, last) known."""
        return [bytes(self._chunk(chunk)) for chunk in range(first, last)]

    def commit(self) -> SparseTree:
        known = {number: commit.leaf_hash(bytes(chunk)) for number, chunk in self.data.items()}
        self.tree = SparseTree("trace", self.layout.chunks, known)
        return self.tree

    def open(self, run: TraceRun) -> RunOpening:
        assert self.tree is not None
        first, last = run_chunks(self.layout, run)
        data = b"".join(bytes(self.data[chunk]) for chunk in range(first, last))
        assert [self.tree.node(0, c) for c in range(first, last)] == chunk_hashes(data)
        assert len(data) <= (last - first) * CHUNK_BYTES
        return RunOpening(data, tuple(self.tree.proof(first, last)))


def open_weights(want: Weights, values: list[float]) -> tuple[WeightOpening, bytes]:
    """An opening of one tensor of a part that is otherwise nothing, and the root of that part."""
    assert want.format == Format.FP32
    row_bytes, start = 4 * want.columns, 4 * want.column
    part = start // commit.PART_BYTES
    size = min(commit.PART_BYTES, row_bytes - part * commit.PART_BYTES)
    data = bytearray(random.Random(1).randbytes(size // 4 * 4))
    for i in range(0, size, 4):
        data[i : i + 4] = struct.pack("<f", random.Random(i).uniform(-0.1, 0.1))
    within = start - part * commit.PART_BYTES
    data[within : within + 4 * want.count] = struct.pack(f"<{want.count}f", *values)
    payload, siblings = bytes(data), ()
    if row_bytes > commit.PART_BYTES:
        in_row = SparseTree(
            "row", -(-row_bytes // commit.PART_BYTES), {part: commit.leaf_hash(bytes(data))}
        )
        payload, siblings = in_row.root, tuple(in_row.proof(part, part + 1))
    rows = SparseTree(
        "rows", want.rows, {want.row: commit.leaf_hash(want.row.to_bytes(4, "big") + payload)}
    )
    tensor_root = seal(want.rows, rows.root)
    name = b"model.layers.11.mlp.down_proj.weight"
    tensors = SparseTree(
        "tensors", want.tensors, {want.tensor: commit.leaf_hash(name + b"\x00" + tensor_root)}
    )
    opening = WeightOpening(
        RowOpening(bytes(data), siblings, tuple(rows.proof(want.row, want.row + 1))),
        name,
        tensor_root,
        tuple(tensors.proof(want.tensor, want.tensor + 1)),
    )
    return opening, seal(want.tensors, tensors.root)


def evidence(
    trace: SparseTrace, leaf: DerivedLeaf, weights: WeightOpening | None, result: TraceRun | None
) -> Evidence:
    return Evidence(
        trace.open(result) if result else RunOpening(),
        tuple(trace.open(run) for run in leaf.runs),
        weights or WeightOpening(),
    )


__all__ = ["Derivation", "SparseTrace", "SparseTree", "evidence", "open_weights", "seal"]
