"""Which float32 numbers do a tensor's stored bytes stand for, and which 32 bytes commit to them?

Weights are committed as numbers, not as bytes: a tree over rows of little-endian float32, whatever
dtype a file holds (`docs/protocol.md` §3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from core.protocol.commit import RowTree

#: Container dtype → numpy dtype of the stored bytes; bfloat16 is stored as its 16 high bits.
STORED: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
#: What packed weights are made of besides (`core.engine.weights.packed`): words and bytes of codes.
PIECES: Mapping[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<u4"),
    "I8": np.dtype("u1"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
}
_FLOAT32_BYTES = 4


def item_bytes(dtype: str) -> int:
    """Bytes of a stored item, 0 for a dtype of which no tensor is published."""
    found = STORED.get(dtype) or PIECES.get(dtype)
    return found.itemsize if found else 0


def as_float32(data: memoryview, dtype: str) -> npt.NDArray[np.float32]:
    """Stored bytes as float32 [values]: rounded, or widened. Float32 is a view of the bytes."""
    stored = np.frombuffer(data, dtype=STORED[dtype])
    if dtype == "BF16":
        return np.left_shift(stored, 16, dtype="<u4").view("<f4")
    return stored.astype("<f4", copy=False)


def row_values(shape: Sequence[int]) -> int:
    """How many values a row has: what one first index holds; a vector [n] is one row."""
    return math.prod(shape if len(shape) < 2 else shape[1:])


class TensorHasher:
    """The root of one tensor, from its stored bytes as they come.

    A piece of a packed weight is committed by its bytes: it is no number by itself.
    """

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        """Raises ValueError for a tensor without values."""
        self._dtype, self._values = dtype, row_values(shape)
        self._row_bytes = self._values * item_bytes(dtype)
        if not self._row_bytes:
            raise ValueError(f"a tensor of shape {list(shape)} has no values")
        self._tree = RowTree()
        self._begun = bytearray()  # of a row

    def update(self, data: memoryview) -> None:
        """Take in the next bytes; whole rows at once take a fraction of the time."""
        if self._begun:
            missing = self._row_bytes - len(self._begun)
            self._begun += data[:missing]
            data = data[missing:]
            if len(self._begun) < self._row_bytes:
                return
            self._extend(memoryview(self._begun))
            self._begun = bytearray()
        whole = len(data) // self._row_bytes * self._row_bytes
        if whole:
            self._extend(data[:whole])
        self._begun += data[whole:]

    def root(self) -> bytes:
        """Of the rows so far. Raises ValueError in the middle of one."""
        if self._begun:
            raise ValueError("the bytes end in the middle of a row")
        return self._tree.root()

    def _extend(self, rows: memoryview) -> None:
        if self._dtype in PIECES:
            self._tree.extend(rows.cast("B"), self._row_bytes)
            return
        values = as_float32(rows, self._dtype)
        self._tree.extend(values.data.cast("B"), self._values * _FLOAT32_BYTES)
