"""Every method is fed the same, served as the matcher would, and the default serves most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduler.worlds import cluster, mixed
from matcher.planning.pictures import DrawnPlan, overview_svg, plan_svg
from matcher.planning.plan_file import WhatIf, what_if_of
from matcher.planning.simulated import (
    Routing,
    SimulatedPlan,
    best_first,
    mean_stages,
    play_method,
    routing_of,
    served_by,
)
from matcher.planning.trace_file import built_in
from scheduler.fleet.errors import FleetError
from scheduler.fleet.workload import Arrival
from scheduler.simulate.options import SimOptions
from tests.matcher.test_cli import FLEET

SMALL = what_if_of(FLEET, "small")
SHORT = SimOptions(warmup_s=20, duration_s=40)
#: One request after another, each long done before the next.
LONELY = [Arrival(60.0 * i, 20, 11) for i in range(1, 4)]


def played(
    world: WhatIf,
    method: str,
    routing: Routing | None = None,
    *,
    options: SimOptions = SHORT,
    rate: float | None = None,
) -> SimulatedPlan:
    work = built_in(rate, options.warmup_s + options.duration_s)
    return play_method(world, method, work, options, lambda: 0.0, 20.0, routing)


def test_requests_that_come_alone_take_the_time_that_the_plan_says() -> None:
    options = SimOptions(warmup_s=0, duration_s=240)
    for routing in ("fastest", "iwrr"):
        found = play_method(SMALL, "auto", LONELY, options, lambda: 0.0, 20.0, routing)
        assert found.report.finished_requests == 3
        assert found.report.decode_tokens_per_s == pytest.approx(3 * 10 / 240)
        assert found.report.waiting_at_end == found.report.dropped == 0
        shown = served_by(found)
        assert shown.stages_per_request == len(found.placement) == shown.machines
        assert 0 < shown.token_s["p50"] <= shown.token_s["p99"] < 1
        assert shown.token_s["mean"] == pytest.approx(shown.first_token_s["mean"], rel=1.0)


def test_the_same_question_has_the_same_answer() -> None:
    first, again = (played(SMALL, "auto", rate=0.5) for _ in range(2))
    assert first.report == again.report


def test_no_machine_gets_more_requests_than_it_has_slots_or_kv_room() -> None:
    machines = tuple(replace(m, max_concurrent=2) for m in SMALL.fleet.machines)
    world = replace(SMALL, fleet=replace(SMALL.fleet, machines=machines))
    found = played(world, "auto")
    assert 0 < found.report.mean_in_flight <= 2
    tight = tuple(replace(m, kv_tokens=1500) for m in SMALL.fleet.machines)
    world = replace(SMALL, fleet=replace(SMALL.fleet, machines=tight))
    assert played(world, "auto").report.mean_in_flight <= 1500 / 250


def test_a_method_goes_with_its_own_router_unless_told_otherwise() -> None:
    assert routing_of(SMALL, "helix") == "iwrr"
    assert routing_of(SMALL, "auto") == routing_of(SMALL, "regions") == "fastest"
    behind = WhatIf("single24", *cluster("single24"))
    assert routing_of(behind, "auto") == "iwrr"
    with pytest.raises(FleetError, match="come from everywhere"):
        played(behind, "swarm", "fastest", options=SimOptions(warmup_s=1, duration_s=1))


def test_a_placement_behind_a_coordinator_serves_over_its_flow() -> None:
    behind = WhatIf("single24", *cluster("single24"))
    options = SimOptions(warmup_s=20, duration_s=20)
    found = played(behind, "petals", options=options)
    assert found.report.decode_tokens_per_s > 0
    assert found.flow_tokens_per_s == pytest.approx(952, abs=1)


def test_the_default_serves_more_than_each_method_with_its_router() -> None:
    # Slots are no limit, as in the load test: only KV room is.
    fleet, model = mixed(16, "32b")
    machines = tuple(replace(machine, max_concurrent=2**31) for machine in fleet.machines)
    world = WhatIf("mixed_16", replace(fleet, machines=machines), model)
    ours = played(world, "auto")
    for method in ("regions", "swarm", "petals", "separate+"):
        theirs = played(world, method, "iwrr")
        assert best_first([theirs, ours])[0] is ours, method
    assert (
        ours.report.decode_tokens_per_s > played(world, "auto", "iwrr").report.decode_tokens_per_s
    )


def test_plans_are_drawn_with_what_they_served() -> None:
    found = played(SMALL, "auto", rate=0.5)
    name = "<auto>"
    drawn = DrawnPlan(
        "auto", name, "a & b", found.placement, mean_stages(found.report), 1.0, found.report
    )
    for picture in (
        plan_svg(drawn, SMALL.fleet, SMALL.model, SMALL.id),
        overview_svg([drawn], SMALL.id),
    ):
        assert picture.startswith("<svg ") and picture.endswith("</svg>\n")
        assert "&lt;auto&gt;" in picture and name not in picture
    idle = DrawnPlan("x", "x", "x", found.placement[:1], 1.0, 1.0, found.report)
    assert "holds nothing" in plan_svg(idle, SMALL.fleet, SMALL.model, SMALL.id)
