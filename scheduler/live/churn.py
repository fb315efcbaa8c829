"""What happened to the machines, and who is there now, told what, serving what?

Events may come twice, late, in the wrong order or with absurd numbers. A machine is known by id and
incarnation: whatever an earlier incarnation says, or said, is void. Every change that counts gives
a new version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from core.protocol.types import LayerRange
from scheduler.fleet.costs import prior_ms_per_layer
from scheduler.fleet.fleet import (
    Coordinator,
    Fleet,
    Links,
    Machine,
    ModelShape,
    Placement,
    Shard,
    in_layer_order,
)
from scheduler.fleet.numbers import LARGEST, SMALLEST

#: An event from further in the future than this has a wrong clock.
SKEW_MS = 5_000
#: A measured τ this many times above or below the prior is not believed.
BELIEVABLE = 1_000.0
#: Of the machines that left, this many are remembered: the last ones.
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Joined:
    """A machine is there. ``holds`` is what it has loaded already."""

    machine: Machine
    incarnation: int
    at_ms: int
    holds: LayerRange | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """A machine is gone, by its own word or by silence."""

    machine_id: str
    incarnation: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A machine says what it serves and how fast. ``fixed``: its owner chose the layers."""

    machine_id: str
    incarnation: int
    at_ms: int
    serves: LayerRange | None
    tau_ms_per_layer: float | None = None
    tau_batch: int = 1
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Ticked:
    """Nothing happened for a while."""

    at_ms: int


Event: TypeAlias = Joined | Left | Reported | Ticked


@dataclass(frozen=True, slots=True)
class Member:
    """A machine: ``told`` is its assignment (None: standby), ``serves`` what it answers for.

    One that is ``fixed`` serves what its owner told it: it counts, and nobody else tells it
    anything.
    """

    machine: Machine
    incarnation: int
    joined_ms: int
    told: LayerRange | None = None
    serves: LayerRange | None = None
    heard_ms: int = -1
    told_ms: int = -1
    fixed: bool = False


@dataclass(frozen=True)
class Cluster:
    """Every machine that is there. ``gone``: the last incarnation of those that left, and when."""

    model: ModelShape
    links: Links
    members: Mapping[str, Member] = field(default_factory=dict)
    gone: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    version: int = 0
    weighed_ms: int = 0  # when it was last asked whether a migration would pay
    changed_ms: int = 0  # when a machine last came or left
    next_moves: Mapping[str, LayerRange] = field(
        default_factory=dict
    )  # once those told have loaded
    coordinator: Coordinator | None = None

    @property
    def fleet(self) -> Fleet:
        machines = tuple(member.machine for member in self.members.values())
        return Fleet(machines, self.links, self.coordinator)

    @property
    def fixed(self) -> frozenset[str]:
        """Machines that nobody may move."""
        return frozenset(i for i, member in self.members.items() if member.fixed)

    @property
    def placement(self) -> Placement:
        """What everybody is told."""
        told = (Shard(i, m.told) for i, m in self.members.items() if m.told is not None)
        return in_layer_order(told)

    @property
    def serving(self) -> Placement:
        """What answers now: told and loaded are two things."""
        loaded = (Shard(i, m.serves) for i, m in self.members.items() if m.serves is not None)
        return in_layer_order(loaded)


def observe(cluster: Cluster, event: Event, now_ms: int) -> tuple[Cluster, str]:
    """The cluster after an event, and why it was ignored, "" if it counted. Nobody is told anything
    yet.
    """
    if event.at_ms > now_ms + SKEW_MS:
        return cluster, "from the future"
    if isinstance(event, Ticked):
        return cluster, ""
    if isinstance(event, Joined):
        return _join(cluster, event, now_ms)
    member = cluster.members.get(event.machine_id)
    if member is None:
        return cluster, "unknown machine"
    if event.incarnation != member.incarnation:
        return cluster, "another incarnation"
    if isinstance(event, Left):
        if event.at_ms < member.joined_ms:
            return cluster, "late"
        return _leave(cluster, event, now_ms), ""
    return _report(cluster, member, event)


