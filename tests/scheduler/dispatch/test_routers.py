"""Every way of choosing machines: what it promises, and what makes it itself."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduler.fixed_router import FixedRouter
from scheduler.fleet.errors import FleetError
from scheduler.flow.max_flow import max_flow
from scheduler.simulate.dispatch.estimate import KvEstimate
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.dispatch.router import Route, Router
from tests.scheduler.simulate.toy import MODEL, fleet_of, machine, placed

HOME = "coordinator"
#: Two machines for each half of the model.
PLACED = placed(a=(0, 2), b=(0, 2), c=(2, 4), d=(2, 4))
FLOW = {
    (HOME, "a"): 30.0,
    (HOME, "b"): 10.0,
    ("a", "c"): 20.0,
    ("a", "d"): 10.0,
    ("b", "d"): 10.0,
    ("c", HOME): 20.0,
    ("d", HOME): 20.0,
}
NAMES = ("iwrr", "iwrr_paper", "fixed")


def fleet(kv_tokens: int = 100_000):
    return fleet_of(*(machine(name, kv_tokens=kv_tokens) for name in "abcd"))


def router(name: str, kv_tokens: int = 100_000, **marks) -> Router:
    world = fleet(kv_tokens)
    if name.startswith("iwrr"):
        return IwrrRouter.of(world, MODEL, PLACED, FLOW, by_load=name == "iwrr", **marks)
    kv = KvEstimate(world, MODEL, PLACED, **marks)
    return FixedRouter([placed(a=(0, 2), c=(2, 4)), placed(b=(0, 2), d=(2, 4))], kv)


def path(route: Route) -> str:
    return "".join(shard.machine_id for shard in route.stages)


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.one_of(st.integers(1, 2000), st.just(0)), max_size=60))
@settings(max_examples=25, deadline=None)
def test_routes_cover_the_model_and_never_pass_the_mark(name, moves):
    r = router(name, kv_tokens=5000)
    running: list[Route] = []
    for tokens in moves:
        if tokens == 0 and running:
            r.finish(running.pop(0))
        elif tokens and (route := r.choose(tokens)) is not None:
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
    assert path(r.choose(100)) == "bd"
    r.set_present("b", False)
    assert r.choose(1) is None
    r.set_present("a", True)
    r.set_present("c", True)
    assert "b" not in path(r.choose(100))


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_request_is_let_in_once_another_has_ended(name):
    r = router(name, kv_tokens=2000, output_tokens=0)
    taken = []
    while (route := r.choose(900)) is not None:
        taken.append(route)
    assert 1 <= len(taken) <= 2
    r.finish(taken[0])
    assert r.choose(900) is not None


def test_iwrr_of_the_paper_serves_in_proportion_to_the_flow_and_without_bursts():
    r = router("iwrr_paper")
    firsts = [path(r.choose(1 + i % 7))[0] for i in range(400)]
    assert Counter(firsts) == {"a": 300, "b": 100}
    gaps = [i for i, first in enumerate(firsts) if first == "b"]
    assert {later - earlier for earlier, later in pairwise(gaps)} <= {3, 4, 5}


def test_iwrr_by_load_balances_tokens_not_requests():
    r = router("iwrr", output_tokens=0, high_water=1.0)
    tokens: Counter[str] = Counter()
    for i in range(2000):
        amount = 500 if i % 2 else 5
        route = r.choose(amount)
        tokens[path(route)[0]] += amount
        r.finish(route)
    assert tokens["a"] / tokens["b"] == pytest.approx(3.0, rel=0.02)


def test_iwrr_counts_decode_steps_as_load():
    r = router("iwrr")
    first = r.choose(30)
    for _ in range(300):
        r.note_step(first)
    others = [path(r.choose(30))[0] for _ in range(3)]
    assert path(first)[0] == "a" and others == ["b", "b", "b"]


def test_iwrr_leaves_out_links_with_less_than_five_percent_of_the_flow():
    flow = dict(FLOW) | {("a", "c"): 29.0, ("a", "d"): 1.0, ("c", HOME): 29.0, ("d", HOME): 11.0}
    r = IwrrRouter.of(fleet(), MODEL, PLACED, flow)
    assert "ad" not in {path(r.choose(100)) for _ in range(100)}


def test_iwrr_puts_every_load_back_when_it_refuses():
    r = router("iwrr", kv_tokens=1000, output_tokens=0)
    r.choose(100)
    for machine_id in "cd":
        r.kv.used[machine_id] = r.kv.capacity[machine_id]
    before = list(r._loads), dict(r.kv.used)
    assert r.choose(333) is None
    assert (list(r._loads), dict(r.kv.used)) == before


def test_iwrr_follows_a_new_flow_and_old_routes_still_end():
    r = router("iwrr")
    old = r.choose(100)
    r.reweigh({(HOME, "b"): 5.0, ("b", "c"): 5.0, ("c", HOME): 5.0})
    assert {path(r.choose(100)) for _ in range(20)} == {"bc"}
    r.note_step(old)
    r.finish(old)
    with pytest.raises(FleetError, match="c → a"):
        r.reweigh({("c", "a"): 1.0})


def test_iwrr_runs_on_the_flow_that_the_planner_finds():
    world = fleet()
    flow = max_flow(world, MODEL, PLACED).links
    assert IwrrRouter.of(world, MODEL, PLACED, flow).choose(100) is not None


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
