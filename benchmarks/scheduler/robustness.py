"""Does any fleet, or any stream of joins, departures and reports, break planning, routing or
repair?
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from benchmarks.scheduler.measure.events import apply
from benchmarks.table import Row
from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities
from scheduler.fleet.fleet import Fleet, Link, Links, Machine, ModelShape
from scheduler.fleet.validate import validate_pipelines
from scheduler.live.churn import Cluster, Event, Joined, Left, Reported, Ticked
from scheduler.live.holdings import all_linked, fits, is_whole
from scheduler.live.standby import Rules
from scheduler.parallax.allocate import allocate
from scheduler.routing.parallax_route import NoRoute, Route, RouteQuery, disjoint_backups, route
from scheduler.routing.routing_table import prepare

CLUSTERS = 10_000
STREAMS = 10_000
QUICK = {"CLUSTERS": 20, "STREAMS": 20}
REGIONS = ("eu", "us", "asia")


class Broken(AssertionError):
    """A promise that some seed breaks; the text names the seed's finding."""


@dataclass(slots=True)
class Tally:
    """What a run of the fuzzer met."""

    runs: int = 0
    events: int = 0
    ignored: int = 0
    covered: int = 0
    moved: int = 0


def any_model(draw: random.Random) -> ModelShape:
    embedding = draw.choice([0, 30, 100, 250])
    tied = draw.random() < 0.3
    return ModelShape(
        draw.randint(1, 14),
        100,
        embedding,
        embedding if tied else draw.choice([0, 40, 120]),
        tied,
        8,
        1e9,
        head_flops_per_token=draw.choice([0.0, 1e9]),
        kv_bytes_per_token_per_layer=draw.choice([0, 1]),
        activation_bytes_per_token=draw.choice([0, 16]),
    )


def any_machine(draw: random.Random, machine_id: str) -> Machine:
    return Machine(
        machine_id,
        draw.choice([draw.randint(0, 120), draw.randint(100, 700), draw.randint(300, 1600)]),
        draw.choice([0.5, 1.0, 2.0, 8.0]),
        draw.choice([1e-3, 1.0, 1e6]),
        draw.choice(REGIONS),
        weight_fraction=draw.choice([1.0, 0.65]),
        kv_fraction=draw.choice([0.0, 0.25]),
        overhead_bytes=draw.choice([0, 0, 40]),
        max_concurrent=draw.choice([1, 4, 16]),
        tau_ms_per_layer=draw.choice([None, None, 0.5, 4.0]),
        access_ms=draw.choice([0.0, 2.0]),
    )


def any_links(draw: random.Random, ids: list[str]) -> Links:
    """Mostly everybody reaches everybody; sometimes pairs or whole regions are cut off."""
    regions = {
        (a, b): Link(5.0 if a == b else 60.0, draw.choice([None, 100.0]))
        for a in REGIONS
        for b in REGIONS
        if a <= b and draw.random() < 0.9
    }
    pairs = {}
    if draw.random() < 0.3:
        for a in ids:
            for b in ids:
                if a != b and draw.random() < 0.2:
                    pairs[a, b] = Link(draw.choice([1.0, 20.0, math.inf]))
    return Links(pairs, regions, draw.choice([None, 30.0, 30.0, 30.0]))


def fuzz_cluster(seed: int, tally: Tally) -> None:
    """Plan, validate and route one random fleet. Raises Broken, or whatever the code under test
    raises.
    """
    draw = random.Random(f"cluster {seed}")
    model = any_model(draw)
    most = draw.choice([1, 3, 6, 6, 10, 14])
    ids = [f"m{i:02}" for i in range(draw.randint(1, most))]
    fleet = Fleet(tuple(any_machine(draw, i) for i in ids), any_links(draw, ids))
    plan = allocate(fleet, model)
    validate_pipelines(plan.pipelines, fleet, model)
    table = prepare(fleet, model, plan.shards)
    partial, whole = route(table, RouteQuery(partial=True)), route(table)
    tally.runs += 1
    if plan.pipelines:
        tally.covered += 1
        if isinstance(partial, NoRoute) or isinstance(whole, NoRoute):
            raise Broken(f"cluster {seed}: a plan of {len(plan.pipelines)} pipelines, no route")
        if partial.latency_ms > whole.latency_ms * (1 + 1e-9):
            raise Broken(f"cluster {seed}: partial slices are slower")
        used = set(partial.machine_ids)
        for backup in disjoint_backups(table, partial, 2, RouteQuery(partial=True)):
            if used & backup.machine_ids:
                raise Broken(f"cluster {seed}: a backup shares a machine")
            used |= backup.machine_ids
    elif all_linked(fleet) and could_hold(fleet, model):
        raise Broken(f"cluster {seed}: no pipeline although the fleet holds one")


def could_hold(fleet: Fleet, model: ModelShape) -> bool:
    """Whether the fleet holds the model once if everybody reaches everybody."""
    caps = [c for m in fleet.machines if (c := capacities(m, model)).plain >= 1]
    if any(c.both >= model.layers for c in caps):
        return True
    plain = sum(c.plain for c in caps)
    return model.layers >= 2 and any(
        a.first >= 1
        and b.last >= 1
        and plain - a.plain + a.first - b.plain + b.last >= model.layers
        for i, a in enumerate(caps)
        for j, b in enumerate(caps)
        if i != j
    )


