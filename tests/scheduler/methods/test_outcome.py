"""Taking a flow apart and adding pipelines up."""

from __future__ import annotations

import pytest

from benchmarks.scheduler.worlds import cluster, shipped_placement
from scheduler.fleet.fleet import Coordinator, Fleet, Link, Links, Machine
from scheduler.flow.max_flow import max_flow
from scheduler.methods.outcome import chains_of_flow, chains_of_pipelines
from tests.scheduler.worlds import fleet_of, shard, toy_model


@pytest.mark.parametrize("name", ["single24", "geo24", "het42"])
@pytest.mark.parametrize("method", ["helix", "petals", "swarm"])
def test_paths_of_a_flow_tile_the_model_and_add_up(name: str, method: str) -> None:
    fleet, model = cluster(name)
    placement, _ = shipped_placement(name, method, model)
    flow = max_flow(fleet, model, placement, partial=True)
    chains = chains_of_flow(flow, placement, fleet, model)
    assert sum(chain.tokens_per_s for chain in chains) == pytest.approx(flow.tokens_per_s)
    held = {s.machine_id: s.layers for s in placement}
    for chain in chains:
        cursor = 0
        for machine_id, layers in chain.stages:
            assert layers.start == cursor
            assert held[machine_id].start <= layers.start < layers.end <= held[machine_id].end
            cursor = layers.end
        assert cursor == model.layers
        assert chain.latency_ms > 0


def test_a_pipeline_carries_what_its_slowest_stage_or_link_does() -> None:
    fleet, model = fleet_of(4, 2), toy_model(6)
    stages = (shard("m00", 0, 4), shard("m01", 4, 6))
    (chain,) = chains_of_pipelines([stages], fleet, model)
    # 1e9 flops a layer at 1 Tflop/s: 1 ms a layer and sequence, 32 sequences in 32 × 4 ms.
    assert chain.tokens_per_s == pytest.approx(1e3 / 4)
    assert chain.latency_ms == pytest.approx(6 + 1)


def test_a_slow_way_to_the_coordinator_binds() -> None:
    machine = Machine("a", 1000, 1.0, 1e6, "r", weight_fraction=1.0, kv_fraction=0.0)
    slow = Links(regions={("r", "r"): Link(3.0, bandwidth_mbit_s=0.0032)})  # 100 tokens of 4 bytes
    fleet, model = Fleet((machine,), slow, Coordinator(region="r")), toy_model(6)
    (chain,) = chains_of_pipelines([(shard("a", 0, 6),)], fleet, model)
    assert chain.tokens_per_s == pytest.approx(100)
    assert chain.latency_ms == pytest.approx(6 + 2 * (3 + 10))
