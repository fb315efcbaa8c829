"""Is every value shaken by the factor that the referee derives, in C as in Python?"""

from __future__ import annotations

import numpy as np
import pytest

from core.dispute.kernels import native
from core.dispute.play import shakes
from core.dispute.trace.layout import Place
from core.dispute.trace.shake import shake_at

OP = Place(3, 17)


@pytest.mark.parametrize("is_in_c", [True, False])
@pytest.mark.parametrize(
    ("rows", "segments", "length", "own_bits"),
    [(1, 1, 1, 24), (3, 2, 31, 9), (2, 1, 700, 24), (1, 2, 1500, 9), (1, 1, 9000, 24)],
)
def test_values_are_shaken_as_the_referee_has_it(
    monkeypatch: pytest.MonkeyPatch,
    is_in_c: bool,
    rows: int,
    segments: int,
    length: int,
    own_bits: int,
) -> None:
    if is_in_c and native.hashing() is None:
        pytest.skip("no C compiles here, or no instruction hashes")
    if not is_in_c:
        monkeypatch.setattr(shakes, "hashing", lambda: None)
    monkeypatch.setattr(shakes, "_VALUES", 40)  # a row or two at a time
    values = np.random.default_rng(length).normal(size=(rows, segments, length))
    shaken = values.copy()
    shakes.shake(shaken, 251, own_bits, OP)
    for (row, segment, item), value in np.ndenumerate(values):
        change = shake_at(251, own_bits, OP._replace(row=row, segment=segment, item=item), length)
        assert shaken[row, segment, item] == value * (1 + change * 2.0**-24)