def any_event(draw: random.Random, cluster: Cluster, ids: list[str], now_ms: int) -> Event:
    """A join, departure, return, report or nothing; sometimes late, repeated, from another life, or
    absurd.
    """
    machine_id = draw.choice(ids)
    member = cluster.members.get(machine_id)
    lived = member.incarnation if member else cluster.gone.get(machine_id, (0, 0))[0]
    incarnation = draw.choice([lived, lived, lived, lived, lived + 1, lived + 1, 0])
    incarnation = max(0, incarnation - (draw.random() < 0.1))
    at_ms = now_ms + draw.choice([0, 0, 0, 0, 0, 0, 0, -5_000, -100_000, 10**9])
    what = draw.random()
    layers = cluster.model.layers
    start = draw.randrange(layers)
    some = LayerRange(start, draw.randint(start + 1, layers + 1))
    if what < 0.4 or not cluster.members:
        holds = some if draw.random() < 0.1 else None
        return Joined(any_machine(draw, machine_id), incarnation, at_ms, holds)
    if what < 0.6:
        return Left(machine_id, incarnation, at_ms)
    if what < 0.9:
        told = member.told if member else None
        return Reported(
            machine_id,
            incarnation,
            at_ms,
            draw.choice([told, told, told, None, some]),
            draw.choice([None, 1.0, 3.0, math.nan, -1.0, math.inf, 1e300, 1e-5]),
            draw.choice([1, 4, 0, -3, 10**12]),
            draw.random() < 0.05,
        )
    return Ticked(at_ms)


def fuzz_stream(seed: int, tally: Tally, events: int = 10) -> None:
    """One random life of a small cluster. Raises Broken, or whatever the code under test raises."""
    draw = random.Random(f"stream {seed}")
    model = any_model(draw)
    ids = [f"m{i:02}" for i in range(draw.choice([1, 3, 5, 7, 9]))]
    rules = Rules(method=draw.choice(["score", "score", "utility"]), partial=draw.random() < 0.5)
    cluster = Cluster(model, any_links(draw, ids))
    now_ms = 1_000_000
    tally.runs += 1
    for _ in range(events):
        now_ms += draw.choice([1, 1_000, 70_000])
        event = any_event(draw, cluster, ids, now_ms)
        before = cluster
        cluster, change = apply(cluster, event, now_ms, rules)
        tally.events += 1
        if change.step.startswith("ignored"):
            tally.ignored += 1
            if cluster is not before:
                raise Broken(f"stream {seed}: an ignored event changed the cluster")
            continue
        again, nothing = apply(cluster, event, now_ms, rules)
        if not isinstance(event, Ticked) and (again.placement != cluster.placement or nothing.told):
            raise Broken(f"stream {seed}: the same event twice is not once")
        tally.covered += change.is_covered
        tally.moved += len(change.told)
        check_change(seed, before, cluster, rules, change.step, change.is_covered)


def check_change(
    seed: int, before: Cluster, after: Cluster, rules: Rules, step: str, is_covered: bool
) -> None:
    """Slices fit, nobody healthy is sent away or moved without need, and the model is covered if it
    can be.
    """
    fleet, model = after.fleet, after.model
    holding = dict(after.placement)
    for machine_id, layers in holding.items():
        if layers.end > model.layers:
            raise Broken(f"stream {seed}: {machine_id} is told layers beyond the model")
        said = after.members[machine_id].serves == layers  # what it serves, it holds
        if not said and not fits(fleet.by_id[machine_id], model, layers.start, layers.end):
            raise Broken(f"stream {seed}: {machine_id} is told more than it holds")
    fixed = {i: after.members[i].told for i in after.fixed}
    if any(after.members[i].serves != layers for i, layers in fixed.items()):
        raise Broken(f"stream {seed}: a machine was told something against its owner")
    same = {
        i: member.told
        for i, member in before.members.items()
        if i in after.members
        and after.members[i].incarnation == member.incarnation
        and member.told is not None
        and i not in fixed
        and fits(fleet.by_id[i], model, member.told.start, member.told.end)
    }
    if any(i not in holding for i in same):
        raise Broken(f"stream {seed}: a healthy machine was sent to standby")
    if step == "none" and any(holding[i] != layers for i, layers in same.items()):
        raise Broken(f"stream {seed}: weights moved without need")
    if is_covered != (bool(holding) and is_whole(fleet, model, holding, rules.partial)):
        raise Broken(f"stream {seed}: says covered={is_covered}")
    if is_covered:
        found = route(prepare(fleet, model, after.placement), RouteQuery(partial=rules.partial))
        if not isinstance(found, Route):
            raise Broken(f"stream {seed}: covered, but no route")
    movable = fleet.subset(m for m in fleet.machines if m.id not in fixed)
    if (
        not is_covered
        and could_hold(movable, model)
        and (all_linked(movable) or allocate(movable, model).pipelines)
    ):
        raise Broken(f"stream {seed}: coverage lost although a plan exists")


def rows() -> list[Row]:
    """10,000 fleets and 10,000 streams."""
    found = []
    for name, fuzz, many in (
        ("fuzzed clusters", fuzz_cluster, CLUSTERS),
        ("fuzzed event streams", fuzz_stream, STREAMS),
    ):
        tally, problems = Tally(), list[str]()
        start = time.perf_counter()
        for seed in range(many):
            try:
                fuzz(seed, tally)
            except Exception as error:
                problems.append(f"{name} {seed}: {type(error).__name__}: {error}")
        seconds = time.perf_counter() - start
        said = f"{many:,} in {seconds:.0f} s, {len(problems)} broken"
        if tally.events:
            said += f"; {tally.events:,} events, {tally.ignored:,} ignored"
        if problems:
            said += f"; first: {problems[0]}"
        found.append(
            Row(
                f"robustness, {name}",
                "0 broken of 10,000",
                said,
                "Parallax: exceptions in up to 15 % of clusters" if fuzz is fuzz_cluster else "",
                "0",
                not problems,
            )
        )
    return found
