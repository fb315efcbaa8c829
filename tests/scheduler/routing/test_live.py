"""After any stream of changes the live router says what routing from nothing says, and mostly
without a search.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scheduler.routing.bounds as bounds_module
import scheduler.routing.routing_table as table_module
from benchmarks.scheduler.worlds import mixed
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.parallax.allocate import allocate
from scheduler.routing.bridge import bridge
from scheduler.routing.live import LiveRouter
from scheduler.routing.parallax_route import (
    Answer,
    NoRoute,
    Route,
    RouteQuery,
    disjoint_backups,
    route,
)
from scheduler.routing.routing_table import RoutingTable, prepare
from tests.scheduler.routing.worlds import cost_of, world
from tests.scheduler.worlds import fleet_of, links_of, shard, toy_model


class Mirror:
    """The same state kept apart, asked from nothing every time."""

    def __init__(self, fleet: Fleet, model: ModelShape, table: RoutingTable) -> None:
        self.fleet, self.model, self.table = fleet, model, table
        self.busy: dict[str, int] = {}
        self.room: dict[str, int] = {}
        self.shut: set[str] = set()

    def measured(self, machine_id: str, tau_ms: float, batch: int) -> None:
        machines = tuple(
            replace(m, tau_ms_per_layer=tau_ms, tau_batch=batch) if m.id == machine_id else m
            for m in self.fleet.machines
        )
        self.fleet = Fleet(machines, self.fleet.links)
        self.table = prepare(self.fleet, self.model, self.table.shards)

    def query(
        self, needed: int, marginal: bool, partial: bool = True, gone: frozenset[str] = frozenset()
    ) -> RouteQuery:
        return RouteQuery(
            partial=partial,
            in_flight=self.busy,
            kv_free_tokens=self.room,
            kv_needed_tokens=needed,
            excluded=frozenset(self.shut) | gone,
            marginal=marginal,
        )


def agree(live: Answer, mirror: Mirror, query: RouteQuery) -> None:
    fresh = route(mirror.table, query)
    if isinstance(fresh, NoRoute):
        assert isinstance(live, NoRoute)
        assert live == fresh
        return
    assert isinstance(live, Route)
    weighed = cost_of(mirror.table, query, live)
    assert weighed == pytest.approx(cost_of(mirror.table, query, fresh), rel=1e-9)
    assert math.isfinite(weighed)
    if not query.marginal:
        assert live.latency_ms == pytest.approx(weighed, rel=1e-9)


@pytest.mark.parametrize("few_machines", [0, 16])
@pytest.mark.parametrize("measured", ["none", "few", "all"])
def test_live_answers_equal_routing_from_nothing(
    monkeypatch: pytest.MonkeyPatch, few_machines: int, measured: str
) -> None:
    monkeypatch.setattr(table_module, "FEW_MACHINES", few_machines)
    monkeypatch.setattr(bounds_module, "SMALLEST", 6)
    for seed in range(8):
        follow(random.Random(f"{measured} {seed}"), measured, 60)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["none", "few", "half", "all"]))
def test_live_answers_equal_routing_from_nothing_for_any_stream(
    draw: random.Random, measured: str
) -> None:
    follow(draw, measured, 25)


def follow(draw: random.Random, measured: str, steps: int) -> None:
    fleet, model, shards = world(
        draw, draw.choice([2, 5, 12, 20]), draw.choice([2, 5, 9]), measured
    )
    table = prepare(fleet, model, shards)
    marginal, partial = draw.random() < 0.3, draw.random() < 0.6
    live = LiveRouter(table, partial=partial, marginal=marginal)
    mirror = Mirror(fleet, model, table)
    ids = [machine.id for machine in table.machines]
    for _ in range(steps):
        machine_id = draw.choice(ids)
        what = draw.randrange(8)
        if what < 3:
            mirror.busy[machine_id] = draw.choice([0, 1, 2, 5, 16])
            live.load(machine_id, mirror.busy[machine_id])
        elif what == 3:
            mirror.room[machine_id] = draw.choice([0, 50, 500, 10**9])
            live.room(machine_id, mirror.room[machine_id])
        elif what == 4:
            (mirror.shut.discard if machine_id in mirror.shut else mirror.shut.add)(machine_id)
            live.ready(machine_id, machine_id not in mirror.shut)
        elif what == 5:
            tau_ms, batch = draw.choice([0.3, 1.0, 2.5, 9.0]), draw.choice([1, 4])
            mirror.measured(machine_id, tau_ms, batch)
            live.measured(machine_id, tau_ms, batch)
        needed = draw.choice([0, 0, 0, 100])
        gone = (
            frozenset(i for i in ids if draw.random() < 0.2) if draw.random() < 0.5 else frozenset()
        )
        query = mirror.query(needed, marginal, partial, gone)
        found = live.route(needed, gone)
        if gone and isinstance(found, NoRoute):
            assert isinstance(route(mirror.table, query), NoRoute)
            continue
        agree(found, mirror, query)
        if draw.random() < 0.2 and isinstance(found, Route) and not marginal:
            backups = live.backups(2, needed, gone)
            expected = disjoint_backups(mirror.table, found, 2, query)
            assert [b.latency_ms for b in backups] == pytest.approx(
                [b.latency_ms for b in expected]
            )
            agree(live.route(needed), mirror, mirror.query(needed, marginal, partial))
        if draw.random() < 0.3 and isinstance(found, Route) and not marginal:
            stand_in(draw, live, mirror, found, query)


def stand_in(
    draw: random.Random, live: LiveRouter, mirror: Mirror, chain: Route, query: RouteQuery
) -> None:
    """Some stage of the chain is gone: who takes its layers between those that stay?"""
    at = draw.randrange(len(chain.stages))
    before = chain.stages[at - 1].machine_id if at else None
    after = chain.stages[at + 1].machine_id if at + 1 < len(chain.stages) else None
    span, others = chain.stages[at].layers, chain.machine_ids
    needed = query.kv_needed_tokens
    found = bridge(live, span, before, after, needed, query.excluded | others)
    fresh = route(
        mirror.table,
        replace(query, span=span, before=before, after=after, excluded=query.excluded | others),
    )
    assert isinstance(found, Route) == isinstance(fresh, Route)
    if isinstance(found, Route) and isinstance(fresh, Route):
        assert found.latency_ms == pytest.approx(fresh.latency_ms)
        assert (found.stages[0].layers.start, found.stages[-1].layers.end) == (span.start, span.end)


def test_unchanged_state_is_answered_from_the_cache() -> None:
    fleet, model = fleet_of(6, 6, 6), toy_model(6)
    live = LiveRouter(prepare(fleet, model, [shard(m.id, 0, 6) for m in fleet.machines]))
    first = live.route()
    assert live.route() is first
    assert (live.counts.cached, live.counts.searched) == (1, 1)
    live.load("m02", 0)  # nothing new
    assert live.version == 0 and live.route() is first


@pytest.mark.parametrize("partial", [False, True])
def test_without_machines_there_is_no_route(partial: bool) -> None:
    fleet = fleet_of()
    found = LiveRouter(prepare(fleet, toy_model(6), []), partial=partial).route()
    assert isinstance(found, NoRoute) and found.reason == "uncovered"


def test_rise_off_the_best_chain_is_dismissed_and_a_fall_is_not() -> None:
    fleet, model = fleet_of(6, 6, tflops=2.0), toy_model(6)
    live = LiveRouter(prepare(fleet, model, [shard(m.id, 0, 6) for m in fleet.machines]))
    live.route()
    live.load("m01", 3)
    assert live.counts.dismissed == 1
    live.measured("m01", 0.1, 1)
    assert live.counts.dismissed == 1
    found = live.route()
    assert isinstance(found, Route) and found.machine_ids == {"m01"}


def test_absurd_measurements_are_ignored() -> None:
    fleet, model = fleet_of(6), toy_model(6)
    live = LiveRouter(prepare(fleet, model, [shard("m00", 0, 6)]))
    before = live.route()
    for tau_ms, batch in ((math.nan, 1), (math.inf, 1), (-1.0, 1), (0.0, 1), (1.0, 0), (1e30, 1)):
        live.measured("m00", tau_ms, batch)
    live.load("m00", -7)
    assert live.version == 0 and live.route() is before


def test_most_random_updates_need_no_search_at_256_machines() -> None:
    """Of single random τ updates about half are dismissed at once and few change the answer."""
    fleet, model = mixed(256, "32b")
    live = LiveRouter(prepare(fleet, model, allocate(fleet, model).shards))
    draw = random.Random(7)
    machines = live.table.machines
    live.route()
    for _ in range(1000):
        g = draw.randrange(len(machines))
        tau_ms = live.table.paces.one(g, 1)[0] * draw.uniform(0.9, 1.5)
        live.measured(machines[g].id, tau_ms, 1)
        live.route()
    counts = live.counts
    assert counts.dismissed >= 500
    assert counts.searched <= 200


def test_links_cut_off_all_chains_and_bring_them_back() -> None:
    fleet = Fleet(fleet_of(3, 3).machines, links_of({("m00", "m01"): 1.0}))
    live = LiveRouter(prepare(fleet, toy_model(6), [shard("m00", 0, 3), shard("m01", 3, 6)]))
    assert isinstance(live.route(), Route)
    live.ready("m01", False)
    gone = live.route()
    assert isinstance(gone, NoRoute) and gone.reason == "masked"
    live.ready("m01", True)
    assert isinstance(live.route(), Route)


def test_whoever_does_not_stand_on_the_best_chain_is_excluded_without_a_search() -> None:
    fleet, model = fleet_of(6, 6, 6), toy_model(6)
    live = LiveRouter(prepare(fleet, model, [shard(m.id, 0, 6) for m in fleet.machines]))
    first = live.route()
    assert isinstance(first, Route) and first.machine_ids == {"m00"}
    assert live.route(excluded={"m01", "m02"}) is first
    other = live.route(excluded={"m00"})
    assert isinstance(other, Route) and other.machine_ids == {"m01"}
    assert live.route() is first and live.counts.searched == 1
    assert isinstance(live.route(excluded={"m00", "m01", "m02"}), NoRoute)


def test_needs_that_mask_the_same_machines_share_an_answer() -> None:
    fleet, model = fleet_of(6, 6), toy_model(6)
    live = LiveRouter(prepare(fleet, model, [shard(m.id, 0, 6) for m in fleet.machines]))
    live.room("m00", 100)
    live.room("m01", 1000)
    assert live.route(90) is live.route(50) is live.route(100)
    assert live.counts.searched == 1
    bigger = live.route(101)
    assert isinstance(bigger, Route) and bigger.machine_ids == {"m01"}
    smaller = live.route(7)
    assert isinstance(smaller, Route) and smaller.machine_ids == {"m00"}
