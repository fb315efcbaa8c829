"""Where are a trace's values kept?

In one row of float64, exactly in the order of the trace: in memory, or in a mapped file.

A chunk that ends a segment is only shorter, so the row holds the bytes of all chunks one after
another.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from core.dispute.trace.layout import CHUNK_VALUES, VALUE_BYTES, Place, TraceLayout

Floats = npt.NDArray[np.float64]


class TraceValues:
    """The values of a layout.

    Freshly made they are zero; opened from a file they are what was written there.
    """

    def __init__(self, layout: TraceLayout, file: Path | None = None) -> None:
        """`file` holds the values outside memory; one of the right size is taken up as it is."""
        self.layout = layout
        self._keys = [
            (section, op)
            for section in range(len(layout.section_types))
            for op in range(len(layout.section(section).ops))
        ]
        self._starts: dict[tuple[int, int], int] = {}
        total = 0
        for key in self._keys:
            self._starts[key] = total
            rows, segments, length = layout.shape(layout.op(*key).form)
            total += rows * segments * length
        self.count = total
        if file is None:
            self.flat: Floats = np.zeros(total)
        else:
            known = file.exists() and file.stat().st_size == total * VALUE_BYTES
            self.flat = np.memmap(file, np.dtype("<f8"), "r+" if known else "w+", shape=(total,))

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(section, operator) of every operator in the order of the trace."""
        return list(self._keys)

    def array(self, section: int, op: int) -> Floats:
        """What an operator made, rows × segments × length: a view."""
        shape = self.layout.shape(self.layout.op(section, op).form)
        start = self._starts[section, op]
        size = shape.rows * shape.segments * shape.length
        return self.flat[start : start + size].reshape(tuple(shape))

    def offset(self, place: Place) -> int:
        """Number of a value in the row."""
        shape = self.layout.shape(self.layout.op(place.section, place.op).form)
        line = place.row * shape.segments + place.segment
        return self._starts[place.section, place.op] + line * shape.length + place.item

    def chunk_bytes(self, first: int, last: int) -> bytes:
        """The bytes of the chunks [first, last), one after another."""
        if first >= last:
            return b""
        start, stop = self.chunk_start(first), self.chunk_start(last)
        return self.flat[start:stop].astype("<f8", copy=False).tobytes()

    def chunk_start(self, chunk: int) -> int:
        """Number of the first value of a chunk; of all values for the chunk after the last."""
        if chunk >= self.layout.chunks:
            return self.count
        (place, *_) = self.layout.places(chunk)
        return self.offset(place)

    def chunk_ends(self, first: int, last: int) -> list[int]:
        """Byte offsets at which the chunks [first, last) begin and end, from the first one on."""
        at, found = 0, [0]
        for chunk in range(first, last):
            at += self.layout.chunk_bytes(chunk)
            found.append(at)
        return found

    def chunks(self, first: int, last: int) -> list[bytes]:
        """The chunks [first, last)."""
        data = self.chunk_bytes(first, last)
        return [data[a:b] for a, b in pairwise(self.chunk_ends(first, last))]

    def tagged(self, section: int, op: int, tag: int, block: int) -> Any:
        """The chunks of an operator, `block` at most at a time, each behind a tag of one byte.

        Yields arrays [chunks, 1 + 64] of bytes and the number of bytes that count in each row.
        """
        shape = self.layout.shape(self.layout.op(section, op).form)
        lines = self.array(section, op).reshape(-1, shape.length or 1)
        if not shape.chunks:
            return
        each = shape.segment_chunks
        tail = shape.length - (each - 1) * CHUNK_VALUES
        step = max(1, block // each)
        for at in range(0, len(lines), step):
            part = lines[at : at + step]
            padded = np.zeros((len(part), each * CHUNK_VALUES), dtype="<f8")
            padded[:, : shape.length] = part
            data = padded.view(np.uint8).reshape(-1, CHUNK_VALUES * VALUE_BYTES)
            buffer = np.full((len(data), 1 + CHUNK_VALUES * VALUE_BYTES), tag, dtype=np.uint8)
            buffer[:, 1:] = data
            yield buffer, each, 1 + tail * VALUE_BYTES
