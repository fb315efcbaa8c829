"""A leaf that no program would ask for is refused.

Bytes that are no numbers are the fault of whoever committed them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.dispute.referee import Leaf, LeafError, LeafKind, Ruling, rule
from core.dispute.referee.check import VERDICTS
from core.dispute.referee.exact import VALUES
from tests.core.dispute.referee.leaves import bits, f64, leaf


def single(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float32)


def test_every_kind_is_a_value_or_a_verdict() -> None:
    assert set(VERDICTS) | set(VALUES) == set(LeafKind)
    assert not set(VERDICTS) & set(VALUES)


@pytest.mark.parametrize(
    ("trace", "sigma", "row", "ruling"),
    [
        (1.0, 2.0, 7.0, Ruling.HOLDS),
        (math.nan, 2.0, 7.0, Ruling.FAILS),
        (math.nan, math.inf, 7.0, Ruling.MODEL_MALFORMED),
        (math.nan, math.inf, -math.inf, Ruling.ROW_MALFORMED),
        (1.0, 0.0, 7.0, Ruling.MODEL_MALFORMED),
        (1.0, -2.0, 7.0, Ruling.MODEL_MALFORMED),
    ],
)
def test_a_row_comes_before_a_model_and_a_model_before_a_trace(
    trace: float, sigma: float, row: float, ruling: Ruling
) -> None:
    found = leaf(
        LeafKind.WHITEN_DIFFERENCE, (2, 2), 3.0, trace, model=single(sigma), row=single(row)
    )
    assert rule(found) == ruling


REFUSED = [
    Leaf(LeafKind.COPY, (1,), f64(1, 1)),
    Leaf(LeafKind.COPY, (), f64(1, 1) + b"\0"),
    Leaf(LeafKind.COPY, (), f64(1)),
    Leaf(LeafKind.INPUT, (4,), f64(1) + bytes(4)),
    Leaf(LeafKind.SUM, (0,), f64(1)),
    Leaf(LeafKind.SUM, (257,), f64(*range(258))),
    Leaf(LeafKind.BIAS_SUM, (2, 256), f64(*range(257)) + bytes(4)),
    Leaf(LeafKind.BIAS_SUM, (2, 0), f64(0) + bytes(4)),
    Leaf(LeafKind.NORM, (2, 2), f64(1, 1, 1) + bytes(4)),
    Leaf(LeafKind.NORM_SCALE, (0, bits(1e-6)), f64(1, 1)),
    Leaf(LeafKind.SCALE, (bits(math.inf),), f64(1, 1)),
    Leaf(LeafKind.SCALE, (2**64,), f64(1, 1)),
    Leaf(LeafKind.SOFTCAP, (bits(-1.0),), f64(1, 1)),
    Leaf(LeafKind.EXCEEDS, (2**50 + 1,), f64(1, 1)),
    Leaf(LeafKind.GREEDY, (2**32,), f64(1, 1)),
    Leaf(LeafKind.GUMBEL, (1, 0, 1, 2, 3, 4, 5, 0, 0), f64(1, 1, 1, 1, 1)),
    Leaf(LeafKind.OUTSIDE_MIN_P, (1, 1, 0), f64(1, 1)),
    Leaf(LeafKind.WHITEN_CHANGE, (4,), f64(1, 1, 1) + bytes(4)),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda found: f"{found.kind.name}{found.params}")
def test_what_no_program_asks_for_is_refused(refused: Leaf) -> None:
    with pytest.raises(LeafError):
        rule(refused)


def test_a_masked_key_has_the_score_minus_infinity_and_no_weight() -> None:
    hidden, seen = (1, bits(0.5), 5, 6, 0), (1, bits(0.5), 5, 5, 0)
    assert rule(leaf(LeafKind.SCORE, hidden, -math.inf, 3, 4)) == Ruling.HOLDS
    assert rule(leaf(LeafKind.SCORE, hidden, 6.0, 3, 4)) == Ruling.FAILS
    assert rule(leaf(LeafKind.SCORE, seen, -math.inf, 3, 4)) == Ruling.FAILS
    assert rule(leaf(LeafKind.SCORE, seen, 6.0, 3, 4)) == Ruling.HOLDS
    assert rule(leaf(LeafKind.EXP, (), 0.0, 9.0, -math.inf)) == Ruling.HOLDS
    assert rule(leaf(LeafKind.EXP, (), 5e-324, 9.0, -math.inf)) == Ruling.FAILS


def test_a_window_hides_what_lies_too_far_back() -> None:
    for key, ruling in ((3, Ruling.HOLDS), (4, Ruling.FAILS)):
        assert rule(leaf(LeafKind.SCORE, (1, bits(1.0), 5, key, 2), -math.inf, 1, 1)) == ruling
