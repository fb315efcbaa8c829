"""Every way of choosing machines: what it promises, and what makes it itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.routers.chance import RandomRouter, ShortestQueueRouter
from benchmarks.scheduler.routers.fixed import FixedRouter
from benchmarks.scheduler.routers.petals import PetalsRouter
from benchmarks.scheduler.routers.stepwise import StepwiseSimulation
from benchmarks.scheduler.routers.swarm import SwarmRouter
from scheduler.fleet.errors import FleetError
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.dispatch.router import RequestRoute, Router
from scheduler.simulate.dispatch.topology import Topology
from scheduler.simulate.options import FleetChange, SimOptions
from scheduler.simulate.simulation import simulate
from scheduler.simulate.traces import poisson
from scheduler.simulate.work import ClosedLoop
from tests.scheduler.simulate.dispatch.test_iwrr import FLOW, PLACED, fleet, path
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine, placed

NAMES = ("iwrr", "iwrr_paper", "swarm", "random", "shortest", "petals", "fixed")


def router(name: str, kv_tokens: int = 100_000, **marks) -> Router:
    world = fleet(kv_tokens)
    if name.startswith("iwrr"):
        return IwrrRouter.of(world, MODEL, PLACED, FLOW, by_load=name == "iwrr", **marks)
    kv = KvEstimate(world, MODEL, PLACED, **marks)
    if name == "fixed":
        return FixedRouter([placed(a=(0, 2), c=(2, 4)), placed(b=(0, 2), d=(2, 4))], kv)
    topology = Topology.of(world, MODEL, PLACED)
    if name == "petals":
        return PetalsRouter(topology, kv, world, MODEL, masks_full=True)
    by_hop = {"swarm": SwarmRouter, "random": RandomRouter, "shortest": ShortestQueueRouter}
    return by_hop[name](topology, kv, masks_full=True)


def whole(r: Router, prompt_tokens: int = 100) -> RequestRoute | None:
    """A route with all its stages, as the simulation extends it."""
    route = r.choose(prompt_tokens)
    while route is not None and not getattr(route, "is_complete", True):
        if not r.extend(route):
            r.finish(route)
            return None
    return route


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.one_of(st.integers(1, 2000), st.just(0)), max_size=60))
@settings(max_examples=25, deadline=None)
def test_routes_cover_the_model_and_never_pass_the_mark(name, moves):
    r = router(name, kv_tokens=5000)
    running: list[RequestRoute] = []
    for tokens in moves:
        if tokens == 0 and running:
            r.finish(running.pop(0))
        elif tokens and (route := whole(r, tokens)) is not None:
            running.append(route)
            edges = [(s.layers.start, s.layers.end) for s in route.stages]
            assert edges == [(0, 2), (2, 4)]
        for machine_id, used in r.kv.used.items():
            assert 0 <= used <= 0.85 * r.kv.capacity[machine_id]
    for route in running:
        r.finish(route)
    assert set(r.kv.used.values()) == {0}


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_sent_to_an_absent_machine_and_no_room_means_wait(name):
    r = router(name)
    for machine_id in "ac":
        r.set_present(machine_id, False)
    assert path(whole(r, 100)) == "bd"
    r.set_present("b", False)
    assert r.choose(1) is None
    r.set_present("a", True)
    r.set_present("c", True)
    assert "b" not in path(whole(r, 100))


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_request_is_let_in_once_another_has_ended(name):
    r = router(name, kv_tokens=2000, output_tokens=0)
    taken = []
    while (route := whole(r, 900)) is not None:
        taken.append(route)
    assert 1 <= len(taken) <= 2
    r.finish(taken[0])
    assert whole(r, 900) is not None


def test_swarm_visits_machines_in_inverse_proportion_to_their_times():
    r = router("swarm")
    seen: Counter[str] = Counter()
    for _ in range(900):
        route = whole(r)
        seen[path(route)[0]] += 1
        r.note_seconds(route, 0, 0.1 if path(route)[0] == "a" else 0.2)
        r.finish(route)
    assert seen["a"] / seen["b"] == pytest.approx(2.0, rel=0.05)


def test_swarm_weighs_a_new_time_four_to_one():
    r = router("swarm")
    route = whole(r)
    r.note_seconds(route, 0, 1.05)
    assert r._average_s[route.hops[0]] == pytest.approx(0.05 + 0.8)


def test_random_is_seeded_and_may_follow_weights():
    topology, kv = Topology.of(fleet(), MODEL, PLACED), KvEstimate(fleet(), MODEL, PLACED)
    a, b = (RandomRouter(topology, kv, seed=3) for _ in range(2))
    assert [path(whole(a)) for _ in range(20)] == [path(whole(b)) for _ in range(20)]
    weighted = RandomRouter(topology, kv, weights=FLOW)
    paths = Counter(path(whole(weighted)) for _ in range(4000))
    assert (paths["ac"] + paths["ad"]) / 4000 == pytest.approx(0.75, abs=0.03)
    assert paths["bc"] == 0


def test_shortest_queue_looks_at_each_hop():
    r = router("shortest")
    r.waiting_at = {"a": 5, "b": 1, "c": 0, "d": 2}.__getitem__
    assert {path(whole(r)) for _ in range(20)} == {"bc"}


def test_petals_takes_the_fastest_path_until_its_caches_are_short():
    world = fleet_of(
        machine("a", decode_ms=5, kv_tokens=1000), machine("b"), machine("c"), machine("d")
    )
    kv = KvEstimate(world, MODEL, PLACED, output_tokens=0)
    r = PetalsRouter(Topology.of(world, MODEL, PLACED), kv, world, MODEL)
    assert [path(whole(r, 400))[0] for _ in range(3)] == ["a", "a", "b"]


def test_fixed_pipelines_take_turns_by_weight():
    kv = KvEstimate(fleet(), MODEL, PLACED)
    pipelines = [placed(a=(0, 2), c=(2, 4)), placed(b=(0, 2), d=(2, 4))]
    assert [path(FixedRouter(pipelines, kv).choose(100))] == ["ac"]
    r = FixedRouter(pipelines, kv, weights=[3.0, 1.0])
    assert Counter(path(r.choose(100)) for _ in range(80)) == {"ac": 60, "bd": 20}


def test_a_pipeline_that_comes_back_does_not_catch_up():
    kv = KvEstimate(fleet(), MODEL, PLACED, output_tokens=0)
    r = FixedRouter([placed(a=(0, 2), c=(2, 4)), placed(b=(0, 2), d=(2, 4))], kv)
    r.set_present("b", False)
    for _ in range(50):
        r.finish(r.choose(100))
    r.set_present("b", True)
    assert Counter(path(r.choose(100)) for _ in range(10)) == {"ac": 5, "bd": 5}


def test_fixed_pipelines_without_weight_are_errors():
    kv = KvEstimate(fleet(), MODEL, PLACED)
    for weights in ([0.0], [1.0, 1.0]):
        with pytest.raises(FleetError):
            FixedRouter([PLACED[:1]], kv, weights=weights)


@pytest.mark.parametrize("chunk_tokens", [None, 64])
@pytest.mark.parametrize("frames", [False, True])
@pytest.mark.parametrize("kind", [RandomRouter, ShortestQueueRouter, SwarmRouter])
def test_routers_that_choose_hop_by_hop_serve_everything(kind, frames, chunk_tokens):
    world = fleet_of(*(machine(n, decode_ms=0.5, prefill_ms=0.01) for n in "abcd"))
    r = kind(Topology.of(world, MODEL, PLACED), KvEstimate(world, MODEL, PLACED))
    trace = poisson(3, 40, requests_per_s=5.0)
    options = SimOptions(
        0,
        200,
        chunk_tokens=chunk_tokens,
        frames=frames,
        changes=(FleetChange(3.0, "b", "crash"), FleetChange(8.0, "b", "join")),
    )
    sim = StepwiseSimulation(world, MODEL, PLACED, r, trace, options)
    report = sim.run()
    assert report.finished_requests == 40
    assert report.decode.count == sum(a.output_tokens - 1 for a in trace)
    assert all(worker.ledger.used_pages == 0 for worker in sim.workers.values())
    assert set(r.kv.used.values()) == {0}


def test_a_router_that_knows_the_whole_route_is_served_as_the_product_serves_it():
    world = fleet_of(*(machine(n, decode_ms=0.5, prefill_ms=0.01) for n in "abcd"))
    reports = []
    for run in (simulate, lambda *asked: StepwiseSimulation(*asked).run()):
        kv = KvEstimate(world, MODEL, PLACED)
        r = PetalsRouter(Topology.of(world, MODEL, PLACED), kv, world, MODEL)
        work = poisson(3, 40, requests_per_s=5.0)
        reports.append(run(world, MODEL, PLACED, r, work, SimOptions(0, 200)))
    assert reports[0] == reports[1]
    assert reports[0].finished_requests == 40


def test_swarm_learns_what_a_step_takes_from_one_machine_to_the_next():
    world = fleet_of(machine("a", decode_ms=40.0), *(machine(n) for n in "bcd"))
    r = SwarmRouter(Topology.of(world, MODEL, PLACED), KvEstimate(world, MODEL, PLACED))
    lengths = poisson(1, 30)
    work = ClosedLoop(lengths, initial=4, fill=0.05)
    StepwiseSimulation(world, MODEL, PLACED, r, work, SimOptions(0, 60)).run()
    to = {hop.target_id: r._average_s[hop.id] for hop in r.topology.out[0]}
    assert to["a"] > 1.5 * to["b"] > 0.02
