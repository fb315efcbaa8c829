"""Interleaved weighted round robin serves by the flow, and takes back what it refuses."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from scheduler.fleet.errors import FleetError
from scheduler.flow.max_flow import max_flow
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.dispatch.router import RequestRoute
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


def fleet(kv_tokens: int = 100_000):
    return fleet_of(*(machine(name, kv_tokens=kv_tokens) for name in "abcd"))


def router(name: str = "iwrr", kv_tokens: int = 100_000, **marks) -> IwrrRouter:
    world = fleet(kv_tokens)
    return IwrrRouter.of(world, MODEL, PLACED, FLOW, by_load=name == "iwrr", **marks)


def path(route: RequestRoute) -> str:
    return "".join(shard.machine_id for shard in route.stages)


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
    before = list(r._turns._loads), dict(r.kv.used)
    assert r.choose(333) is None
    assert (list(r._turns._loads), dict(r.kv.used)) == before


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
