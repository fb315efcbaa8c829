"""Are these the committed operands of a leaf?

What an accuser opens, and how it is checked against the roots. Everything enters through a root:
runs through the trace's, weights through the registered part's, rows through the receipt's request
leaf. Twin: contracts/src/trace/Openings.sol.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eth_utils.crypto import keccak

from core.dispute.trace import chunks
from core.dispute.trace.derive import TraceRun, Weights
from core.dispute.trace.layout import CHUNK_VALUES, VALUE_BYTES, TraceLayout
from core.protocol import commit

CHUNK_BYTES = CHUNK_VALUES * VALUE_BYTES
TOKEN_BYTES = 4
GROUP_BYTES = 16 * VALUE_BYTES


class EvidenceError(ValueError):
    """Evidence that does not belong to what is on trial; the contract reverts on it."""


@dataclass(frozen=True)
class RunOpening:
    """Whole chunks of a trace, in one run, and the siblings on their way up."""

    data: bytes = b""
    siblings: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class RowOpening:
    """One part of a row, the siblings of the part in its row, and of the row among the rows.

    Of what a last stage signed, the last of these is the other half of its root: of its state rows,
    or of its tokens.
    """

    part: bytes = b""
    part_siblings: tuple[bytes, ...] = ()
    row_siblings: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class WeightOpening:
    """One part of a tensor's row, and the tensor's place in its part of the model."""

    row: RowOpening = field(default_factory=RowOpening)
    name: bytes = b""
    tensor_root: bytes = bytes(32)
    tensor_siblings: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Everything that one leaf needs; what a leaf does not use stays empty."""

    result: RunOpening = field(default_factory=RunOpening)
    runs: tuple[RunOpening, ...] = ()
    weights: WeightOpening = field(default_factory=WeightOpening)
    row: RowOpening = field(default_factory=RowOpening)
    witness: int = 0  # the key of a stabiliser, or which token of the accused's list
    tokens: bytes = b""  # of a list, each as u32be


def chunk_hashes(data: bytes) -> list[bytes]:
    """Leaf hashes of consecutive chunks, the last of which may be short."""
    return [
        commit.leaf_hash(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
    ]


def show_stated(stated: bytes, part: int) -> RunOpening:
    """Partial sum `part` and the others of its group, beside the hashes of the other groups."""
    number, hashes = part * VALUE_BYTES // GROUP_BYTES, group_hashes(stated)
    data = stated[number * GROUP_BYTES : (number + 1) * GROUP_BYTES]
    return RunOpening(data, (*hashes[:number], *hashes[number + 1 :]))


def group_hashes(stated: bytes) -> list[bytes]:
    return [keccak(stated[at : at + GROUP_BYTES]) for at in range(0, len(stated), GROUP_BYTES)]


def run_chunks(layout: TraceLayout, run: TraceRun) -> tuple[int, int]:
    """First chunk of a run, and the chunk after its last."""
    first = layout.first_chunk(run.place)
    start = run.place.item
    return first + start // CHUNK_VALUES, first + (start + run.count - 1) // CHUNK_VALUES + 1


def open_run(layout: TraceLayout, root: bytes, run: TraceRun, opening: RunOpening) -> bytes:
    """The run's values. Raises EvidenceError unless the opening leads to the root."""
    first, last = run_chunks(layout, run)
    length = layout.shape(layout.op(run.place.section, run.place.op).form).length
    begin = run.place.item // CHUNK_VALUES * CHUNK_VALUES
    values = min(length - begin, (last - first) * CHUNK_VALUES)
    if len(opening.data) != values * VALUE_BYTES:
        raise EvidenceError(f"{len(opening.data)} bytes of a run of {values} values")
    top = chunks.climb(
        chunk_hashes(opening.data),
        first,
        layout.chunks,
        chunks.height(layout.chunks),
        opening.siblings,
    )
    if top != root:
        raise EvidenceError("a run that is not in the trace")
    skipped = (run.place.item - begin) * VALUE_BYTES
    return opening.data[skipped : skipped + run.count * VALUE_BYTES]


def open_row(
    root: bytes,
    rows: int,
    row: int,
    row_bytes: int,
    start: int,
    count: int,
    opening: RowOpening,
    half: commit.Half = commit.Half.NONE,
) -> bytes:
    """Bytes [start, start + count) of row `row` of `rows` under a root. Raises EvidenceError."""
    part = start // commit.PART_BYTES
    size = min(commit.PART_BYTES, row_bytes - part * commit.PART_BYTES)
    if len(opening.part) != size:
        raise EvidenceError(f"a row's part of {len(opening.part)} bytes, not {size}")
    within = start - part * commit.PART_BYTES
    if within + count > size:
        raise EvidenceError("operands across two parts of a row")
    payload = opening.part
    if row_bytes > commit.PART_BYTES:
        parts = -(-row_bytes // commit.PART_BYTES)
        top = chunks.climb(
            [commit.leaf_hash(opening.part)],
            part,
            parts,
            chunks.height(parts),
            opening.part_siblings,
        )
        if top is None:
            raise EvidenceError("a part that is not in its row")
        payload = top
    elif opening.part_siblings:
        raise EvidenceError("siblings in a row of one part")
    leaf = commit.leaf_hash(row.to_bytes(4, "big") + payload)
    if not commit.verify_proof(root, rows, row, leaf, opening.row_siblings, half):
        raise EvidenceError("a row that is not under its root")
    return opening.part[within : within + count]


def open_weights(part_root: bytes, want: Weights, opening: WeightOpening) -> bytes:
    """The weights' bytes, given the root of their part of the model. Raises EvidenceError."""
    leaf = commit.leaf_hash(opening.name + b"\x00" + opening.tensor_root)
    if not commit.verify_proof(part_root, want.tensors, want.tensor, leaf, opening.tensor_siblings):
        raise EvidenceError("a tensor that is not in its part of the model")
    width = want.format.width_bytes
    return open_row(
        opening.tensor_root,
        want.rows,
        want.row,
        want.columns * width,
        want.column * width,
        want.count * width,
        opening.row,
    )
