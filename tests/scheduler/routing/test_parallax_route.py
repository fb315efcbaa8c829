"""The router finds the chain that brute force finds, with and without partial slices, and says why
there is none.
"""

from __future__ import annotations

import math
from itertools import pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from scheduler.fleet.costs import head_ms, hop_ms, tau_ms_per_layer
from scheduler.fleet.fleet import Fleet, Links, Machine, ModelShape, Shard
from scheduler.parallax.allocate import allocate, pipeline_ms
from scheduler.routing.parallax_route import (
    NoRoute,
    Route,
    RouteQuery,
    disjoint_backups,
    route,
    without_returns,
)
from scheduler.routing.routing_table import prepare
from tests.scheduler.worlds import fleet_of, fleets, holding, links_of, shard, toy_model

HEADED = ModelShape(6, 100, 0, 0, False, 8, 1e9, head_flops_per_token=2e9)


@st.composite
def placements(draw: st.DrawFn, fleet: Fleet, layers: int) -> tuple[Shard, ...]:
    shards = []
    for machine in fleet.machines:
        start = draw(st.integers(0, layers - 1))
        shards.append(shard(machine.id, start, draw(st.integers(start + 1, layers))))
    return tuple(shards)


@st.composite
def queries(draw: st.DrawFn, fleet: Fleet, layers: int, partial: bool) -> RouteQuery:
    ids = [machine.id for machine in fleet.machines]
    start = draw(st.integers(0, layers - 1))
    whole = draw(st.booleans())
    span = None if whole else LayerRange(start, draw(st.integers(start + 1, layers)))
    return RouteQuery(
        partial=partial,
        excluded=frozenset(draw(st.sets(st.sampled_from(ids), max_size=1))),
        in_flight={i: draw(st.sampled_from([0, 0, 1, 3, 16])) for i in ids},
        client_rho_ms={i: draw(st.sampled_from([0.0, 3.0, 20.0])) for i in ids},
        span=span,
    )


def cost_by_force(
    order: list[tuple[Machine, int]], fleet: Fleet, model: ModelShape, query: RouteQuery
) -> float:
    """Latency of a chain given as (machine, layers) runs, from the formula alone."""
    span = query.span or LayerRange(0, model.layers)
    total = query.client_rho_ms.get(order[0][0].id, 0.0)
    for at, (machine, layers) in enumerate(order):
        batch = query.in_flight.get(machine.id, 0) + 1
        if machine.id in query.excluded or batch > machine.max_concurrent:
            return math.inf
        if at:
            total += hop_ms(fleet.links, order[at - 1][0], machine, model)
        total += layers * tau_ms_per_layer(machine, model, batch)
    last = order[-1][0]
    if span.end == model.layers:
        total += head_ms(last, model, query.in_flight.get(last.id, 0) + 1)
    return total + query.client_rho_ms.get(last.id, 0.0)


def best_whole_by_force(
    fleet: Fleet, model: ModelShape, shards: tuple[Shard, ...], query: RouteQuery
) -> float:
    span = query.span or LayerRange(0, model.layers)
    best = math.inf
    for n in range(1, len(shards) + 1):
        for chain in permutations(shards, n):
            ends = [span.start, *(s.layers.end for s in chain)]
            if [s.layers.start for s in chain] == ends[:-1] and ends[-1] == span.end:
                runs = [(fleet.by_id[s.machine_id], len(s.layers)) for s in chain]
                best = min(best, cost_by_force(runs, fleet, model, query))
    return best


def best_partial_by_force(
    fleet: Fleet, model: ModelShape, shards: tuple[Shard, ...], query: RouteQuery
) -> float:
    span = query.span or LayerRange(0, model.layers)
    choices = [
        [fleet.by_id[s.machine_id] for s in shards if layer in s.layers]
        for layer in range(span.start, span.end)
    ]
    best = math.inf
    for assignment in product(*choices):
        runs: list[tuple[Machine, int]] = []
        for machine in assignment:
            if runs and runs[-1][0] is machine:
                runs[-1] = (machine, runs[-1][1] + 1)
            else:
                runs.append((machine, 1))
        best = min(best, cost_by_force(runs, fleet, model, query))
    return best


