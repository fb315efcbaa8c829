"""Random small worlds for routing, and the slow search that every fast one must agree with."""

from __future__ import annotations

import math
import random

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape, Shard
from scheduler.routing.parallax_route import Route
from scheduler.routing.query import Priced, RouteQuery
from scheduler.routing.routing_table import RoutingTable


def world(
    draw: random.Random, machines: int, layers: int, measured: str
) -> tuple[Fleet, ModelShape, tuple[Shard, ...]]:
    """Unequal machines in three regions; `measured` says how many pairs: none, few, half or all."""
    hosts = tuple(
        Machine(
            f"m{i:03}",
            1000,
            draw.choice([1.0, 2.0, 3.5]),
            draw.choice([1.0, 1e3]),
            f"r{draw.randrange(3)}",
            access_ms=draw.choice([0.0, 1.5, 3.2]),
            tau_ms_per_layer=draw.choice([None, None, 0.5, 4.0]),
        )
        for i in range(machines)
    )
    share = {"none": 0.0, "few": 0.1, "half": 0.5, "all": 1.0}[measured]
    pairs = {
        (a.id, b.id): Link(draw.choice([0.5, 3.0, 10.0, 40.0, math.inf, draw.random() * 20]))
        for a in hosts
        for b in hosts
        if a is not b and draw.random() < share
    }
    regions = {
        (f"r{i}", f"r{j}"): Link(draw.choice([1.0, 5.0, 30.0, 100.0]), draw.choice([None, 100.0]))
        for i in range(3)
        for j in range(i, 3)
        if draw.random() < 0.9
    }
    if measured == "all" and draw.random() < 0.5:
        regions = {}
    fleet = Fleet(hosts, Links(pairs, regions, draw.choice([None, 12.0])))
    model = ModelShape(
        layers,
        100,
        10,
        draw.choice([10, 900_000]),
        False,
        8,
        1e9,
        head_flops_per_token=draw.choice([0.0, 2e9]),
        activation_bytes_per_token=1000,
    )
    shards = []
    for host in hosts:
        start = draw.randrange(layers)
        shards.append(Shard(host.id, LayerRange(start, draw.randint(start + 1, layers))))
    return fleet, model, tuple(shards)


def any_query(draw: random.Random, fleet: Fleet, layers: int) -> RouteQuery:
    ids = [machine.id for machine in fleet.machines]
    span = None
    if draw.random() < 0.3:
        start = draw.randrange(layers)
        span = LayerRange(start, draw.randint(start + 1, layers))
    return RouteQuery(
        partial=True,
        excluded=frozenset(draw.sample(ids, min(len(ids), draw.choice([0, 0, 1, 3])))),
        in_flight={i: draw.choice([0, 0, 1, 3, 16]) for i in ids},
        client_rho_ms={i: draw.choice([0.0, 3.0, 40.0]) for i in ids}
        if draw.random() < 0.4
        else {},
        span=span,
        before=draw.choice([None, None, ids[0]]),
        after=draw.choice([None, None, ids[-1]]),
        marginal=draw.random() < 0.3,
    )


def least_cost(table: RoutingTable, query: RouteQuery) -> float:
    """Layer by layer over every holder, from the recursion alone."""
    span = query.span or LayerRange(0, table.model.layers)
    prices = Priced(table, query, span.end == table.model.layers)
    everyone = range(len(table.machines))
    weights = [prices.one(g) for g in everyone]
    edges = [prices.edge_ms(g) for g in everyone]
    reached: dict[int, float] = {}
    for layer in range(span.start, span.end):
        holders = {
            int(g)
            for g, shard in zip(table.shard_machine, table.shards, strict=True)
            if layer in shard.layers
        }
        reached = {
            g: weights[g][0]
            + (
                edges[g][0]
                if layer == span.start
                else min(
                    (cost + table.hops.between(a, g) for a, cost in reached.items()),
                    default=math.inf,
                )
            )
            for g in holders
        }
    return min(
        (cost + weights[g][1] + edges[g][1] for g, cost in reached.items()), default=math.inf
    )


def cost_of(table: RoutingTable, query: RouteQuery, route: Route) -> float:
    """What a route's stages weigh, from the formula alone."""
    span = query.span or LayerRange(0, table.model.layers)
    prices = Priced(table, query, span.end == table.model.layers)
    total, before = 0.0, -1
    cursor = span.start
    for machine_id, layers in route.stages:
        assert layers.start == cursor
        cursor = layers.end
        g = table.index[machine_id]
        total += prices.edge_ms(g)[0] if before < 0 else table.hops.between(before, g)
        total += prices.one(g)[0] * len(layers)
        before = g
    assert cursor == span.end
    return total + prices.one(before)[1] + prices.edge_ms(before)[1]
