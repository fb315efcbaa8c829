"""No placement flows more than the bounds say, and on Helix's clusters they are what was
published.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from benchmarks.scheduler.worlds import cluster
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.flow.bounds import capped_bound, trivial_bound
from tests.scheduler.helix.worlds import best_by_force, clusters, measured, model_of


@pytest.mark.parametrize(
    ("name", "trivial", "capped"),
    [("single24", 2803.9, 2045.6), ("geo24", 2803.9, 2045.6), ("het42", 7104.3, 6528.9)],
)
def test_bounds_of_helix_clusters(name: str, trivial: float, capped: float) -> None:
    fleet, model = cluster(name)
    assert trivial_bound(fleet, model) == pytest.approx(trivial, abs=0.05)
    assert capped_bound(fleet, model) == pytest.approx(capped, abs=0.05)


def test_the_capped_bound_by_hand() -> None:
    """Two machines with T = (100, 8), three layers."""
    fleet = Fleet((measured("a", 100, 8), measured("b", 100, 8)))
    # each gives max(min(100, F), 2 min(8, F)): 2 F up to F = 8, 16 up to 16, then F; 2 · 16 = 3 F
    # at 32 / 3
    assert capped_bound(fleet, model_of(3)) == pytest.approx(32 / 3)
    assert trivial_bound(fleet, model_of(3)) == pytest.approx(200 / 3)


def test_machines_side_by_side_pass_more_than_any_of_them() -> None:
    fleet = Fleet(tuple(measured(f"m{i}", 9, 4) for i in range(5)))
    assert capped_bound(fleet, model_of(2)) == pytest.approx(5 * 9 / 2)


def test_no_bound_where_the_model_does_not_fit() -> None:
    fleet = Fleet((measured("a", 100, 8),))
    assert capped_bound(fleet, model_of(3)) == 0
    assert capped_bound(Fleet(()), model_of(3)) == 0


@settings(max_examples=40, deadline=None)
@given(clusters(most_machines=3, most_layers=4, most_held=2))
def test_no_placement_passes_more(world: tuple[Fleet, ModelShape]) -> None:
    fleet, model = world
    best = best_by_force(fleet, model, partial=True)
    assert best <= capped_bound(fleet, model) <= trivial_bound(fleet, model) * (1 + 1e-12)
