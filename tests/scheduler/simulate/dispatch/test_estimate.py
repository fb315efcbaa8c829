"""The estimate of KV use (Helix §5.2)."""

from __future__ import annotations

import pytest

from scheduler.fleet.errors import FleetError
from scheduler.simulate.dispatch.estimate import KvEstimate
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine, placed

FLEET = fleet_of(machine("a", kv_tokens=1000), machine("b", kv_tokens=500), machine("c"))


def estimate(**options):
    return KvEstimate(FLEET, MODEL, placed(a=(0, 2), b=(0, 4), c=(2, 4)), **options)


def test_a_request_fits_while_prompt_and_mean_answer_stay_under_the_mark():
    kv = estimate(high_water=0.8, output_tokens=100)
    assert kv.fits("a", 700)
    assert not kv.fits("a", 701)


def test_layers_used_are_booked_but_all_layers_are_asked_for():
    kv = estimate(high_water=1.0, output_tokens=0)
    (a, _, _) = placed(a=(1, 2), b=(0, 4), c=(2, 4))
    kv.add([a], 600)
    assert kv.used["a"] == 600
    assert kv.fits("a", 700) and not kv.fits("a", 701)


def test_what_is_added_is_freed_again():
    kv = estimate()
    stages = placed(a=(0, 2), c=(2, 4))
    kv.add(stages, 77)
    kv.remove(stages, 77)
    assert set(kv.used.values()) == {0}


def test_the_bottleneck_is_the_fullest_layer_over_all_machines_that_hold_it():
    kv = estimate(output_tokens=0)
    kv.add(placed(a=(0, 2)), 600)
    assert kv.bottleneck() == pytest.approx(600 / 1500)
    kv.add(placed(b=(0, 4)), 300)
    assert kv.bottleneck() == pytest.approx(900 / 1500)


def test_absurd_marks_are_errors():
    for options in ({"high_water": 0.0}, {"high_water": 1.1}, {"output_tokens": -1}):
        with pytest.raises(FleetError):
            estimate(**options)
