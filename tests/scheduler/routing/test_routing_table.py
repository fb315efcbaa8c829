"""A table is made in well under a second for 10,000 machines and knows where switching can pay."""

from __future__ import annotations

import time

from benchmarks.scheduler.routing import sliced
from benchmarks.scheduler.worlds import cluster, mixed, shipped_placement
from scheduler.fleet.costs import head_ms, tau_ms_per_layer
from scheduler.fleet.fleet import Fleet
from scheduler.routing.parallax_route import Route, RouteQuery, route
from scheduler.routing.routing_table import prepare
from tests.scheduler.worlds import fleet_of, links_of, shard, toy_model


def test_ten_thousand_machines_are_prepared_and_routed_exactly_in_few_states() -> None:
    fleet, model = mixed(10_000, "32b")
    placement = sliced(fleet, model, 4)
    start = time.process_time()
    table = prepare(fleet, model, placement)
    assert time.process_time() - start < 1.0
    found = route(table, RouteQuery(partial=True))
    assert isinstance(found, Route)
    assert table.states_within(found.latency_ms) < 500
    whole = route(table)
    assert isinstance(whole, Route) and found.latency_ms <= whole.latency_ms


def test_grid_is_boundaries_and_the_layers_next_to_the_ends() -> None:
    fleet, model = fleet_of(20, 20), toy_model(20)
    table = prepare(fleet, model, [shard("m00", 0, 12), shard("m01", 8, 20)])
    assert table.grid == (0, 1, 8, 12, 19, 20)
    assert [on.tolist() for on in table.holders] == [[0], [0], [0, 1], [1], [1]]


def test_without_the_triangle_inequality_every_layer_is_a_place_to_switch() -> None:
    links = links_of({("m00", "m01"): 50.0, ("m00", "m02"): 1.0, ("m01", "m02"): 1.0})
    fleet = Fleet(fleet_of(6, 6, 6).machines, links)
    table = prepare(fleet, toy_model(6), [shard(m.id, 0, 6) for m in fleet.machines])
    assert table.grid == tuple(range(7))


def test_profiles_and_their_batches_reach_the_router() -> None:
    fleet, model = cluster("single24")
    placement, _ = shipped_placement("single24", "helix", model)
    table = prepare(fleet, model, placement)
    query = RouteQuery(partial=True, in_flight={m.id: 40 for m in fleet.machines})
    found = route(table, query)
    assert isinstance(found, Route)
    for leg in found.legs:
        machine = fleet.by_id[leg.machine_id]
        assert leg.compute_ms == tau_ms_per_layer(machine, model, 41) * len(leg.layers)
    assert found.legs[-1].head_ms == head_ms(fleet.by_id[found.legs[-1].machine_id], model, 41)
