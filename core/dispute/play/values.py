"""Where are a trace's values kept?

In one row of float64, in the order of the trace, in memory or in a mapped file. A chunk that ends a
segment is only shorter, so the row holds the bytes of all chunks one after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.dispute.trace.layout import VALUE_BYTES, Place, TraceLayout

Floats = npt.NDArray[np.float64]


class TraceValues:
    """The values of a layout.

    Freshly made they are zero; opened from a file they are what was written there.
    """

    def __init__(self, layout: TraceLayout, file: Path | None = None) -> None:
        """`file` holds the values outside memory; one of the right size is taken up as it is."""
        self.layout = layout
        self._starts: dict[tuple[int, int], int] = {}
        total = 0
        for section in range(len(layout.section_types)):
            for number, op in enumerate(layout.section(section).ops):
                self._starts[section, number] = total
                total += math.prod(layout.shape(op.form))
        self.count = total
        if file is None:
            self.flat: Floats = np.zeros(total)
        else:
            known = file.exists() and file.stat().st_size == total * VALUE_BYTES
            self.flat = np.memmap(file, np.dtype("<f8"), "r+" if known else "w+", shape=(total,))

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(section, operator) of every operator in the order of the trace."""
        return list(self._starts)

    def take(self, known: TraceValues) -> int:
        """The values of the sections that both have first, all but the other's last.

        Returns how many sections these are.
        """
        sections = len(known.layout.section_types) - 1
        end = self._starts[sections, 0]
        self.flat[:end] = known.flat[:end]
        return sections

    def array(self, section: int, op: int) -> Floats:
        """What an operator made, rows × segments × length: a view."""
        shape = self.layout.shape(self.layout.op(section, op).form)
        start = self._starts[section, op]
        return self.flat[start : start + math.prod(shape)].reshape(tuple(shape))

    def offset(self, place: Place) -> int:
        """Number of a value in the row."""
        shape = self.layout.shape(self.layout.op(place.section, place.op).form)
        line = place.row * shape.segments + place.segment
        return self._starts[place.section, place.op] + line * shape.length + place.item

    def chunk_bytes(self, first: int, last: int) -> bytes:
        """The bytes of the chunks [first, last), one after another."""
        if first >= last:
            return b""
        start, stop = self._first_of(first), self._first_of(last)
        return self.flat[start:stop].astype("<f8", copy=False).tobytes()

    def _first_of(self, chunk: int) -> int:
        """Number of the first value of a chunk; of all values for the chunk after the last."""
        if chunk >= self.layout.chunks:
            return self.count
        return self.offset(self.layout.places(chunk)[0])

    def chunks(self, first: int, last: int) -> list[bytes]:
        """The chunks [first, last)."""
        data = self.chunk_bytes(first, last)
        ends = accumulate(map(self.layout.chunk_bytes, range(first, last)), initial=0)
        return [data[a:b] for a, b in pairwise(ends)]

    def lines(self, section: int, op: int, chunks: int) -> Iterator[Floats]:
        """An operator's segments [segments, length], so many at a time as have `chunks` chunks."""
        shape = self.layout.shape(self.layout.op(section, op).form)
        if shape.chunks:
            lines = self.array(section, op).reshape(-1, shape.length)
            step = max(1, chunks // shape.segment_chunks)
            for at in range(0, len(lines), step):
                yield lines[at : at + step]
