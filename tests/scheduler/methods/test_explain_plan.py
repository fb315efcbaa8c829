"""A plan names what holds it back, and the prices of its machines add up to what it passes."""

from __future__ import annotations

import pytest

from benchmarks.scheduler.worlds import cluster, mixed
from scheduler.methods.explain_plan import explain_plan
from scheduler.methods.methods import plan_by


def test_in_a_fleet_prices_times_rates_are_the_whole_flow() -> None:
    fleet, model = mixed(16, "32b")
    plan = plan_by("utility", fleet, model)
    explained = explain_plan(plan, fleet, model)
    assert [use.machine_id for use in explained.machines] == [s.machine_id for s in plan.placement]
    assert explained.bottleneck
    worth = sum(use.price * use.tokens_per_s for use in explained.machines)
    assert worth == pytest.approx(explained.flow_tokens_per_s)
    for use in explained.machines:
        assert -1e-9 <= use.used <= 1 + 1e-9
        assert use.price == 0 or use.used == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["stages", "swarm"])
def test_behind_a_coordinator_the_bottleneck_has_a_price_and_is_used_to_the_full(
    method: str,
) -> None:
    fleet, model = cluster("single24")
    explained = explain_plan(plan_by(method, fleet, model), fleet, model)
    priced = [use for use in explained.machines if use.price]
    assert {use.machine_id for use in priced} == set(explained.bottleneck)
    assert len(priced) > 1  # equal machines in a row are equally short
    for use in priced:
        assert use.used == pytest.approx(1.0)
    assert any("equally short" in line for line in explained.sentences)
