"""Who should hold which layers now, given who holds them already (phase 1 with as little moving as possible)?

In order of preference: nothing changes; newcomers serve beside the others; spare machines fill a hole that somebody left; and only
when that gives no whole pipeline, everybody is planned anew. Healthy machines are never sent away because another left.
A machine whose owner fixed its layers (it serves and follows no allocation) counts, and is told nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from core.protocol.records import AllocationRecord
from core.protocol.types import LayerRange
from matcher.fleet_view import Sighting, fleet_of, layers_of, plannable
from scheduler.costs import capacity, position_of, tau_ms_per_layer
from scheduler.errors import FleetError, PlanError
from scheduler.explain_plan import explain_plan
from scheduler.fleet import Fleet, Machine, ModelShape, Shard
from scheduler.methods import plan_by
from scheduler.rebalance import coefficient_of_variation, join, layer_loads, should_rebalance

#: Machines whose speeds differ by at most this share may take each other's shard.
ALIKE = 0.25


@dataclass(frozen=True)
class Hysteresis:
    """How eager to plan. Nothing is decided before the set of machines has stood still for `settle_ms`.

    Loads whose coefficient of variation exceeds `load_spread` justify a new plan only if it lowers the spread by
    `worth_spread` and the last one is `rest_ms` old. `method` is one of `scheduler.methods` that gives disjoint pipelines.
    """

    settle_ms: int = 2_000
    min_machines: int = 1
    load_spread: float = 1.0
    worth_spread: float = 0.25
    rest_ms: int = 60_000
    method: str = "utility"


@dataclass(frozen=True)
class Placement:
    """A decision: what each machine is told. Machines in neither field are unknown or serve what their owner fixed."""

    assignments: Mapping[str, LayerRange] = field(default_factory=dict)
    standby: tuple[str, ...] = ()
    reason: str = "no machines yet"
    explanation: tuple[str, ...] = ()
    decided_ms: int = 0
    fleet_key: frozenset[str] = frozenset()  # the machines it was decided for
    moved_ms: int = 0  # when a serving machine was last told other layers

    def told(self) -> tuple[Shard, ...]:
        return tuple(Shard(op, layers) for op, layers in sorted(self.assignments.items()))


def fixed_by_owner(sightings: Iterable[Sighting]) -> dict[str, LayerRange]:
    """Machines that serve without following any allocation, and their layers."""
    return layers_of(s for s in sightings if s.record.allocation == 0)


def plan(
    previous: Placement | None,
    present: Sequence[Sighting],
    shape: ModelShape,
    now_ms: int,
    still_since_ms: int,
    rules: Hysteresis = Hysteresis(),
) -> Placement | None:
    """The next placement, None when the last one stands.

    `present` are the machines of this model that are alive and may work; `still_since_ms` is when that set last changed.
    """
    sightings = [s for s in plannable(present) if _sane(s, shape)]
    fleet = fleet_of(sightings)
    known = frozenset(fleet.by_id)
    if previous is None and not known:
        return None
    if now_ms - still_since_ms < rules.settle_ms:
        return None
    fixed = {op: layers for op, layers in fixed_by_owner(sightings).items() if op in known}
    kept = _kept(previous, sightings, fixed, fleet, shape)
    same_fleet = previous is not None and previous.fleet_key == known
    shards = _shards(kept, fixed)
    decision = should_rebalance(fleet, shape, shards)
    if not decision.rebalance:
        if not same_fleet or previous is None:
            return _grow(previous, kept, fixed, fleet, shape, now_ms, rules)
        return _even_out(previous, kept, fixed, fleet, shape, now_ms, rules)
    if same_fleet and previous is not None and kept == dict(previous.assignments):
        return None  # the same machines were found wanting before
    if not kept and not fixed and len(known) < rules.min_machines:
        return None
    repaired = _fill(kept, fixed, fleet, shape)
    if repaired is not None:
        why = f"repaired: {decision.reason}"
        return _grow(previous, repaired, fixed, fleet, shape, now_ms, rules, why)
    return _anew(previous, kept, fixed, fleet, shape, decision.reason, now_ms, rules)


def record_of(placement: Placement, matcher: str, model_id: str, now_ms: int) -> AllocationRecord:
    """What the swarm is told."""
    return AllocationRecord(
        matcher=matcher,
        model_id=model_id,
        assignments=dict(placement.assignments),
        standby=list(placement.standby),
        sent_at_ms=now_ms,
    )


def _sane(sighting: Sighting, shape: ModelShape) -> bool:
    """A machine that claims layers the model does not have takes part in nothing."""
    layers = sighting.record.layers
    return layers is None or layers.end <= shape.layers


def _kept(
    previous: Placement | None,
    sightings: Sequence[Sighting],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    shape: ModelShape,
) -> dict[str, LayerRange]:
    """What the machines that are still here were told, and what those serve whom we never told anything.

    A machine that came back smaller than it was keeps nothing that it cannot hold.
    """
    told = dict(previous.assignments) if previous is not None else {}
    standby = set(previous.standby) if previous is not None else set()
    served = layers_of(sightings)
    unheard = {op: layers for op, layers in served.items() if op not in told and op not in standby}
    return {
        op: layers
        for op, layers in {**unheard, **told}.items()
        if op in fleet.by_id
        and op not in fixed
        and (served.get(op) == layers or _fits(fleet.by_id[op], shape, layers))
    }


def _shards(*sources: Mapping[str, LayerRange]) -> tuple[Shard, ...]:
    return tuple(Shard(op, layers) for source in sources for op, layers in sorted(source.items()))


def _fits(machine: Machine, shape: ModelShape, layers: LayerRange) -> bool:
    return len(layers) <= capacity(machine, shape, position_of(layers, shape))


def _grow(
    previous: Placement | None,
    kept: Mapping[str, LayerRange],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    shape: ModelShape,
    now_ms: int,
    rules: Hysteresis,
    reason: str = "every layer is covered",
) -> Placement:
    """Newcomers and standby machines: whole pipelines of their own first, then wherever the model is thinnest."""
    assignments = dict(kept)
    free = _free(fleet, kept, fixed)
    explanation: tuple[str, ...] = ()
    if free:
        own, why = _pipelines(fleet.subset(free), shape, rules)
        explanation = why if own else ()
        assignments |= own
        for machine in _free(fleet, assignments, fixed):
            layers = join(machine, fleet, shape, _shards(assignments, fixed))
            if layers is not None:
                assignments[machine.id] = layers
    if len(assignments) > len(kept):
        reason += f"; {len(assignments) - len(kept)} more machines serve beside the others"
    return _decided(previous, assignments, fixed, fleet, reason, explanation, now_ms)


def _even_out(
    previous: Placement,
    kept: Mapping[str, LayerRange],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    shape: ModelShape,
    now_ms: int,
    rules: Hysteresis,
) -> Placement | None:
    spread = coefficient_of_variation(layer_loads(fleet, shape, _shards(kept, fixed)))
    if spread <= rules.load_spread or now_ms - previous.moved_ms < rules.rest_ms:
        return None
    why = f"loads vary by {spread:.2f}"
    found = _anew(previous, kept, fixed, fleet, shape, why, now_ms, rules)
    after = coefficient_of_variation(layer_loads(fleet, shape, (*found.told(), *_shards(fixed))))
    if after > spread - rules.worth_spread or not _whole(found.assignments, fixed, fleet, shape):
        return None
    return found


def _fill(
    kept: Mapping[str, LayerRange],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    shape: ModelShape,
) -> dict[str, LayerRange] | None:
    """The kept assignments with every hole given to free machines, None when they do not suffice.

    Each hole goes to the smallest free machine that holds all of it, else to the largest ones from left to right.
    """
    if not kept and not fixed:
        return None
    assignments = dict(kept)
    for hole in _holes(_shards(kept, fixed), shape.layers):
        start = hole.start
        while start < hole.end:
            free = _free(fleet, assignments, fixed)
            rest = LayerRange(start, hole.end)
            whole = [machine for machine in free if _fits(machine, shape, rest)]
            if whole:
                machine = min(whole, key=lambda m: (m.memory_bytes, m.id))
                assignments[machine.id] = rest
                break
            step = _largest_step(free, shape, rest)
            if step is None:
                return None
            machine, layers = step
            assignments[machine.id] = layers
            start = layers.end
    return assignments if _whole(assignments, fixed, fleet, shape) else None


def _largest_step(
    free: Sequence[Machine], shape: ModelShape, rest: LayerRange
) -> tuple[Machine, LayerRange] | None:
    """The free machine that holds most of `rest` from its start, leaving at least one layer for the next."""
    best: tuple[Machine, LayerRange] | None = None
    for machine in free:
        inner = LayerRange(rest.start, rest.start + 1)
        most = min(capacity(machine, shape, position_of(inner, shape)), len(rest) - 1)
        if most >= 1 and (best is None or most > len(best[1])):
            best = machine, LayerRange(rest.start, rest.start + most)
    return best


def _holes(shards: Iterable[Shard], layers: int) -> list[LayerRange]:
    """Runs of layers that nobody holds."""
    held = {layer for shard in shards for layer in range(shard.layers.start, shard.layers.end)}
    holes: list[LayerRange] = []
    for layer in range(layers):
        if layer in held:
            continue
        if holes and holes[-1].end == layer:
            holes[-1] = LayerRange(holes[-1].start, layer + 1)
        else:
            holes.append(LayerRange(layer, layer + 1))
    return holes


def _anew(
    previous: Placement | None,
    kept: Mapping[str, LayerRange],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    shape: ModelShape,
    why: str,
    now_ms: int,
    rules: Hysteresis,
) -> Placement:
    """Everybody anew, except that no plan at all leaves everybody where they are."""
    movable = [machine for machine in fleet.machines if machine.id not in fixed]
    scope = fleet.subset(movable)
    found, explanation = _pipelines(scope, shape, rules)
    if not found:
        return _decided(
            previous, kept, fixed, fleet, f"no whole pipeline: {why}", explanation, now_ms
        )
    assignments = _fewer_moves(found, kept, scope, shape)
    for machine in _free(fleet, assignments, fixed):
        layers = join(machine, fleet, shape, _shards(assignments, fixed))
        if layers is not None:
            assignments[machine.id] = layers
    return _decided(
        previous,
        assignments,
        fixed,
        fleet,
        f"planned anew: {why}",
        explanation,
        now_ms,
    )


def _pipelines(
    fleet: Fleet, shape: ModelShape, rules: Hysteresis
) -> tuple[dict[str, LayerRange], tuple[str, ...]]:
    """Disjoint pipelines over these machines and why, or nothing and what is short."""
    try:
        found = plan_by(rules.method, fleet, shape)
    except FleetError as error:
        return {}, (str(error),)
    layers = {shard.machine_id: shard.layers for shard in found.placement}
    return layers, explain_plan(found, fleet, shape).sentences


def _fewer_moves(
    found: Mapping[str, LayerRange], kept: Mapping[str, LayerRange], fleet: Fleet, shape: ModelShape
) -> dict[str, LayerRange]:
    """The same shards, exchanged between machines that are alike where that leaves more layers loaded.

    Alike: either holds the other's shard, and their speeds differ by at most `ALIKE`, so that stages stay even.
    """
    assignments = dict(found)
    tau = {m.id: tau_ms_per_layer(m, shape) for m in fleet.machines}

    def loaded(operator: str, layers: LayerRange | None) -> int:
        held = kept.get(operator)
        if layers is None or held is None:
            return 0
        return max(0, min(layers.end, held.end) - max(layers.start, held.start))

    for one, other in combinations(sorted(fleet.by_id), 2):
        mine, theirs = assignments.get(one), assignments.get(other)
        alike = abs(tau[one] - tau[other]) <= ALIKE * max(tau[one], tau[other])
        if not alike or not all(
            layers is None or _fits(fleet.by_id[operator], shape, layers)
            for operator, layers in ((one, theirs), (other, mine))
        ):
            continue
        gain = loaded(one, theirs) + loaded(other, mine) - loaded(one, mine) - loaded(other, theirs)
        if gain > 0:
            for operator, layers in ((one, theirs), (other, mine)):
                assignments.pop(operator, None)
                if layers is not None:
                    assignments[operator] = layers
    return assignments


def _free(
    fleet: Fleet, assignments: Mapping[str, LayerRange], fixed: Mapping[str, LayerRange]
) -> list[Machine]:
    return [m for m in fleet.machines if m.id not in assignments and m.id not in fixed]


def _whole(
    assignments: Mapping[str, LayerRange],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    shape: ModelShape,
) -> bool:
    try:
        return not should_rebalance(fleet, shape, _shards(assignments, fixed)).rebalance
    except PlanError:
        return False


def _decided(
    previous: Placement | None,
    assignments: Mapping[str, LayerRange],
    fixed: Mapping[str, LayerRange],
    fleet: Fleet,
    reason: str,
    explanation: tuple[str, ...],
    now_ms: int,
) -> Placement:
    before = dict(previous.assignments) if previous is not None else {}
    moved = any(before[op] != layers for op, layers in assignments.items() if op in before)
    return Placement(
        assignments=dict(assignments),
        standby=tuple(machine.id for machine in _free(fleet, assignments, fixed)),
        reason=reason,
        explanation=explanation,
        decided_ms=now_ms,
        fleet_key=frozenset(fleet.by_id),
        moved_ms=now_ms if moved or previous is None else previous.moved_ms,
    )
