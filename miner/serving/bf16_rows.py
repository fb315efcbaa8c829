"""How do rows travel that were computed in bfloat16?

As the upper half of each float32, since the lower half is zero. Nothing is lost: what is committed,
signed and kept is the float32 row, the same at both ends. Rows of a model in float32 are never cut
to that: it would move them by about 10⁻³, ten to a hundred times what their tolerances allow.
"""

from __future__ import annotations

import numpy as np


def try_halve(rows: bytes) -> bytes | None:
    """The upper halves of float32 little-endian numbers; None where a lower half is not zero."""
    halves = np.frombuffer(rows, "<u2")
    # Most numbers of other rows have one: the first few tell.
    if halves[:64:2].any() or halves[0::2].any():
        return None
    return halves[1::2].tobytes()


def whole(halved: bytes | memoryview) -> bytes:
    """The float32 numbers of which these are the upper halves."""
    upper = np.frombuffer(halved, "<u2")
    found = np.zeros(2 * len(upper), "<u2")
    found[1::2] = upper
    return found.tobytes()
