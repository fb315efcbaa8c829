"""By which factors is what an operator made changed in a plea's second pass?

Every value of `core.dispute.trace.shake` at once, as exact float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from core.dispute.play.operators import Floats
from core.dispute.referee.exact import SHAKE_BITS
from core.dispute.trace.layout import Place
from core.dispute.trace.shake import BLOCK, levels, signs


def shakes(seed: int, own_bits: int, op: Place, shape: tuple[int, ...]) -> Iterator[Floats]:
    """Factors [segments, length] of each row of an operator's values [rows, segments, length].

    `op` names section and operator.
    """
    rows, segments, length = shape
    for row in range(rows):
        total = np.zeros((segments, length))
        for segment in range(segments):
            place = op._replace(row=row, segment=segment)
            for wide, step in levels(own_bits, length):
                total[segment] += step * _signs(seed, wide, place, length)
        yield 1.0 + np.ldexp(total, -SHAKE_BITS)


def _signs(seed: int, wide: int, place: Place, length: int) -> Floats:
    """±1 of each of `length` numbers, `wide` neighbours alike."""
    groups = -(-length // wide)
    blocks = range(-(-groups // BLOCK))
    hashes = b"".join(signs(seed, wide, place, block)[::-1] for block in blocks)
    bits = np.unpackbits(np.frombuffer(hashes, np.uint8), bitorder="little")[:groups]
    return np.repeat(2.0 * bits - 1.0, wide)[:length]