@settings(max_examples=250, deadline=None)
@given(st.data(), fleets(5, regions=2), st.booleans())
def test_route_equals_brute_force(data: st.DataObject, fleet: Fleet, partial: bool) -> None:
    shards = data.draw(placements(fleet, HEADED.layers))
    query = data.draw(queries(fleet, HEADED.layers, partial))
    force = best_partial_by_force if partial else best_whole_by_force
    best = force(fleet, HEADED, shards, query)
    found = route(prepare(fleet, HEADED, shards), query)
    if isinstance(found, NoRoute):
        assert math.isinf(best)
        assert found.layers and found.text
        return
    assert found.latency_ms == pytest.approx(best)
    span = query.span or LayerRange(0, HEADED.layers)
    cursor = span.start
    for stage in found.stages:
        assert stage.layers.start == cursor
        cursor = stage.layers.end
        assert stage.machine_id not in query.excluded
        holder = next(s for s in shards if s.machine_id == stage.machine_id)
        assert holder.layers.start <= stage.layers.start
        assert stage.layers.end <= holder.layers.end
        assert partial or stage in shards
    assert cursor == span.end
    runs = [(fleet.by_id[s.machine_id], len(s.layers)) for s in found.stages]
    assert cost_by_force(runs, fleet, HEADED, query) == pytest.approx(best)


@settings(max_examples=80, deadline=None)
@given(st.data(), fleets(5, regions=2))
def test_partial_slices_never_make_the_best_route_slower(data: st.DataObject, fleet: Fleet) -> None:
    shards = data.draw(placements(fleet, 6))
    table = prepare(fleet, HEADED, shards)
    whole, partial = route(table), route(table, RouteQuery(partial=True))
    if isinstance(whole, Route):
        assert isinstance(partial, Route)
        assert partial.latency_ms <= whole.latency_ms + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.data(), fleets(6))
def test_route_does_not_depend_on_the_order_of_shards(data: st.DataObject, fleet: Fleet) -> None:
    shards = data.draw(placements(fleet, 6))
    mixed = tuple(data.draw(st.permutations(shards)))
    for partial in (False, True):
        query = RouteQuery(partial=partial)
        assert route(prepare(fleet, HEADED, shards), query) == route(
            prepare(fleet, HEADED, mixed), query
        )


def test_one_two_and_three_machine_chains_cost_stages_plus_hops() -> None:
    fleet, model = fleet_of(6, 6, 6, rho_ms=10.0), toy_model(6)
    for cuts in ((0, 6), (0, 2, 6), (0, 2, 3, 6)):
        shards = tuple(shard(f"m{i:02}", a, b) for i, (a, b) in enumerate(pairwise(cuts)))
        found = route(prepare(fleet, model, shards))
        assert isinstance(found, Route)
        assert found.stages == shards
        assert found.latency_ms == pytest.approx(6.0 + 10.0 * (len(shards) - 1))
        assert found.latency_ms == pytest.approx(pipeline_ms(shards, fleet, model))


def test_w4_cost_is_tau_times_layers_not_the_average_of_a_layer() -> None:
    """A slow machine with one layer and a fast one with five must beat the reverse."""
    machines = (
        holding("a-slow", 6, tflops=0.5),
        holding("b-fast", 6, tflops=2.0),
        holding("c-fast", 6, tflops=2.0),
        holding("d-slow", 6, tflops=0.5),
    )
    shards = (
        shard("a-slow", 0, 1),
        shard("b-fast", 1, 6),
        shard("c-fast", 0, 2),
        shard("d-slow", 2, 6),
    )
    found = route(prepare(Fleet(machines), toy_model(6), shards))
    assert isinstance(found, Route)
    assert [s.machine_id for s in found.stages] == ["a-slow", "b-fast"]
    assert [leg.compute_ms for leg in found.legs] == pytest.approx([2.0, 2.5])


