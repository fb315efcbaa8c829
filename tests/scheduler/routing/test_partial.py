"""Lists, bounded lists and arrays find the same least cost as a search layer by layer, whatever is
measured.
"""

from __future__ import annotations

import math
import random

import pytest

import scheduler.routing.bounds as bounds_module
import scheduler.routing.partial as partial_module
import scheduler.routing.routing_table as table_module
from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, Links, Machine, ModelShape
from scheduler.routing.parallax_route import NoRoute, Route, RouteQuery, disjoint_backups, route
from scheduler.routing.routing_table import prepare
from tests.scheduler.routing.worlds import any_query, cost_of, least_cost, world
from tests.scheduler.worlds import links_of, shard

WORLDS = 300


@pytest.mark.parametrize("measured", ["none", "few", "half", "all"])
@pytest.mark.parametrize(
    ("few_machines", "smallest", "most_pairs", "at_once"),
    [(16, 48, 6000, 384), (0, 4, 6000, 384), (0, 4, 60, 384), (0, 4, 60, 0)],
    ids=["lists", "bounded lists", "arrays of all", "arrays of some"],
)
def test_every_way_to_search_is_exact(
    monkeypatch: pytest.MonkeyPatch,
    measured: str,
    few_machines: int,
    smallest: int,
    most_pairs: int,
    at_once: int,
) -> None:
    monkeypatch.setattr(table_module, "FEW_MACHINES", few_machines)
    monkeypatch.setattr(bounds_module, "SMALLEST", smallest)
    monkeypatch.setattr(bounds_module, "MOST_PAIRS", most_pairs)
    monkeypatch.setattr(partial_module, "ALL_AT_ONCE", at_once)
    for seed in range(WORLDS // 4):
        draw = random.Random(f"{measured} {seed}")
        layers = draw.choice([1, 2, 3, 6, 12])
        fleet, model, shards = world(draw, draw.choice([1, 3, 6, 10, 30]), layers, measured)
        query = any_query(draw, fleet, layers)
        table = prepare(fleet, model, shards)
        best = least_cost(table, query)
        found = route(table, query)
        if isinstance(found, NoRoute):
            assert math.isinf(best), seed
        else:
            assert cost_of(table, query, found) == pytest.approx(best, rel=1e-9), seed
            if not query.marginal:
                assert found.latency_ms == pytest.approx(best, rel=1e-9), seed


def test_single_layer_next_to_the_end_pays_where_the_head_is_slow() -> None:
    """The last switch lies one layer before the end, where no shard has a boundary."""
    fast_layers = Machine("a", 1000, 10.0, 1.0)
    fast_head = Machine("b", 1000, 1.0, 1e6)
    model = ModelShape(6, 100, 0, 10_000_000, False, 8, 1e9)
    fleet = Fleet((fast_layers, fast_head), Links(default_ms=0.5))
    found = route(
        prepare(fleet, model, (shard("a", 0, 6), shard("b", 0, 6))), RouteQuery(partial=True)
    )
    assert isinstance(found, Route)
    assert found.stages == (shard("a", 0, 5), shard("b", 5, 6))


def test_relay_nearer_than_the_direct_hop_is_visited_for_one_layer() -> None:
    machines = tuple(Machine(m, 1000, t, 1e6) for m, t in (("a", 4.0), ("b", 0.5), ("c", 4.0)))
    links = links_of({("a", "b"): 1.0, ("b", "c"): 1.0, ("a", "c"): 100.0})
    shards = (shard("a", 0, 8), shard("b", 0, 8), shard("c", 5, 10))
    table = prepare(Fleet(machines, links), ModelShape(10, 100, 0, 0, False, 8, 1e9), shards)
    assert not table.hops.is_metric
    found = route(table, RouteQuery(partial=True))
    assert isinstance(found, Route)
    assert [len(s.layers) for s in found.stages if s.machine_id == "b"] == [1]


def test_rest_of_a_request_is_routed_from_the_layer_it_stopped_at() -> None:
    machines = tuple(Machine(m, 1000, t, 1e6) for m, t in (("a", 4.0), ("b", 2.0), ("c", 1.0)))
    model = ModelShape(8, 100, 0, 0, False, 8, 1e9)
    shards = (shard("a", 0, 8), shard("b", 2, 8), shard("c", 0, 8))
    table = prepare(Fleet(machines, Links(default_ms=1.0)), model, shards)
    rest = route(
        table,
        RouteQuery(partial=True, span=LayerRange(3, 8), before="c", excluded=frozenset({"a"})),
    )
    assert isinstance(rest, Route)
    assert rest.stages == (shard("b", 3, 8),)
    assert rest.legs[0].hop_ms == 1.0


def test_backups_with_partial_slices_share_no_machine_and_get_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_module, "FEW_MACHINES", 0)
    monkeypatch.setattr(bounds_module, "SMALLEST", 4)
    for seed in range(40):
        draw = random.Random(seed)
        fleet, model, shards = world(draw, 24, 6, "none")
        table, query = prepare(fleet, model, shards), RouteQuery(partial=True)
        primary = route(table, query)
        if isinstance(primary, NoRoute):
            continue
        backups = disjoint_backups(table, primary, 3, query)
        chain = [primary, *backups]
        used = [stage.machine_id for found in chain for stage in found.stages]
        assert sum(len(found.machine_ids) for found in chain) == len(set(used))
        latencies = [found.latency_ms for found in chain]
        assert latencies == sorted(latencies)
        for i, backup in enumerate(backups):
            gone = frozenset().union(*(found.machine_ids for found in chain[: i + 1]))
            least = least_cost(table, RouteQuery(partial=True, excluded=gone))
            assert backup.latency_ms == pytest.approx(least, rel=1e-9)