def _join(cluster: Cluster, event: Joined, now_ms: int) -> tuple[Cluster, str]:
    machine_id = event.machine.id
    member = cluster.members.get(machine_id)
    if event.incarnation < 0:
        return cluster, "absurd"
    if member is not None and event.incarnation <= member.incarnation:
        return cluster, "known" if event.incarnation == member.incarnation else "late"
    if member is None and machine_id in cluster.gone:
        incarnation, left_ms = cluster.gone[machine_id]
        # The same incarnation may come back after a silence that was taken for a departure.
        if event.incarnation < incarnation or (
            event.incarnation == incarnation and event.at_ms <= left_ms
        ):
            return cluster, "late"
    holds = event.holds
    if holds is not None and holds.end > cluster.model.layers:
        holds = None
    fresh = Member(event.machine, event.incarnation, event.at_ms, holds, holds)
    members = dict(cluster.members)
    members[machine_id] = fresh
    gone = {i: last for i, last in cluster.gone.items() if i != machine_id}
    version = cluster.version + 1
    changed = replace(cluster, members=members, gone=gone, version=version)
    return replace(changed, changed_ms=now_ms, next_moves={}), ""


def _leave(cluster: Cluster, event: Left, now_ms: int) -> Cluster:
    members = {i: m for i, m in cluster.members.items() if i != event.machine_id}
    gone = {i: last for i, last in cluster.gone.items() if i != event.machine_id}
    gone[event.machine_id] = event.incarnation, event.at_ms
    if len(gone) > REMEMBERED:
        del gone[next(iter(gone))]
    version = cluster.version + 1
    changed = replace(cluster, members=members, gone=gone, version=version)
    return replace(changed, changed_ms=now_ms, next_moves={})


def _report(cluster: Cluster, member: Member, event: Reported) -> tuple[Cluster, str]:
    if event.at_ms <= member.heard_ms or event.at_ms < member.joined_ms:
        return cluster, "late"
    machine = member.machine
    tau = event.tau_ms_per_layer
    if tau is not None:
        if not (SMALLEST <= tau <= LARGEST and 1 <= event.tau_batch <= LARGEST):
            return cluster, "absurd"
        prior = prior_ms_per_layer(machine, cluster.model, event.tau_batch)
        if not prior / BELIEVABLE <= tau <= prior * BELIEVABLE:
            return cluster, "absurd"
        machine = replace(machine, tau_ms_per_layer=tau, tau_batch=event.tau_batch)
    serves = event.serves
    if serves is not None and serves.end > cluster.model.layers:
        return cluster, "absurd"
    if serves is not None and event.at_ms < member.told_ms:
        serves = _both(serves, member.told)  # it had not heard of its new layers yet
    fixed = event.fixed and serves is not None
    told = serves if fixed else member.told
    updated = replace(
        member, machine=machine, serves=serves, told=told, heard_ms=event.at_ms, fixed=fixed
    )
    if replace(updated, heard_ms=member.heard_ms) == member:
        return replace(cluster, members={**cluster.members, machine.id: updated}), ""
    members = {**cluster.members, machine.id: updated}
    return replace(cluster, members=members, version=cluster.version + 1), ""


def _both(a: LayerRange | None, b: LayerRange | None) -> LayerRange | None:
    if a is None or b is None or max(a.start, b.start) >= min(a.end, b.end):
        return None
    return LayerRange(max(a.start, b.start), min(a.end, b.end))


def told(cluster: Cluster, machine_id: str, layers: LayerRange | None, now_ms: int) -> Cluster:
    """The cluster after a machine was told these layers; it keeps those that it still holds."""
    member = cluster.members[machine_id]
    changed = replace(member, told=layers, serves=_both(member.serves, layers), told_ms=now_ms)
    return replace(
        cluster, members={**cluster.members, machine_id: changed}, version=cluster.version + 1
    )