def test_missing_latency_both_ways_means_no_route() -> None:
    machines, model = (holding("a", 3), holding("b", 3)), toy_model(6)
    shards = (shard("a", 0, 3), shard("b", 3, 6))
    found = route(prepare(Fleet(machines, Links()), model, shards))
    assert isinstance(found, NoRoute)
    assert found.reason == "disconnected"
    one_way = Fleet(machines, links_of({("b", "a"): 4.0}))
    answered = route(prepare(one_way, model, shards))
    assert isinstance(answered, Route) and answered.legs[1].hop_ms == 4.0


def test_uncovered_layers_are_named() -> None:
    fleet, model = fleet_of(6, 6), toy_model(6)
    found = route(prepare(fleet, model, (shard("m00", 1, 3), shard("m01", 4, 6))))
    assert found == NoRoute(
        "uncovered", (LayerRange(0, 1), LayerRange(3, 4)), "no machine holds layers 0-0, 3-3"
    )
    nothing = route(prepare(fleet, model, ()))
    assert isinstance(nothing, NoRoute) and nothing.layers == (LayerRange(0, 6),)


def test_boundaries_that_do_not_meet_need_partial_slices() -> None:
    fleet, model = fleet_of(6, 6), toy_model(6)
    table = prepare(fleet, model, (shard("m00", 0, 4), shard("m01", 2, 6)))
    stuck = route(table)
    assert isinstance(stuck, NoRoute)
    assert (stuck.reason, stuck.layers) == ("disconnected", (LayerRange(4, 6),))
    assert isinstance(route(table, RouteQuery(partial=True)), Route)


def test_full_machine_is_masked_and_finite_before() -> None:
    fleet, model = fleet_of(6, rho_ms=1.0), toy_model(6)
    table = prepare(fleet, model, (shard("m00", 0, 6),))
    almost = route(table, RouteQuery(in_flight={"m00": 15}))
    assert isinstance(almost, Route) and math.isfinite(almost.latency_ms)
    full = route(table, RouteQuery(in_flight={"m00": 16}))
    assert isinstance(full, NoRoute)
    assert (full.reason, full.layers) == ("masked", (LayerRange(0, 6),))


def test_load_deflects_requests_to_the_other_replica() -> None:
    fleet, model = fleet_of(6, 6), toy_model(6)
    table = prepare(fleet, model, (shard("m00", 0, 6), shard("m01", 0, 6)))
    in_flight = {"m00": 0, "m01": 0}
    for _ in range(8):
        found = route(table, RouteQuery(in_flight=dict(in_flight)))
        assert isinstance(found, Route)
        in_flight[found.stages[0].machine_id] += 1
    assert in_flight == {"m00": 4, "m01": 4}


def test_w6_request_longer_than_the_kv_room_is_masked() -> None:
    model = ModelShape(4, 100, 0, 0, False, 8, 1e9, kv_bytes_per_token_per_layer=4)
    machine = Machine("a", 1600, 1.0, 1.0, weight_fraction=0.5, kv_fraction=0.25)
    table = prepare(Fleet((machine,)), model, (shard("a", 0, 4),))
    assert isinstance(route(table, RouteQuery(kv_needed_tokens=25)), Route)
    assert isinstance(route(table, RouteQuery(kv_needed_tokens=26)), NoRoute)
    busy = RouteQuery(kv_needed_tokens=25, kv_free_tokens={"a": 24})
    assert isinstance(route(table, busy), NoRoute)


def test_client_latency_to_first_and_last_counts() -> None:
    fleet, model = fleet_of(6, 6), toy_model(6)
    table = prepare(fleet, model, (shard("m00", 0, 6), shard("m01", 0, 6)))
    found = route(table, RouteQuery(client_rho_ms={"m00": 30.0, "m01": 4.0}))
    assert isinstance(found, Route)
    assert found.stages[0].machine_id == "m01"
    assert (found.legs[0].hop_ms, found.return_ms) == (4.0, 4.0)
    assert found.latency_ms == pytest.approx(6.0 + 8.0)


