"""Explanations name the true bottleneck and add up."""

from __future__ import annotations

import pytest

from scheduler.allocate import allocate, pipeline_ms
from scheduler.explain import explain_allocation, explain_pipeline, explain_route
from scheduler.fleet import Fleet, Links
from scheduler.parallax_route import Route, route
from scheduler.routing_table import prepare
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


def test_allocation_is_told_in_sentences_with_standby_and_reasons() -> None:
    fleet, model = fleet_of(0, 3, 3, 1), toy_model(6)
    lines = explain_allocation(allocate(fleet, model), fleet, model)
    assert lines[0].startswith("pipeline 1: m0")
    assert any("1 machines stand by with room for 1 of 6 layers" in line for line in lines)
    assert any("m00 is ignored" in line for line in lines)


def test_route_is_told_leg_by_leg() -> None:
    fleet, model = fleet_of(3, 3, rho_ms=4.0), toy_model(6)
    found = route(prepare(fleet, model, allocate(fleet, model).shards))
    assert isinstance(found, Route)
    lines = explain_route(found)
    assert len(lines) == 3
    assert lines[-1].startswith("10.0 ms a token")
