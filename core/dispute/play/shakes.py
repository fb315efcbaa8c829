"""How is all that an operator made shaken in a plea's second pass?

By the factors of `core.dispute.trace.shake`, which are exact float64.
"""

from __future__ import annotations

import numpy as np

from core.dispute.kernels.cores import on_all_cores, slices
from core.dispute.kernels.native import hashing
from core.dispute.play.operators import Floats
from core.dispute.referee.exact import SHAKE_BITS
from core.dispute.trace.layout import Place
from core.dispute.trace.shake import BLOCK, levels, message, signs

#: What one core shakes at a time.
_VALUES = 1 << 16


def shake(values: Floats, seed: int, own_bits: int, op: Place) -> None:
    """Shake what an operator made [rows, segments, length]; `op` names section and operator.

    Raises MemoryError.
    """
    library, (rows, segments, length) = hashing(), values.shape
    if library is None:
        _shake_in_python(values, seed, own_bits, op)
        return
    place = message(seed, 0, op._replace(row=0, segment=0), 0)
    wides, steps = np.array(levels(own_bits, length), np.int64).T.copy()

    def some(at: slice) -> None:
        failed = library.shake(
            values[at].ctypes.data,
            at.start,
            at.stop - at.start,
            segments,
            length,
            place,
            wides.ctypes.data,
            steps.ctypes.data,
            len(wides),
        )
        if failed:
            raise MemoryError(f"no memory for the signs of {length} values")

    on_all_cores(some, slices(rows, max(1, _VALUES // (segments * length))))


def _shake_in_python(values: Floats, seed: int, own_bits: int, op: Place) -> None:
    rows, segments, length = values.shape
    for row in range(rows):
        for segment in range(segments):
            place = op._replace(row=row, segment=segment)
            total = np.zeros(length)
            for wide, step in levels(own_bits, length):
                total += step * _signs(seed, wide, place, length)
            values[row, segment] *= 1.0 + np.ldexp(total, -SHAKE_BITS)


def _signs(seed: int, wide: int, place: Place, length: int) -> Floats:
    """±1 of each of `length` numbers, `wide` neighbours alike."""
    groups = -(-length // wide)
    blocks = range(-(-groups // BLOCK))
    hashes = b"".join(signs(seed, wide, place, block)[::-1] for block in blocks)
    bits = np.unpackbits(np.frombuffer(hashes, np.uint8), bitorder="little")[:groups]
    return np.repeat(2.0 * bits - 1.0, wide)[:length]
