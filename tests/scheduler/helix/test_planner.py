"""Helix's whole method never does worse than the heuristics it starts from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import cluster
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.helix.milp import MilpOptions, solve_milp
from scheduler.helix.planner import plan_helix, warm_starts
from tests.scheduler.helix.worlds import clusters


@pytest.mark.parametrize(
    ("name", "names"),
    [("single24", {"petals", "swarm", "separate+"}), ("het42", {"petals", "swarm", "separate+"})],
)
def test_starts_of_helix_clusters(name: str, names: set[str]) -> None:
    fleet, model = cluster(name)
    starts = warm_starts(fleet, model)
    assert set(starts) == names
    for placement in starts.values():
        validate_placement(placement, fleet, model)


def test_swarm_unpruned_is_worth_more_than_what_helix_ended_with_on_het42() -> None:
    fleet, model = cluster("het42")
    found = plan_helix(fleet, model, MilpOptions(node_limit=0, stop_at=0.5))
    assert found.start_tokens_per_s == pytest.approx(4892.24, abs=0.01)
    assert found.tokens_per_s >= found.start_tokens_per_s > 4137.55


@settings(max_examples=25, deadline=None)
@given(clusters(most_machines=3, most_layers=4, most_held=2), st.booleans())
def test_never_below_any_start_and_at_the_optimum_unpruned(
    world: tuple[Fleet, ModelShape], partial: bool
) -> None:
    fleet, model = world
    options = MilpOptions(partial=partial)
    whole, pruned = plan_helix(fleet, model, options, None), plan_helix(fleet, model, options, 1)
    for start in warm_starts(fleet, model).values():
        flow = max_flow(fleet, model, start, partial=partial).tokens_per_s
        assert whole.tokens_per_s >= flow and pruned.tokens_per_s >= flow
    alone = solve_milp(fleet, model, options)
    assert whole.tokens_per_s == pytest.approx(alone.tokens_per_s, rel=1e-5, abs=1e-5)
    assert pruned.tokens_per_s <= whole.tokens_per_s * (1 + 1e-5) + 1e-5
