"""The flow of a placement: as published, as an independent solver finds it, and valid in every
link.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from benchmarks.scheduler.worlds import DATA, cluster
from core.protocol.types import LayerRange
from scheduler.fleet.costs import link_tokens_per_s, tokens_per_s
from scheduler.fleet.errors import FleetError, PlanError
from scheduler.fleet.files import read_placement
from scheduler.fleet.fleet import Coordinator, Fleet, Links, ModelShape, Placement, Shard
from scheduler.flow.bounds import capped_bound, trivial_bound
from scheduler.flow.flow_graph import flow_graph
from scheduler.flow.max_flow import Flow, least_latency_flow, max_flow
from tests.scheduler.helix.worlds import carrying, measured, model_of, placed
from tests.scheduler.worlds import shard

CLUSTERS = json.loads((DATA / "placements.json").read_text())["clusters"]
World = tuple[Fleet, ModelShape, Placement]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("method", ["helix", "petals", "swarm"])
@pytest.mark.parametrize("name", ["single24", "geo24", "het42"])
def test_shipped_placements_have_their_published_flow(
    name: str, method: str, partial: bool
) -> None:
    fleet, model = cluster(name)
    facts = CLUSTERS[name]["placements"][method]
    placement = read_placement(facts["layers"], model)
    key = "max_flow_with_partial_inference" if partial else "max_flow_tokens_per_s"
    found = max_flow(fleet, model, placement, partial=partial)
    assert found.tokens_per_s == pytest.approx(facts[key], abs=0.01)
    check(fleet, model, placement, found, partial)
    calm = least_latency_flow(fleet, model, placement, partial=partial)
    assert calm.tokens_per_s == found.tokens_per_s
    check(fleet, model, placement, calm, partial)


def check(fleet: Fleet, model: ModelShape, placement: Placement, flow: Flow, partial: bool) -> None:
    """Written from the definition in §4.3, apart from the graph's code."""
    at = fleet.coordinator.id if fleet.coordinator else "coordinator"
    held = dict(placement)
    into: dict[str, float] = defaultdict(float)
    out: dict[str, float] = defaultdict(float)
    for (a, b), rate in flow.links.items():
        assert rate > 0
        into[b] += rate
        out[a] += rate
        if a == at:
            assert held[b].start == 0
        elif b == at:
            assert held[a].end == model.layers
        else:
            assert held[a].end == held[b].start or (
                partial and held[b].start <= held[a].end < held[b].end
            )
        ends = [fleet.coordinator if x == at else fleet.by_id[x] for x in (a, b)]
        if ends[0] is not None and ends[1] is not None:
            assert rate <= link_tokens_per_s(fleet.links, ends[0], ends[1], model)
    for machine_id, layers in placement:
        assert into[machine_id] == out[machine_id] == flow.by_machine.get(machine_id, 0.0)
        assert into[machine_id] <= tokens_per_s(fleet.by_id[machine_id], model, len(layers))
    assert into[at] == out[at] == flow.tokens_per_s


def value_by_lp(fleet: Fleet, model: ModelShape, placement: Placement, partial: bool) -> float:
    """The same maximum by a linear program over pairs of shards."""
    columns: list[tuple[int, int]] = []
    limits: list[float] = []
    machines = [fleet.by_id[s.machine_id] for s in placement]
    at = fleet.coordinator
    for i, (_, mine) in enumerate(placement):
        if mine.start == 0:
            columns.append((-1, i))
            limits.append(link_tokens_per_s(fleet.links, at, machines[i], model) if at else np.inf)
        if mine.end == model.layers:
            columns.append((i, -2))
            limits.append(link_tokens_per_s(fleet.links, machines[i], at, model) if at else np.inf)
        for j, (_, other) in enumerate(placement):
            if mine.end == other.start or (partial and mine.end in range(other.start, other.end)):
                columns.append((i, j))
                limits.append(link_tokens_per_s(fleet.links, machines[i], machines[j], model))
    if not columns:
        return 0.0
    n = len(placement)
    balance, through = np.zeros((n, len(columns))), np.zeros((n, len(columns)))
    for c, (i, j) in enumerate(columns):
        if i >= 0:
            balance[i, c] -= 1
        if j >= 0:
            balance[j, c] += 1
            through[j, c] += 1
    rates = [
        tokens_per_s(m, model, len(s.layers)) for m, s in zip(machines, placement, strict=True)
    ]
    gain = [-1.0 if i == -1 else 0.0 for i, _ in columns]
    best = linprog(gain, through, rates, balance, np.zeros(n), [(0, x) for x in limits])
    assert best.status == 0
    return float(-best.fun)


