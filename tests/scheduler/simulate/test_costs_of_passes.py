"""What a pass costs: from curves, from the roofline, and from a fit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.measure.fit import FittedCost, PassSample, fit
from scheduler.fleet.costs import prefill_ms_per_layer, tau_ms_per_layer
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Machine, ModelShape
from scheduler.simulate.pass_cost import ProfileCost, RooflineCost
from tests.scheduler.simulate.toy import MODEL, machine

SHAPE = ModelShape.dense(
    layers=8, hidden=512, intermediate=1024, heads=8, kv_heads=2, vocab=1000, tied=True
)
CARD = Machine("m", 2**34, 20.0, 500.0)


@given(st.integers(1, 64), st.integers(1, 4096))
def test_the_roofline_of_decode_steps_is_that_of_the_planner(batch, context):
    cost = RooflineCost(CARD, SHAPE)
    whole = batch * context
    assert cost.seconds(3, 0, batch, whole, whole) == pytest.approx(
        3 * tau_ms_per_layer(CARD, SHAPE, batch, context) / 1e3
    )


@given(st.integers(1, 2000), st.integers(0, 2000))
def test_the_roofline_of_a_chunk_is_that_of_the_planner(tokens, before):
    cost = RooflineCost(CARD, SHAPE)
    assert cost.seconds(3, tokens, 0, before, tokens * (before + tokens / 2)) == pytest.approx(
        3 * prefill_ms_per_layer(CARD, SHAPE, tokens, before) / 1e3
    )


def test_a_mixed_batch_costs_the_sum_of_both_curves():
    cost = ProfileCost(machine("m", decode_ms=10, prefill_ms=0.1), MODEL)
    assert cost.seconds(2, 100, 5, 0, 0) == pytest.approx(2 * (0.010 + 0.010))
    assert cost.seconds(2, 0, 0, 0, 0) == 0.0


def test_a_measured_tau_scales_the_curves():
    slow = Machine(
        "m", 1, 1.0, 1.0, profile=machine("m").profile, tau_ms_per_layer=20.0, tau_batch=1
    )
    assert ProfileCost(slow, MODEL).seconds(1, 0, 3, 0, 0) == pytest.approx(0.02)


plane = st.tuples(
    *(st.floats(0.01, 5.0) for _ in range(2)), st.floats(0.0, 2.0), st.floats(0, 1e-2)
)


def samples(a, b, c, d, noise, seed=0, many=60):
    draw = random.Random(seed)
    made = []
    for _ in range(many):
        layers, prefill, decodes = (
            draw.randint(1, 8),
            draw.choice([0, 16, 256, 512]),
            draw.randint(0, 16),
        )
        context = decodes * draw.randint(1, 2000)
        ms = layers * (a + b * prefill + c * decodes + d * context)
        made.append(
            PassSample(layers, prefill, decodes, context, ms * (1 + noise * draw.uniform(-1, 1)))
        )
    return made


@given(plane)
@settings(max_examples=40, deadline=None)
def test_a_fit_of_exact_passes_finds_the_plane(plane):
    found = fit(samples(*plane, noise=0.0))
    assert found.worst_error < 1e-6
    cost = FittedCost(*plane)
    assert found.cost.seconds(4, 100, 7, 900, 0) == pytest.approx(cost.seconds(4, 100, 7, 900, 0))


def test_the_held_out_error_is_that_of_the_noise():
    found = fit(samples(1.0, 0.1, 0.2, 1e-3, noise=0.04, many=400))
    assert found.held_out == 100
    assert 0.01 < found.held_out_error < 0.03 < found.worst_error < 0.06


def test_no_part_of_the_cost_falls_with_more_work():
    fitted = fit(samples(1.0, 0.1, 0.0, 0.0, noise=0.5)).cost
    assert min(fitted.a_ms, fitted.b_ms, fitted.c_ms, fitted.d_ms) >= 0


def test_too_few_or_impossible_passes_are_refused():
    good = samples(1, 1, 1, 0.001, 0.0)
    for wrong in (
        good[:7],
        [*good, PassSample(0, 1, 1, 1, 1.0)],
        [*good, PassSample(1, 1, 1, 1, 0.0)],
    ):
        with pytest.raises(FleetError):
            fit(wrong)
