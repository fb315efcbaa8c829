"""Water-filling gives whole layers, even stage times, and never breaks a cap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fleet.errors import PlanError
from scheduler.fleet.water_fill import water_fill

A100, RTX5090, RTX4090 = 312.0, 165.0, 82.6


@pytest.mark.parametrize(
    ("layers", "caps", "rates", "expected"),
    [
        (21, (13, 5, 4), (A100, RTX5090, RTX4090), (13, 5, 3)),
        (15, (13, 4), (A100, RTX5090), (11, 4)),
        (20, (13, 5, 4), (A100, RTX5090, RTX4090), (12, 5, 3)),
        (25, (13, 5, 4, 4), (A100, RTX5090, RTX4090, RTX4090), (13, 5, 4, 3)),
        (29, (13, 5, 5, 4, 4), (A100, RTX5090, RTX5090, RTX4090, RTX4090), (13, 5, 5, 3, 3)),
        (8, (5, 5), (RTX5090, RTX5090), (4, 4)),
        (7, (6, 5), (A100, RTX5090), (5, 2)),
    ],
)
def test_known_splits_in_proportion_to_compute(
    layers: int, caps: tuple[int, ...], rates: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    assert water_fill(layers, caps, rates) == expected


stages = st.lists(
    st.tuples(st.integers(1, 40), st.floats(0.01, 1000), st.floats(0, 5)), min_size=1, max_size=9
)


@given(stages, st.data())
def test_split_sums_to_the_model_within_caps_and_leaves_nobody_idle(
    pipeline: list[tuple[int, float, float]], data: st.DataObject
) -> None:
    caps, rates, extra = zip(*pipeline, strict=True)
    layers = data.draw(st.integers(len(caps), sum(caps)))
    for more in (None, extra):
        split = water_fill(layers, caps, rates, more)
        assert sum(split) == layers
        assert all(1 <= x <= cap for x, cap in zip(split, caps, strict=True))


@given(stages, st.data())
def test_split_is_within_one_layer_of_the_level(
    pipeline: list[tuple[int, float, float]], data: st.DataObject
) -> None:
    """A stage more than one layer above another's share would have been better off giving
    one away.
    """
    caps, rates, _ = zip(*pipeline, strict=True)
    layers = data.draw(st.integers(len(caps), sum(caps)))
    split = water_fill(layers, caps, rates)
    heights = [(x - 1) / rate for x, rate in zip(split, rates, strict=True) if x > 1]
    room = [(x + 1) / rate for x, rate, cap in zip(split, rates, caps, strict=True) if x < cap]
    if heights and room:
        assert max(heights) <= min(room) * (1 + 1e-6)


def test_fixed_work_on_the_last_stage_takes_layers_away_from_it() -> None:
    assert water_fill(20, (20, 20), (1.0, 1.0)) == (10, 10)
    assert water_fill(20, (20, 20), (1.0, 1.0), (0.0, 4.0)) == (12, 8)


@pytest.mark.parametrize(
    ("layers", "caps"), [(10, (5, 4)), (1, (1, 1)), (3, (0, 3)), (3, ()), (4, (-1, 9))]
)
def test_impossible_split_is_refused(layers: int, caps: tuple[int, ...]) -> None:
    with pytest.raises(PlanError) as refused:
        water_fill(layers, caps, [1.0] * len(caps))
    assert refused.value.problem == "over-capacity"
