"""Rates learned from a simulation are what machines passed while they computed."""

from __future__ import annotations

import pytest

from benchmarks.scheduler.rows import cluster
from scheduler.costs import tokens_per_s
from scheduler.helix.max_flow import least_latency_flow
from scheduler.placement.learn_rates import Lesson, learned_fleet
from scheduler.placement.rank import iwrr
from scheduler.placement.stage_patterns import stage_patterns
from scheduler.simulate.options import SimOptions
from scheduler.simulate.simulation import simulate
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop


def test_seen_rates_replace_the_table_and_the_rest_keeps_their_ratio() -> None:
    fleet, model = cluster("single24")
    placement = stage_patterns(fleet, model, most_stages=13).placement
    flow = least_latency_flow(fleet, model, placement)
    report = simulate(
        fleet,
        model,
        placement,
        iwrr(fleet, model, placement, flow),
        ClosedLoop(poisson(0, 500)),
        SimOptions(warmup_s=20, duration_s=30),
    )
    learned = learned_fleet(fleet, model, [Lesson(placement, report, 30.0)])
    held = {machine_id: len(layers) for machine_id, layers in placement}
    for kind in ("A100", "L4", "T4"):
        counts = {held[m.id] for m in fleet.machines if m.kind == kind}
        k = min(counts)
        alike = [
            use
            for use in report.nodes
            if fleet.by_id[use.machine_id].kind == kind and held[use.machine_id] == k
        ]
        assert all(use.utilisation > 0.2 for use in alike)
        passed = sum(u.passes * (u.mean_decodes + u.mean_prefill_tokens) for u in alike)
        rate = passed / sum(u.utilisation * 30.0 for u in alike)
        machine = next(m for m in learned.machines if m.kind == kind)
        before = fleet.by_id[machine.id]
        assert tokens_per_s(machine, model, k) == pytest.approx(rate)
        if len(counts) == 1 and k > 1:
            ratio = rate / tokens_per_s(before, model, k)
            expected = ratio * tokens_per_s(before, model, k - 1)
            assert tokens_per_s(machine, model, k - 1) == pytest.approx(expected)
    assert learned.links == fleet.links


def test_without_lessons_nothing_changes() -> None:
    fleet, model = cluster("single24")
    assert learned_fleet(fleet, model, []) == fleet