def test_replacement_of_a_middle_stage_counts_the_neighbours_that_stay() -> None:
    machines, model = tuple(holding(m, 2) for m in "abcd"), toy_model(6)
    near, far = 1.0, 40.0
    links = links_of(
        {("a", "b"): near, ("b", "d"): far, ("a", "c"): 5.0, ("c", "d"): 5.0, ("a", "d"): near}
    )
    shards = (shard("a", 0, 2), shard("b", 2, 4), shard("c", 2, 4), shard("d", 4, 6))
    table = prepare(Fleet(machines, links), model, shards)
    patch = route(table, RouteQuery(span=LayerRange(2, 4), before="a", after="d"))
    assert isinstance(patch, Route)
    assert patch.stages == (shard("c", 2, 4),)
    assert patch.latency_ms == pytest.approx(2.0 + 10.0)


def test_backups_share_no_machine_and_get_slower() -> None:
    machines = tuple(holding(f"m{i}", 6, tflops=8.0 - i) for i in range(6))
    fleet, model = Fleet(machines), toy_model(6)
    shards = tuple(shard(f"m{i}", 3 * (i % 2), 3 * (i % 2) + 3) for i in range(6))
    table = prepare(fleet, model, shards)
    primary = route(table)
    assert isinstance(primary, Route)
    backups = disjoint_backups(table, primary, 5)
    assert len(backups) == 2
    used = [s.machine_id for r in (primary, *backups) for s in r.stages]
    assert len(set(used)) == len(used) == 6
    assert primary.latency_ms <= backups[0].latency_ms <= backups[1].latency_ms


def test_full_range_machine_beats_a_useless_overlap() -> None:
    fleet, model = fleet_of(6, 6, 6, rho_ms=10.0), toy_model(6)
    shards = (shard("m00", 0, 6), shard("m01", 0, 4), shard("m02", 2, 6))
    for partial in (False, True):
        found = route(prepare(fleet, model, shards), RouteQuery(partial=partial))
        assert isinstance(found, Route) and found.stages == (shard("m00", 0, 6),)


def test_claims_of_strangers_and_beyond_the_model_are_dropped() -> None:
    fleet, model = fleet_of(6), toy_model(6)
    stranger, beyond = shard("x", 0, 6), shard("m00", 0, 7)
    table = prepare(fleet, model, (shard("m00", 0, 6), stranger, beyond))
    assert set(table.dropped) == {stranger, beyond}
    assert isinstance(route(table), Route)


def test_router_finds_a_chain_in_every_allocation() -> None:
    fleet, model = fleet_of(5, 4, 4, 3, 3, 2), toy_model(9, embedding_bytes=50)
    plan = allocate(fleet, model)
    found = route(prepare(fleet, model, plan.shards))
    assert isinstance(found, Route)
    assert found.latency_ms <= min(pipeline_ms(p, fleet, model) for p in plan.pipelines) + 1e-9


def test_the_way_back_to_the_client_may_differ_from_the_way_there() -> None:
    fleet, model = fleet_of(6, 6), toy_model(6)
    table = prepare(fleet, model, [shard("m00", 0, 6), shard("m01", 0, 6)])
    query = RouteQuery(
        partial=True,
        client_rho_ms={"m00": 1.0, "m01": 5.0},
        client_back_ms={"m00": 50.0, "m01": 7.0},
    )
    found = route(table, query)
    assert isinstance(found, Route)
    # m01 both ways, or m00 there and m01 back over 1 ms between them and a layer each.
    assert found.stages[-1].machine_id == "m01"
    assert found.return_ms == 7.0
    assert found.latency_ms == min(5.0 + 6.0 + 7.0, 1.0 + 6.0 + 1.0 + 7.0)


def test_a_chain_that_comes_back_to_machines_is_shortened_to_each_once() -> None:
    a, b, c = "abc"
    assert without_returns((shard(a, 0, 4), shard(b, 4, 8))) == (shard(a, 0, 4), shard(b, 4, 8))
    there_and_back = (
        shard(a, 0, 2),
        shard(b, 2, 3),
        shard(c, 3, 4),
        shard(b, 4, 5),
        shard(a, 5, 8),
    )
    assert without_returns(there_and_back) == (shard(a, 0, 8),)
    later = (shard(c, 0, 1), shard(a, 1, 2), shard(b, 2, 3), shard(a, 3, 4), shard(b, 4, 5))
    assert without_returns(later) == (shard(c, 0, 1), shard(a, 1, 4), shard(b, 4, 5))
