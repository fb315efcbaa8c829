"""What is the least that must be told to whom after somebody joined, left or changed?

In this order: nothing, where chains still cover the model (the router goes around the gap); one machine extended or moved on;
standby machines where the hole is; more machines; everybody anew, with as few layers moved as possible. Standby machines then
serve at once, as pipelines of their own or where the model is thinnest. A serving machine is moved for balance alone only if
that is worth the bytes, and never sent to standby.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.protocol.types import LayerRange
from scheduler.churn import Cluster, Event, Ticked, observe, told
from scheduler.improve import Rules, balanced, with_standby
from scheduler.repair_steps import restored
from scheduler.slices import fits, is_whole, loaded_bytes


@dataclass(frozen=True, slots=True)
class Told:
    """One machine is to hold these layers, of which it must load so many bytes."""

    machine_id: str
    layers: LayerRange
    load_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """What came of an event: whom to tell what, why, and whether chains cover the model then.

    ``step`` is the mildest one that sufficed: none, extend, standby, several, anew, impossible, balance, or the reason
    why the event was ignored.
    """

    told: tuple[Told, ...]
    step: str
    is_covered: bool
    version: int


def apply(
    cluster: Cluster, event: Event, now_ms: int, rules: Rules = Rules()
) -> tuple[Cluster, Change]:
    """The cluster after an event, and what it takes to serve on. Deterministic; never raises for what strangers say."""
    before = cluster
    cluster, ignored = observe(cluster, event, now_ms)
    if ignored:
        return cluster, Change((), f"ignored: {ignored}", _covers(cluster), cluster.version)
    cluster = _without_misfits(cluster)
    fleet = cluster.fleet
    holding = dict(cluster.placement)
    step, moved_ms = "none", cluster.moved_ms
    if not is_whole(fleet, cluster.model, holding):
        step, holding = restored(fleet, cluster.model, holding)
    holding = with_standby(fleet, cluster.model, holding)
    if step == "none" and isinstance(event, Ticked) and now_ms - moved_ms >= rules.rest_ms:
        serving = dict(cluster.serving)
        better = balanced(fleet, cluster.model, holding, serving, rules)
        if better is not None:
            step, holding, moved_ms = "balance", better, now_ms
    tell = []
    for machine_id, layers in sorted(holding.items()):
        member = cluster.members[machine_id]
        if member.told != layers:
            load = loaded_bytes(cluster.model, member.serves, layers)
            tell.append(Told(machine_id, layers, load))
            cluster = told(cluster, machine_id, layers, now_ms)
    if moved_ms != before.moved_ms:
        cluster = replace(cluster, moved_ms=moved_ms)
    covered = step != "impossible" or is_whole(fleet, cluster.model, holding)
    return cluster, Change(tuple(tell), step, covered, cluster.version)


def _covers(cluster: Cluster) -> bool:
    holding = dict(cluster.placement)
    return bool(holding) and is_whole(cluster.fleet, cluster.model, holding)


def _without_misfits(cluster: Cluster) -> Cluster:
    """Assignments that a machine which came back smaller cannot hold are void."""
    members = {
        i: replace(member, told=None, serves=None)
        if member.told is not None
        and not fits(member.machine, cluster.model, member.told.start, member.told.end)
        else member
        for i, member in cluster.members.items()
    }
    return replace(cluster, members=members)
