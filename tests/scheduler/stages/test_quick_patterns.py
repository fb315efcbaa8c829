"""A quick pipeline passes what was asked for, and no other one with so few stages is quicker for a
prompt.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduler.worlds import cluster
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Coordinator, Fleet, Links
from scheduler.fleet.profile import Curve
from scheduler.flow.max_flow import max_flow
from scheduler.flow.valid import validate_placement
from scheduler.search.candidate import candidate_of
from scheduler.stages.quick_patterns import quick_patterns
from scheduler.stages.stage_patterns import stage_patterns
from tests.scheduler.search.worlds import machine, toy_model

SLOW_PROMPTS = Curve.of(((1, 100.0), (2_000, 1e5)))


def fast_and_slow() -> Fleet:
    """Two machines that pass 10 tokens/s with two layers each, and two that pass more but are slow
    over prompts.
    """
    machines = []
    for name in ("fast0", "fast1", "slow0", "slow1"):
        is_slow = name.startswith("slow")
        made = machine(name, (12.5, 11.0, 5.0) if is_slow else (12.0, 10.0, 5.0))
        assert made.profile is not None
        if is_slow:
            made = replace(made, profile=replace(made.profile, prefill_ms_per_layer=SLOW_PROMPTS))
        machines.append(made)
    return Fleet(tuple(machines), Links(default_ms=1.0), Coordinator())


def test_slow_machines_are_left_out_where_the_flow_does_without_them() -> None:
    fleet, model = fast_and_slow(), toy_model(4)
    placement = quick_patterns(fleet, model, 10.0)
    assert {shard.machine_id for shard in placement} == {"fast0", "fast1"}
    assert max_flow(fleet, model, placement).tokens_per_s == pytest.approx(10.0)


def test_only_as_many_of_them_are_used_as_it_takes() -> None:
    fleet, model = fast_and_slow(), toy_model(5)
    placement = quick_patterns(fleet, model, 10.0)
    assert sum(shard.machine_id.startswith("slow") for shard in placement) == 1
    assert max_flow(fleet, model, placement).tokens_per_s >= 10.0


def test_what_no_pipeline_passes_is_refused() -> None:
    fleet, model = fast_and_slow(), toy_model(5)
    with pytest.raises(PlanError):
        quick_patterns(fleet, model, 13.0)
    with pytest.raises(PlanError):
        quick_patterns(fleet, model, 10.0, most_stages=1)


@pytest.mark.parametrize(("name", "stages"), [("single24", 13), ("het42", 10), ("het42", 14)])
def test_less_flow_buys_quicker_prompts(name: str, stages: int) -> None:
    fleet, model = cluster(name)
    most = stage_patterns(fleet, model, most_stages=stages)
    before = candidate_of("", fleet, model, most.placement, most.bound).prompt_s
    for share in (1.0, 0.85):
        enough = most.tokens_per_s * share * (1 - 1e-9)
        placement = quick_patterns(fleet, model, enough, most_stages=stages)
        validate_placement(placement, fleet, model)
        assert quick_patterns(fleet, model, enough, most_stages=stages) == placement
        found = candidate_of("", fleet, model, placement, most.bound)
        assert found.tokens_per_s >= enough * (1 - 1e-6)
        assert found.stages <= stages + 1e-6
        assert found.prompt_s <= before * (1 + 0.02)
        before = found.prompt_s
