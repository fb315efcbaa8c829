"""Is a norm's factor what the referee says, for sums of squares of every size?"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from core.dispute.play.nearest import Nearest, _asked
from core.dispute.referee import LeafKind


@pytest.mark.parametrize(("n", "epsilon"), [(1, 0.0), (576, 1e-5), (8192, 1e-6), (3, 2.0**-1060)])
def test_a_norm_s_factor_is_the_referee_s(n: int, epsilon: float) -> None:
    rng = np.random.default_rng(n)
    sizes = 2.0 ** np.concatenate([rng.integers(-20, 20, 400), rng.integers(-1060, 900, 100)])
    q = np.concatenate([rng.uniform(0.5, 1, 500) * sizes, [0.0, -1.0, 4.0, 1e-310, 1e308]])
    (bits,) = struct.unpack("<Q", struct.pack("<d", epsilon))
    with np.errstate(all="ignore"):
        found = Nearest(128).norm_scale(q, n, epsilon)
    want = [_asked(LeafKind.NORM_SCALE, (n, bits), np.array([value])) for value in q]
    assert np.array_equal(found, want, equal_nan=True)


def test_a_norm_s_factor_is_seldom_asked_for() -> None:
    do, rng = Nearest(128), np.random.default_rng(0)
    do.norm_scale(rng.uniform(0, 1e4, 10_000), 576, 1e-5)
    assert do.asked == 0
