"""Pricing finds the cheapest covering pattern, ends included."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.fleet.kinds import pool_of
from scheduler.parallax.pricing import cheapest_pattern
from tests.scheduler.worlds import fleets, holds_pipeline, models


@settings(max_examples=150, deadline=None)
@given(fleets(6), models(8), st.data())
def test_cheapest_pattern_equals_brute_force(
    fleet: Fleet, model: ModelShape, data: st.DataObject
) -> None:
    pool = pool_of(fleet.machines, model)
    prices = [data.draw(st.integers(1, 9)) for _ in pool.kinds]
    found = cheapest_pattern(pool, pool.counts, np.array(prices, dtype=np.float64))
    best = math.inf
    for used in product(*(range(n + 1) for n in pool.counts)):
        stages = [pool.kinds[t] for t, times in enumerate(used) for _ in range(times)]
        if stages and holds_pipeline(stages, model.layers):
            best = min(best, sum(p * times for p, times in zip(prices, used, strict=True)))
    if found is None:
        assert math.isinf(best)
        return
    cost, pattern = found
    assert cost == pytest.approx(best)
    assert sum(prices[t] for t in pattern) == pytest.approx(cost)
    assert all(pattern.count(t) <= n for t, n in enumerate(pool.counts))
    assert holds_pipeline([pool.kinds[t] for t in pattern], model.layers)
