"""How long does one exact route with partial slices take, from 4 to 10,000 machines?"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

from benchmarks.scheduler.worlds import median_ms, mixed
from benchmarks.table import Row
from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard
from scheduler.parallax.allocate import allocate
from scheduler.routing.live import LiveRouter
from scheduler.routing.parallax_route import Answer, Route, RouteQuery, disjoint_backups, route
from scheduler.routing.routing_table import RoutingTable, prepare

PARTIAL = RouteQuery(partial=True)
STATES = 9
BACKUPS = 3
#: (machines, most ms, the peer's)
SIZES = ((256, 0.5, "6.63 ms claimed, 116 ms as shipped"), (1024, 1.0, "2.7 s as shipped"))
MOST_NODES = 10_000
QUICK = {"SIZES": SIZES[:1], "MOST_NODES": 256}


def sliced(fleet: Fleet, model: ModelShape, step: int) -> Placement:
    """Every machine full, its slice starting and ending on a grid of `step` layers, drawn
    by seed.
    """
    draw = random.Random(step)
    shards = []
    for machine in fleet.machines:
        caps = capacities(machine, model)
        layers = min(caps.both, model.layers) // step * step
        if layers:
            start = draw.randrange((model.layers - layers) // step + 1) * step
            shards.append(Shard(machine.id, LayerRange(start, start + layers)))
    return tuple(shards)


def states(table: RoutingTable) -> list[RouteQuery]:
    """Idle, loaded at random, and with a third of the machines full."""
    draw = random.Random(1)
    ids = list(table.index)
    loaded = [{i: draw.randrange(16) for i in ids} for _ in range(STATES // 2)]
    full = [{i: 16 if draw.random() < 1 / 3 else 8 for i in ids} for _ in range(STATES // 2)]
    return [PARTIAL, *(RouteQuery(partial=True, in_flight=busy) for busy in (*loaded, *full))]


def timed(call: Callable[[RouteQuery], Answer], queries: list[RouteQuery]) -> tuple[float, float]:
    """Median and worst over states of the median time, ms."""
    found = []
    for query in queries:
        taken, answer = median_ms(lambda query=query: call(query), 15)  # type: ignore[misc]
        if isinstance(answer, Route):
            found.append(taken)
    return median(found), max(found)


def live_ms(table: RoutingTable) -> tuple[float, float]:
    """Time of an unchanged answer, and of one after a change on the best chain."""
    live = LiveRouter(table)
    live.route()
    cached = median_ms(lambda: [live.route() for _ in range(100)], 15)[0] / 100
    busy = 0

    def changed() -> Answer:
        nonlocal busy
        found = live.route()
        assert isinstance(found, Route)
        busy = 1 - busy
        live.load(found.stages[0].machine_id, busy)
        return live.route()

    return cached, median_ms(changed, 101)[0]


def rows() -> list[Row]:
    """One row for each size, and one for backups."""
    table = []
    fleet, model = mixed(4, "32b")
    found = prepare(fleet, model, allocate(fleet, model).shards)
    cached, changed = live_ms(found)
    from_nothing = timed(lambda query: route(found, query), [PARTIAL])[0]
    table.append(
        _row(
            "4 nodes",
            0.0136,
            cached,
            f"unchanged state by version {cached:.4f} ms, one change {changed:.4f} ms,"
            f" list DP from nothing {from_nothing:.4f} ms",
            "0.0136 ms claimed, 0.22 ms as shipped",
        )
    )
    backups: list[str] = []
    slowest_backup = 0.0
    for nodes, reach, peer in SIZES:
        told, worst_median = [], 0.0
        for name in ("32b", "70b"):
            fleet, model = mixed(nodes, name)
            found = prepare(fleet, model, allocate(fleet, model).shards)
            middle, worst = timed(lambda query, t=found: route(t, query), states(found))
            cached, changed = live_ms(found)
            told.append(
                f"{name}: {middle:.3f} ms (slowest state {worst:.3f}),"
                f" live {changed:.3f}, unchanged {cached:.4f}"
            )
            worst_median = max(worst_median, middle)
            first = route(found, PARTIAL)
            assert isinstance(first, Route)
            taken = median_ms(
                lambda t=found, p=first: disjoint_backups(t, p, BACKUPS, PARTIAL), 25
            )[0]
            backups.append(f"{nodes} {name} {middle + taken:.2f} ms")
            slowest_backup = max(slowest_backup, middle + taken)
        table.append(_row(f"{nodes} nodes", reach, worst_median, "; ".join(told), peer))
    told, aligned = [], 0.0
    for step, name in ((4, "slices on a 4-layer grid"), (1, "unaligned")):
        fleet, model = mixed(MOST_NODES, "32b")
        found = prepare(fleet, model, sliced(fleet, model, step))
        middle, worst = timed(lambda query, t=found: route(t, query), states(found))
        aligned = aligned or middle
        told.append(
            f"{name} ({len(found.grid) - 1} segments): {middle:.3f} ms (slowest state {worst:.3f})"
        )
    table.append(_row(f"{MOST_NODES:,} nodes", 3.0, aligned, "; ".join(told), "none"))
    table.append(
        Row(
            "routing, primary and 3 disjoint backups",
            "≤ 2 ms",
            "; ".join(backups),
            "none",
            "",
            slowest_backup <= 2.0,
        )
    )
    return table


def _row(title: str, reach: float, taken: float, ours: str, peer: str) -> Row:
    return Row(
        f"routing, {title}",
        f"≤ {reach:g} ms",
        f"{ours}; exact, partial slices",
        peer,
        "",
        taken <= reach,
    )