@settings(max_examples=150, deadline=None)
@given(placed(), st.booleans())
def test_flow_equals_a_linear_program_and_is_valid(world: World, partial: bool) -> None:
    fleet, model, placement = world
    flow = max_flow(fleet, model, placement, partial=partial)
    expected = value_by_lp(fleet, model, placement, partial)
    assert flow.tokens_per_s == pytest.approx(expected, abs=1e-5)
    check(fleet, model, placement, flow, partial)
    calm = least_latency_flow(fleet, model, placement, partial=partial)
    assert calm.tokens_per_s == flow.tokens_per_s
    check(fleet, model, placement, calm, partial)


@settings(max_examples=150, deadline=None)
@given(placed(), st.booleans())
def test_the_cut_proves_the_flow(world: World, partial: bool) -> None:
    fleet, model, placement = world
    flow = max_flow(fleet, model, placement, partial=partial)
    at, held = flow.coordinator_id, dict(placement)
    capacity = 0.0
    for a, b in flow.cut:
        if a == b:
            capacity += tokens_per_s(fleet.by_id[a], model, len(held[a]))
            continue
        ends = [fleet.coordinator if x == at else fleet.by_id[x] for x in (a, b)]
        assert ends[0] is not None and ends[1] is not None
        capacity += link_tokens_per_s(fleet.links, ends[0], ends[1], model)
    assert flow.tokens_per_s == pytest.approx(capacity, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(placed())
def test_partial_inference_and_bounds_are_never_below(world: World) -> None:
    fleet, model, placement = world
    exact = max_flow(fleet, model, placement).tokens_per_s
    partial = max_flow(fleet, model, placement, partial=True).tokens_per_s
    assert (
        exact <= partial <= capped_bound(fleet, model) <= trivial_bound(fleet, model) * (1 + 1e-12)
    )


@settings(max_examples=60, deadline=None)
@given(placed(), st.booleans(), st.floats(1.0, 3.0))
def test_more_of_anything_never_lowers_the_flow(world: World, partial: bool, more: float) -> None:
    fleet, model, placement = world
    before = max_flow(fleet, model, placement, partial=partial).tokens_per_s
    for machine in fleet.machines:
        assert machine.profile and machine.profile.tokens_per_s_by_layers
        rates = tuple(rate * more for rate in machine.profile.tokens_per_s_by_layers)
        faster = replace(machine, profile=replace(machine.profile, tokens_per_s_by_layers=rates))
        others = [m for m in fleet.machines if m.id != machine.id]
        grown = Fleet((*others, faster), fleet.links, fleet.coordinator)
        assert max_flow(grown, model, placement, partial=partial).tokens_per_s >= before
    wider = {
        pair: replace(link, bandwidth_mbit_s=link.bandwidth_mbit_s and link.bandwidth_mbit_s * more)
        for pair, link in fleet.links.pairs.items()
    }
    grown = Fleet(fleet.machines, Links(wider), fleet.coordinator)
    assert max_flow(grown, model, placement, partial=partial).tokens_per_s >= before


@settings(max_examples=30, deadline=None)
@given(placed(), st.booleans(), st.randoms())
def test_same_input_same_flow_in_any_order_of_machines(
    world: World, partial: bool, random: object
) -> None:
    fleet, model, placement = world
    first = max_flow(fleet, model, placement, partial=partial)
    shuffled = list(fleet.machines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = Fleet(tuple(shuffled), fleet.links, fleet.coordinator)
    assert max_flow(again, model, placement, partial=partial) == first
    calm = least_latency_flow(fleet, model, placement, partial=partial)
    assert least_latency_flow(again, model, placement, partial=partial) == calm


def test_least_latency_takes_the_short_way_where_both_are_maximal() -> None:
    """With partial inference on, a detour through a machine that adds nothing carries as much; a →
    b → c must not be taken.
    """
    machines = (measured("a", 9, 5), measured("b", 9, 5), measured("c", 9, 5))
    fleet = Fleet(machines, Links(default_ms=10.0), Coordinator())
    model = model_of(3)
    placement = (shard("a", 0, 1), shard("b", 0, 2), shard("c", 1, 3))
    calm = least_latency_flow(fleet, model, placement, partial=True)
    assert calm.tokens_per_s == max_flow(fleet, model, placement, partial=True).tokens_per_s == 5
    assert set(calm.links) == {
        ("coordinator", "a"),
        ("coordinator", "b"),
        ("a", "c"),
        ("b", "c"),
        ("c", "coordinator"),
    }


def test_equal_machines_are_used_alike() -> None:
    """Three behind one that limits them: each passes a third, where a plain maximum fills one after
    the other.
    """
    behind = tuple(measured(f"b{i}", 12) for i in range(3))
    fleet = Fleet((measured("a", 12), *behind), Links(default_ms=10.0), Coordinator())
    placement = (shard("a", 0, 1), *(shard(machine.id, 1, 2) for machine in behind))
    calm = least_latency_flow(fleet, model_of(2), placement)
    assert calm.tokens_per_s == 12
    assert all(3 <= calm.by_machine[machine.id] <= 6 for machine in behind)


def test_without_coordinator_the_ends_are_free() -> None:
    fleet = Fleet((measured("a", 8), measured("b", 6)), Links({("a", "b"): carrying(5)}))
    flow = max_flow(fleet, model_of(2), (shard("a", 0, 1), shard("b", 1, 2)))
    assert flow.tokens_per_s == 5
    assert flow.links == {("coordinator", "a"): 5, ("a", "b"): 5, ("b", "coordinator"): 5}
    assert flow.cut == (("a", "b"),)


def test_unknown_machines_and_double_shards_are_refused() -> None:
    fleet, model = Fleet((measured("a", 8, 4),)), model_of(2)
    for wrong, problem in (
        ((shard("x", 0, 2),), "unknown-machine"),
        ((shard("a", 0, 1), shard("a", 1, 2)), "machine-twice"),
        ((shard("a", 1, 3),), "gap"),
    ):
        with pytest.raises(PlanError) as caught:
            max_flow(fleet, model, wrong)
        assert caught.value.problem == problem


def test_a_machine_that_calls_itself_coordinator_is_refused() -> None:
    fleet = Fleet((measured("coordinator", 8),), coordinator=Coordinator())
    with pytest.raises(FleetError):
        max_flow(fleet, model_of(2), (Shard("coordinator", LayerRange(0, 1)),))


def test_nothing_placed_passes_nothing() -> None:
    assert max_flow(Fleet(()), model_of(2), ()) == Flow(0.0, {})


@settings(max_examples=100, deadline=None)
@given(placed(), st.booleans())
def test_least_latency_is_never_slower_than_a_plain_maximum(world: World, partial: bool) -> None:
    fleet, model, placement = world
    graph = flow_graph(fleet, model, placement, partial=partial)
    ms = dict(zip(graph.ends, graph.latency_ms, strict=True))

    def spent_ms(flow: Flow) -> float:
        return sum(rate * ms[link] for link, rate in flow.links.items())

    plain = max_flow(fleet, model, placement, partial=partial)
    calm = least_latency_flow(fleet, model, placement, partial=partial)
    rounding_ms = 1e-3 * sum(plain.links.values())
    assert spent_ms(calm) <= spent_ms(plain) + rounding_ms
