"""An even flow is a flow, passes nobody's capacity, and leaves the busiest machine, cache or link
less busy.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.worlds import cluster, shipped_placement
from core.protocol.types import LayerRange
from scheduler.fleet.costs import link_tokens_per_s, prefill_ms_per_layer, tokens_per_s
from scheduler.fleet.fleet import Coordinator, Fleet, Link, Links, ModelShape, Placement, Shard
from scheduler.fleet.profile import Curve
from scheduler.flow.max_flow import Flow, max_flow
from scheduler.search.even_flow import KEPT, PROMPT_TOKENS, even_flow
from scheduler.stages.narrow import narrowed
from tests.scheduler.search.worlds import clusters, machine

MODEL = ModelShape(2, 100, 0, 0, False, 8, 1e9, activation_bytes_per_token=10_000)


def two_by_two(kv: tuple[int, int] = (10_000, 10_000)) -> tuple[Fleet, Placement]:
    """Two machines before and two after four equal links, any two of which would do; either stage
    has room to spare.
    """
    machines = []
    for name in "abcd":
        made = machine(name, (20.0, 20.0))
        assert made.profile is not None
        room = kv["bd".find(name) >= 0]
        machines.append(
            replace(made, profile=replace(made.profile, kv_tokens_by_layers=(room,) * 2))
        )
    links = Links({(x, y): Link(1.0, 0.8) for x in "ab" for y in "cd"}, default_ms=1.0)
    placement = tuple(Shard(m, LayerRange(0, 1) if m in "ab" else LayerRange(1, 2)) for m in "abcd")
    return Fleet(tuple(machines), links, Coordinator()), placement


def check_is_a_flow(flow: Flow, fleet: Fleet, model: ModelShape, placement: Placement) -> None:
    """What comes in goes out, all of it passes the ends, nothing is above a capacity."""
    out, into = defaultdict[str, float](float), defaultdict[str, float](float)
    for (a, b), rate in flow.links.items():
        assert rate > 0
        out[a] += rate
        into[b] += rate
        at = [None if x == flow.coordinator_id else fleet.by_id[x] for x in (a, b)]
        ends = [fleet.coordinator if x is None else x for x in at]
        limit = link_tokens_per_s(fleet.links, *ends, model)  # type: ignore[arg-type]
        assert rate <= limit * (1 + 1e-6)
    assert out[flow.coordinator_id] == pytest.approx(flow.tokens_per_s, rel=1e-6)
    assert into[flow.coordinator_id] == pytest.approx(flow.tokens_per_s, rel=1e-6)
    for machine_id, layers in placement:
        assert out[machine_id] == pytest.approx(into[machine_id], rel=1e-6, abs=1e-6)
        rate = tokens_per_s(fleet.by_id[machine_id], model, len(layers))
        assert into[machine_id] <= rate * (1 + 1e-6)


def unevenness(flow: Flow, fleet: Fleet, model: ModelShape, placement: Placement) -> float:
    """Σ T · use⁴ over machines, were as much served as the maximum flow says."""
    rates = {m: tokens_per_s(fleet.by_id[m], model, len(layers)) for m, layers in placement}
    return sum(
        rates[m] * (through / flow.tokens_per_s / rates[m]) ** 4
        for m, through in flow.by_machine.items()
    )


def test_machines_and_links_of_a_stage_share_what_one_could_pass() -> None:
    fleet, placement = two_by_two()
    narrow = replace(fleet, coordinator=Coordinator())
    flow = even_flow(narrow, MODEL, placement)
    assert flow.tokens_per_s == pytest.approx(KEPT * 40, rel=1e-6)
    for rate in flow.by_machine.values():
        assert rate == pytest.approx(KEPT * 20, rel=0.05)
    crossing = [flow.links.get((x, y), 0.0) for x in "ab" for y in "cd"]
    assert max(crossing) <= KEPT * 10 * 1.1
    assert max(max_flow(fleet, MODEL, placement).links.values()) > max(crossing)


def test_the_machine_with_more_room_for_kv_takes_more() -> None:
    fleet, placement = two_by_two(kv=(9_000, 3_000))
    flow = even_flow(fleet, MODEL, placement)
    assert flow.by_machine["a"] > 1.1 * flow.by_machine["b"]
    assert flow.by_machine["c"] > 1.1 * flow.by_machine["d"]


def test_haste_keeps_prompts_off_the_machine_that_takes_long_over_them() -> None:
    fleet, placement = two_by_two()
    slow = fleet.by_id["b"]
    assert slow.profile is not None
    slow = replace(
        slow,
        profile=replace(slow.profile, prefill_ms_per_layer=Curve.of(((1, 50.0), (2_000, 1e5)))),
    )
    fleet = replace(fleet, machines=tuple(slow if m.id == "b" else m for m in fleet.machines))
    assert prefill_ms_per_layer(slow, MODEL, PROMPT_TOKENS) > 1e3
    calm = even_flow(fleet, MODEL, placement)
    hasty = even_flow(fleet, MODEL, placement, haste=1.0)
    assert calm.by_machine["b"] == pytest.approx(calm.by_machine["a"], rel=0.05)
    assert hasty.by_machine["b"] < 0.95 * hasty.by_machine["a"]
    assert hasty.tokens_per_s == calm.tokens_per_s


@pytest.mark.parametrize("name", ["helix", "swarm", "petals"])
def test_on_the_large_cluster_machines_are_used_more_evenly_than_by_the_maximum_flow(
    name: str,
) -> None:
    fleet, model = cluster("het42")
    placement, _ = shipped_placement("het42", name, model)
    flow = even_flow(fleet, model, placement)
    check_is_a_flow(flow, fleet, model, placement)
    most = max_flow(fleet, model, placement)
    assert flow.tokens_per_s == pytest.approx(KEPT * most.tokens_per_s)
    even = unevenness(flow, fleet, model, placement)
    assert even < unevenness(most, fleet, model, placement)
    assert even_flow(fleet, model, placement) == flow


@settings(max_examples=60, deadline=None)
@given(clusters(slow_links=True), st.booleans(), st.sampled_from([0.0, 3.0]), st.data())
def test_it_is_a_flow_whatever_the_cluster(
    world: tuple[Fleet, ModelShape], partial: bool, haste: float, data: st.DataObject
) -> None:
    fleet, model = world
    placement = []
    for m in fleet.machines:
        assert m.profile is not None
        most = min(m.profile.max_layers, model.layers)
        many = data.draw(st.integers(1, most))
        start = data.draw(st.integers(0, model.layers - many))
        placement.append(Shard(m.id, LayerRange(start, start + many)))
    most_flow = max_flow(fleet, model, placement, partial=partial)
    flow = even_flow(fleet, model, tuple(placement), partial=partial, haste=haste)
    assert flow.tokens_per_s == pytest.approx(KEPT * most_flow.tokens_per_s, abs=1e-6)
    if flow.tokens_per_s:
        check_is_a_flow(flow, fleet, model, tuple(placement))
    assert even_flow(fleet, model, tuple(placement), partial=partial, haste=haste) == flow


def test_narrowed_links_carry_their_share() -> None:
    fleet, placement = two_by_two()
    assert max_flow(narrowed(fleet, 0.25), MODEL, placement).tokens_per_s == pytest.approx(10.0)
    usual = Fleet(fleet.machines, Links(default_ms=1.0, default_mbit_s=8.0))
    assert narrowed(usual, 0.25).links == Links(default_ms=1.0, default_mbit_s=2.0)
