"""Which pipelines serve best, by throughput and latency together?

Plan(fleet) = max Σ u_p x_p over patterns p, machines of kind t used at most n_t times, x whole:
inside each locality first, leftovers pooled with the nearest, in the end globally; for fleets of a
few hundred machines also globally at once, and the better one is kept. Deterministic, no clock but
the one that is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.fleet.costs import capacities
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Pipeline, Placement, in_layer_order
from scheduler.fleet.shortage import shortage, too_small
from scheduler.fleet.validate import validate_pipelines
from scheduler.utility.draft import Draft, Scope, UtilityOptions, World
from scheduler.utility.localities import localities

__all__ = ["Scope", "UtilityOptions", "UtilityPlan", "plan"]


@dataclass(frozen=True, slots=True)
class UtilityPlan:
    """A validated plan of disjoint pipelines.

    ``throughput`` is Σ θ [tokens/s] with every machine's rate times its stability, ``ub`` what no
    plan passes: Σ of the best rates / L. ``gap`` is how far what was chosen in all scopes together
    falls short of the scopes' own bounds; it says nothing of having divided the fleet into these
    scopes. ``latencies_ms`` are per token and pipeline, in order of ``pipelines``. ``standby``
    machines hold nothing yet, ``ignored`` ones cannot.
    """

    pipelines: tuple[Pipeline, ...]
    standby: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    throughput: float
    ub: float
    utility: float
    gap: float
    thetas: tuple[float, ...]
    latencies_ms: tuple[float, ...]
    localities: tuple[tuple[str, ...], ...]
    scopes: tuple[Scope, ...]
    method: str
    explanation: tuple[str, ...]

    @property
    def placement(self) -> Placement:
        """Every shard, in order of layers."""
        shards = [shard for pipeline in self.pipelines for shard in pipeline]
        return in_layer_order(shards)


DEFAULTS = UtilityOptions()
#: Of the β asked for, what is tried in turn until the throughput is enough.
PARTS = (1.0, 0.75, 0.5, 0.25, 0.0)


def plan(
    fleet: Fleet,
    model: ModelShape,
    options: UtilityOptions = DEFAULTS,
    *,
    clock: Callable[[], float] | None = None,
    deadline: float = math.inf,
) -> UtilityPlan:
    """The pipelines of most utility. Past the `deadline` of a `clock`, no variant is begun."""
    usable = [m for m in fleet.machines if capacities(m, model).plain >= 1 and m.stability > 0]
    ignored = tuple(
        (m.id, too_small(m, model) if m.stability > 0 else "its stability is 0")
        for m in fleet.machines
        if capacities(m, model).plain < 1 or m.stability <= 0
    )
    places = localities(usable, fleet.links)
    world = World(usable, places, fleet.links, model, options)
    ub = world.rate_bound
    best: Draft | None = None
    for beta in dict.fromkeys(options.beta * part for part in PARTS):
        for at_once in (False, True):
            if at_once and (len(places) < 2 or len(usable) > options.global_up_to):
                continue
            if best is not None and clock is not None and clock() >= deadline:
                break
            to_beat = best.utility if best is not None and at_once and beta == options.beta else 0.0
            if best is not None and best.throughput < options.floor * ub:
                to_beat = 0.0
            draft = world.draft(beta, at_once, to_beat)
            if best is None or _rank(draft, ub, options) > _rank(best, ub, options):
                best = draft
        if best is not None and best.throughput >= options.floor * ub:
            break
    assert best is not None
    return _finished(best, world, fleet, model, usable, ignored, ub)


def _rank(draft: Draft, ub: float, options: UtilityOptions) -> tuple[bool, float]:
    """A draft that reaches the floor goes first, then the one of more utility at β."""
    return draft.throughput >= options.floor * ub, draft.utility


def _finished(
    best: Draft,
    world: World,
    fleet: Fleet,
    model: ModelShape,
    usable: Sequence[Machine],
    ignored: tuple[tuple[str, str], ...],
    ub: float,
) -> UtilityPlan:
    built = sorted(best.built, key=lambda one: one.pipeline)
    validate_pipelines([one.pipeline for one in built], fleet, model)
    used = {shard.machine_id for one in built for shard in one.pipeline}
    notes = [
        f"{s.name}: {s.pipelines} pipelines from {s.machines} machines, at most {s.gap:.2%} "
        "below its bound"
        for s in best.scopes
    ]
    if not built:
        notes.append(shortage(usable, model))
    notes += [f"{machine_id} is ignored: {reason}" for machine_id, reason in ignored]
    return UtilityPlan(
        pipelines=tuple(one.pipeline for one in built),
        standby=tuple(m.id for m in usable if m.id not in used),
        ignored=ignored,
        throughput=best.throughput,
        ub=ub,
        utility=best.utility,
        gap=best.gap,
        thetas=tuple(one.theta for one in built),
        latencies_ms=tuple(one.latency_ms for one in built),
        localities=tuple(tuple(m.id for m in inside) for inside in world.places),
        scopes=tuple(best.scopes),
        method=best.method,
        explanation=tuple(notes),
    )
