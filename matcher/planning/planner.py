"""Which machine should hold which layers now? The swarm as the scheduler takes it, and its answer.

The planner itself is `scheduler.live.repair`: healthy machines are never sent away because another
left, and weights move only where they must or where it pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.protocol.types import LayerRange
from matcher.fleet.fleet_view import Sighting, fleet_of, layers_of, plannable
from scheduler.fleet.fleet import Fleet, Machine, ModelShape
from scheduler.live.churn import Cluster, Event, Joined, Left, Member, Reported, observe
from scheduler.live.repair import decide
from scheduler.live.standby import Rules
from scheduler.methods.methods import Budget


@dataclass(frozen=True)
class Placement:
    """What each machine is told. Others are unknown or serve what their owner fixed."""

    assignments: Mapping[str, LayerRange] = field(default_factory=dict)
    standby: tuple[str, ...] = ()
    reason: str = "no machines yet"
    explanation: tuple[str, ...] = ()
    decided_ms: int = 0


def nobody(shape: ModelShape) -> Cluster:
    """The cluster before any machine was seen."""
    return Cluster(shape, fleet_of(()).links)


def seen(cluster: Cluster, present: Sequence[Sighting], now_ms: int) -> Cluster:
    """The cluster after sightings of `present`: machines of this model that may work."""
    here = [sighting for sighting in plannable(present) if _sane(sighting, cluster.model)]
    fleet = fleet_of(here)
    cluster = replace(cluster, links=fleet.links, members=_placed(cluster, fleet))
    known = [sighting for sighting in here if sighting.operator in fleet.by_id]
    for event in _events(cluster, known, fleet.by_id, now_ms):
        cluster, ignored = observe(cluster, event, now_ms)
        if ignored == "absurd" and isinstance(event, Reported):
            # A time that no such machine takes is not believed; what it serves is.
            cluster, _ = observe(cluster, replace(event, tau_ms_per_layer=None), now_ms)
    return cluster


def plan(
    cluster: Cluster,
    previous: Placement | None,
    now_ms: int,
    rules: Rules,
    budget: Budget = Budget(),
) -> tuple[Cluster, Placement | None]:
    """The cluster after its machines are told, and the next placement, None if the last one stands.

    Nothing is decided before the set of machines has stood still for as long as the rules say.
    """
    if previous is None and not cluster.members:
        return cluster, None
    if now_ms - cluster.changed_ms < rules.settle_ms:
        return cluster, None
    cluster, change = decide(cluster, now_ms, rules, budget)
    members = cluster.members.items()
    found = Placement(
        assignments={i: m.told for i, m in sorted(members) if m.told is not None and not m.fixed},
        standby=tuple(sorted(i for i, m in members if m.told is None)),
        reason=change.reason,
        explanation=change.why,
        decided_ms=now_ms,
    )
    if (
        previous is not None
        and not change.told
        and (found.assignments, found.standby) == (previous.assignments, previous.standby)
    ):
        return cluster, None
    return cluster, found


def fixed_by_owner(sightings: Iterable[Sighting]) -> dict[str, LayerRange]:
    """Machines that serve without following any allocation, and their layers."""
    return layers_of(s for s in sightings if s.record.allocation == 0)


def _sane(sighting: Sighting, shape: ModelShape) -> bool:
    """A machine that claims layers the model does not have takes part in nothing."""
    layers = sighting.record.layers
    return layers is None or layers.end <= shape.layers


def _placed(cluster: Cluster, fleet: Fleet) -> dict[str, Member]:
    """Members in the regions where they are found now: another one makes no other machine of it."""
    members = dict(cluster.members)
    for operator, member in cluster.members.items():
        seen_as = fleet.by_id.get(operator)
        if seen_as is not None and seen_as.region != member.machine.region:
            machine = replace(member.machine, region=seen_as.region)
            members[operator] = replace(member, machine=machine)
    return members


def _events(
    cluster: Cluster, known: Sequence[Sighting], machines: Mapping[str, Machine], now_ms: int
) -> Iterator[Event]:
    """What the cluster does not know yet. A machine whose hardware changed is another one."""
    serving, fixed = layers_of(known), fixed_by_owner(known)
    for operator, gone in cluster.members.items():
        if operator not in machines:
            yield Left(operator, gone.incarnation, now_ms)
    for sighting in known:
        operator, member = sighting.operator, cluster.members.get(sighting.operator)
        machine, layers = replace(machines[operator], tau_ms_per_layer=None), serving.get(operator)
        if member is None:
            incarnation = cluster.gone.get(operator, (-1, 0))[0] + 1
            yield Joined(machine, incarnation, sighting.seen_ms, layers)
        elif replace(member.machine, tau_ms_per_layer=None) != machine:
            incarnation = member.incarnation + 1
            yield Joined(machine, incarnation, sighting.seen_ms, member.told or layers)
        else:
            incarnation = member.incarnation
        yield Reported(
            operator,
            incarnation,
            sighting.seen_ms,
            layers,
            machines[operator].tau_ms_per_layer,
            fixed=operator in fixed,
        )
