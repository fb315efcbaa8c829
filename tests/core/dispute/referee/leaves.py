"""Leaves out of numpy values, for tests of the referee."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from core.dispute.referee import Format, Leaf, LeafKind

FORMATS = {"float16": Format.FP16, "float32": Format.FP32, "float64": Format.F64}


def bits(value: float) -> int:
    """Bits of a float64, as parameters carry constants."""
    return int.from_bytes(struct.pack("<d", value), "little")


def f64(*values: Any) -> bytes:
    """Numbers and arrays as consecutive little-endian float64."""
    return b"".join(np.asarray(value, dtype="<f8").tobytes() for value in values)


def leaf(
    kind: LeafKind, params: tuple[int, ...], *trace: Any, model: Any = None, row: Any = None
) -> Leaf:
    """A leaf of trace values, and arrays of model and row values in their own formats."""
    tail = b"".join(np.asarray(part).tobytes() for part in (model, row) if part is not None)
    return Leaf(kind, params, f64(*trace) + tail)


def format_of(array: Any) -> Format:
    return FORMATS[np.asarray(array).dtype.name]
