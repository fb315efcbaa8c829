"""Explanations name the true bottleneck and add up."""

from __future__ import annotations

import pytest

from scheduler.fleet.fleet import Fleet, Links
from scheduler.methods.explain import explain_pipeline
from scheduler.parallax.allocate import allocate, pipeline_ms
from tests.scheduler.worlds import fleet_of, holding, shard, toy_model


def test_bottleneck_is_the_stage_with_the_lowest_rate() -> None:
    machines = (holding("fast", 3, tflops=4.0), holding("slow", 9, tflops=1.0))
    fleet, model = Fleet(machines, Links(default_ms=0.5)), toy_model(9)
    pipeline = (shard("fast", 0, 3), shard("slow", 3, 9))
    report = explain_pipeline(pipeline, fleet, model)
    assert report.bottleneck == "slow"
    assert report.tokens_per_s == pytest.approx(1e3 / 6)
    assert report.latency_ms == pytest.approx(pipeline_ms(pipeline, fleet, model))
    assert [stage.spare_layers for stage in report.stages] == [0, 3]
    assert "fast is faster but full" in report.advice


def test_distant_pipeline_is_told_to_move_closer() -> None:
    fleet, model = fleet_of(3, 3, rho_ms=90.0), toy_model(6)
    report = explain_pipeline(allocate(fleet, model).pipelines[0], fleet, model)
    assert report.hops_ms == 90.0
    assert "hops" in report.advice
