"""Stage patterns find the best pipeline of whole stages, also of few."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from benchmarks.scheduler.worlds import cluster
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.stages.stage_patterns import stage_patterns
from scheduler.stages.stages import StagePool
from scheduler.stages.table import table_of
from tests.scheduler.search.worlds import clusters


def partitions(members: list[int]) -> list[list[list[int]]]:
    """Every way to deal machines to stages, some of them to none."""
    if not members:
        return [[]]
    first, *rest = members
    found = list[list[list[int]]]()
    for stages in partitions(rest):
        found.append(stages)
        found.append([[first], *stages])
        for i in range(len(stages)):
            found.append([*stages[:i], [first, *stages[i]], *stages[i + 1 :]])
    return found


@given(clusters(most_machines=5, most_layers=6))
@settings(max_examples=40, deadline=None)
def test_best_pipeline_equals_brute_force_at_every_stage_limit(
    world: tuple[Fleet, ModelShape],
) -> None:
    fleet, model = world
    pool = StagePool(table_of(fleet, model))
    everything = partitions(list(range(len(fleet.machines))))
    for limit in (1, 2, model.layers):
        best = max(
            (
                pool.flow([pool.stage(stage) for stage in stages], 0.0)
                for stages in everything
                if 0 < len(stages) <= limit
            ),
            default=-1.0,
        )
        if best <= 0:
            with pytest.raises(PlanError):
                stage_patterns(fleet, model, most_stages=limit)
            continue
        plan = stage_patterns(fleet, model, most_stages=limit)
        assert best * (1 - 2e-4) <= plan.tokens_per_s <= best * (1 + 1e-9)
        assert plan.stages <= limit
        assert plan.bound >= best * (1 - 1e-9)
        validate_placement(plan.placement, fleet, model)


@pytest.mark.parametrize(
    ("name", "most_stages", "reach"),
    [
        ("het42", None, 5900),
        ("het42", 14, 4999),
        ("het42", 16, 5407),
        ("single24", None, 2043),
        ("single24", 12, 1390),
        ("single24", 14, 1514),
        ("single24", 20, 1754),
    ],
)
def test_published_clusters_with_few_stages(
    name: str, most_stages: int | None, reach: float
) -> None:
    fleet, model = cluster(name)
    plan = stage_patterns(fleet, model, most_stages=most_stages)
    assert plan.tokens_per_s >= reach
    assert plan.stages <= (most_stages or 80)
    flow = max_flow(fleet, model, plan.placement).tokens_per_s
    assert flow == pytest.approx(plan.tokens_per_s, rel=1e-6)
    assert stage_patterns(fleet, model, most_stages=most_stages) == plan
