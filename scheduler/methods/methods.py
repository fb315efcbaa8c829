"""What would each known method make of this fleet? One table of methods behind one function.

"auto" is what the product itself would do: candidates ranked by simulation for a cluster of
measured machines behind a coordinator (by flow when time is short), the utility plan for a fleet of
many replicas. The others are there to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from scheduler.fleet.costs import capacities
from scheduler.fleet.errors import FleetError, PlanError
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Pipeline, Placement, in_layer_order
from scheduler.fleet.gap import relative_gap
from scheduler.fleet.shortage import shortage, too_small
from scheduler.flow.max_flow import Flow
from scheduler.methods.outcome import PlannedChain, chains_of_flow, chains_of_pipelines

#: Ranking by simulation takes about so long on a few dozen machines.
SERVE_S = 60.0
TRACE_REQUESTS = 2_000
#: Up to this many machines plans are tried in simulation, some seconds each.
TRIED_MACHINES = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to look: until `clock` says `deadline_s`, or for the method's own counts."""

    clock: Callable[[], float] | None = None
    deadline_s: float = math.inf

    @property
    def left_s(self) -> float:
        return math.inf if self.clock is None else max(0.0, self.deadline_s - self.clock())


@dataclass(frozen=True)
class MethodPlan:
    """A placement and the chains that serve over it.

    ``chains`` are disjoint pipelines, or the paths of ``flow``: the one that the method chose, else
    a maximum flow (with partial slices). ``at_most`` bounds the tokens/s of every plan of this
    fleet. ``gap`` is the method's own distance to the proven best of what it optimises, NaN where a
    method proves nothing.
    ``standby`` machines could hold layers and hold none; ``ignored`` ones cannot.
    """

    method: str
    placement: Placement
    chains: tuple[PlannedChain, ...]
    disjoint: bool
    at_most: float
    gap: float
    standby: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    flow: Flow | None = None

    @property
    def tokens_per_s(self) -> float:
        return sum(chain.tokens_per_s for chain in self.chains)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a method answers: pipelines that share nobody, or a placement for a flow."""

    pipelines: tuple[Pipeline, ...] = ()
    placement: Placement = ()
    gap: float = math.nan
    notes: tuple[str, ...] = ()
    how: str = ""
    flow: Flow | None = None  # that its requests follow, where the method chose one


Method = Callable[[Fleet, ModelShape, Budget], _Found]


def plan_by(name: str, fleet: Fleet, model: ModelShape, budget: Budget = Budget()) -> MethodPlan:
    """The plan of one method of `METHODS`, validated.

    Raises FleetError for an unknown method or when the fleet cannot hold the model (saying what is
    short, and by how much).
    """
    if name not in METHODS:
        raise FleetError(f"no method {name!r}; there are {', '.join(sorted(METHODS))}")
    usable = [m for m in fleet.machines if capacities(m, model).plain >= 1]
    ignored = tuple(
        (m.id, too_small(m, model)) for m in fleet.machines if capacities(m, model).plain < 1
    )
    try:
        found = METHODS[name][1](fleet.subset(usable), model, budget)
    except PlanError as error:
        raise _infeasible(f"method {name} finds no plan: {error}", fleet, model) from None
    if not found.pipelines and not found.placement:
        why = "; ".join(found.notes)
        raise _infeasible(f"method {name} finds no plan: {why}", fleet, model)
    try:
        return _measured(name, found, fleet, usable, ignored, model)
    except PlanError as error:
        why = f"method {name} makes a plan that does not fit: {error}"
        raise _infeasible(why, fleet, model) from None


def _infeasible(why: str, fleet: Fleet, model: ModelShape) -> FleetError:
    """The reason in the fleet's terms where the fleet is at fault, else in the method's."""
    short = shortage(fleet.machines, model)
    if "together" in short and short not in why:
        return FleetError(why)
    return FleetError(f"no plan: {short}")


def _measured(
    name: str,
    found: _Found,
    fleet: Fleet,
    usable: list[Machine],
    ignored: tuple[tuple[str, str], ...],
    model: ModelShape,
) -> MethodPlan:
    from scheduler.fleet.validate import validate_pipelines
    from scheduler.flow.max_flow import least_latency_flow
    from scheduler.flow.valid import validate_placement

    flow: Flow | None = None
    if found.pipelines:
        validate_pipelines(found.pipelines, fleet, model)
        shards = [shard for pipeline in found.pipelines for shard in pipeline]
        placement = in_layer_order(shards)
        chains = chains_of_pipelines(found.pipelines, fleet, model)
    else:
        validate_placement(found.placement, fleet, model)
        placement = found.placement
        flow = found.flow or least_latency_flow(fleet, model, placement, partial=True)
        chains = chains_of_flow(flow, placement, fleet, model)
    holding = {shard.machine_id for shard in placement}
    return MethodPlan(
        method=found.how or name,
        placement=placement,
        chains=chains,
        disjoint=bool(found.pipelines),
        at_most=at_most(fleet.subset(usable), model),
        gap=found.gap,
        standby=tuple(m.id for m in usable if m.id not in holding),
        ignored=ignored,
        notes=found.notes,
        flow=flow,
    )


def at_most(fleet: Fleet, model: ModelShape) -> float:
    """Tokens/s that no plan of this fleet passes.

    Behind a coordinator, where a request has its stages whole, the capped bound of `helix.bounds`;
    else every machine's layers per second at its best, over L.
    """
    from scheduler.flow.bounds import capped_bound, trivial_bound

    bound = capped_bound if fleet.coordinator is not None else trivial_bound
    return bound(fleet, model)


def _auto(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    if fleet.coordinator is None:
        return replace(_utility(fleet, model, budget), how="utility")
    if any(machine.profile is None for machine in fleet.machines) or budget.left_s < SERVE_S:
        return replace(_search(fleet, model, budget), how="search")
    return replace(_serve(fleet, model, budget), how="serve")


def _utility(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.utility.plan import plan

    found = plan(fleet, model, clock=budget.clock, deadline=budget.deadline_s)
    return _Found(found.pipelines, gap=found.gap, notes=found.explanation)


def _parallax(method: str, scope: str = "auto") -> Method:
    def solve(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
        from scheduler.parallax.allocate import AllocateOptions, allocate

        options = AllocateOptions(method=method, scope=scope)  # type: ignore[arg-type]
        found = allocate(fleet, model, options)
        return _Found(found.pipelines, gap=found.gap, notes=found.explanation, how=found.method)

    return solve


def _simulated(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    """The utility plan and Parallax's, whichever serves most; too many machines are not tried."""
    from scheduler.search.trial import try_plans

    if fleet.coordinator is not None:
        return _auto(fleet, model, budget)
    found = {"utility": _utility(fleet, model, budget)}
    if len(fleet.machines) > TRIED_MACHINES:
        return replace(found["utility"], how="utility")
    for name, method in (("regions", _parallax("dp", "region")), ("score", _parallax("patterns"))):
        found[name] = method(fleet, model, budget)
    plans = {
        name: in_layer_order(shard for pipeline in plan.pipelines for shard in pipeline)
        for name, plan in found.items()
        if plan.pipelines
    }
    tried = try_plans(fleet, model, plans.items(), over=lambda: budget.left_s <= 0.0)
    notes = tuple(
        f"{trial.name} serves {trial.report.decode_tokens_per_s:.0f} output tokens/s in simulation"
        for trial in tried
    )
    best = tried[0].name if tried else "utility"
    return replace(found[best], notes=(*notes, *found[best].notes), how=f"simulated, {best}")


def _search(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.helix.planner import warm_starts
    from scheduler.search.plan_flow import plan_flow

    timed = budget.clock is not None and budget.left_s < math.inf
    found = plan_flow(
        fleet,
        model,
        warm=list(warm_starts(fleet, model).values()),
        clock=budget.clock if timed else None,
        seconds=budget.left_s if timed else None,
    )
    gap = relative_gap(found.tokens_per_s, found.bound)
    return _Found(placement=found.placement, gap=gap, notes=(f"found by {found.source}",))


def _serve(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    """Candidates of different depth, ranked by what they serve in simulation, prompts in chunks."""
    from scheduler.search.serve_plan import plan_to_serve
    from scheduler.simulate.traces import poisson
    from scheduler.simulate.work import ClosedLoop

    clock, half_s = budget.clock, budget.left_s / 2
    begun = clock() if clock is not None else 0.0
    found = plan_to_serve(
        fleet,
        model,
        ClosedLoop(poisson(0, TRACE_REQUESTS)),
        gathered=None if clock is None else (lambda: clock() >= begun + half_s),
        over=None if clock is None else (lambda: budget.left_s <= 0.0),
    )
    notes = [
        f"{ranked.candidate.source}: serves {ranked.report.decode_tokens_per_s:.0f} output "
        "tokens/s "
        f"({ranked.report.decode.mean_s:.2f} s a token, prompts "
        f"{ranked.report.prompt.mean_s:.2f} s) "
        f"at flow {ranked.candidate.tokens_per_s:.0f} over {ranked.candidate.stages:.1f} stages"
        for ranked in found.ranked
    ]
    best = found.best
    return _Found(placement=best.candidate.placement, notes=tuple(notes), flow=best.way.flow)


def _compact(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.stages.compact_milp import solve_compact

    found = solve_compact(fleet, model, partial=True, time_limit_s=budget.left_s)
    gap = relative_gap(found.tokens_per_s, found.bound)
    proof = "proven best where links do not bind" if found.proven else "not proven"
    return _Found(placement=found.placement, gap=gap, notes=(proof,))


def _stages(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.stages.stage_patterns import stage_patterns

    found = stage_patterns(fleet, model)
    gap = relative_gap(found.tokens_per_s, found.bound)
    return _Found(placement=found.placement, gap=gap)


def _helix(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.helix.milp import MilpOptions
    from scheduler.helix.planner import plan_helix

    found = plan_helix(fleet, model, MilpOptions(partial=True, time_limit_s=budget.left_s))
    gap = relative_gap(found.tokens_per_s, found.bound)
    start = f"started from {found.start_tokens_per_s:.1f} tokens/s, {found.nodes} nodes"
    return _Found(placement=found.placement, gap=gap, notes=(start,))


def _swarm(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.helix.swarm import swarm

    return _Found(placement=swarm(fleet, model))


def _petals(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.helix.petals import petals

    return _Found(placement=petals(fleet, model))


def _separate(mixed: bool) -> Method:
    def solve(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
        from scheduler.helix.separate import separate_pipelines

        return _Found(separate_pipelines(fleet, model, mixed=mixed))

    return solve


def _memory(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.methods.baselines import memory_proportional

    return _Found((memory_proportional(model.layers, fleet.machines),))


def _even(fleet: Fleet, model: ModelShape, budget: Budget) -> _Found:
    from scheduler.methods.baselines import even_split

    return _Found((even_split(model.layers, fleet.machines),))


#: Name: what it is, and the function.
METHODS: Mapping[str, tuple[str, Method]] = MappingProxyType(
    {
        "auto": ("utility for a fleet; serve for a cluster, or search when time is short", _auto),
        "utility": ("disjoint pipelines by throughput and latency, with a bound", _utility),
        "simulated": ("of the utility plan and Parallax's, what serves most", _simulated),
        "serve": ("candidates of different depth, ranked by what they serve in simulation", _serve),
        "search": ("chain search, stage patterns and all heuristics; the largest flow", _search),
        "stages": ("stage patterns: one pipeline of shared stages", _stages),
        "compact": ("compact integer program, proven where links do not bind", _compact),
        "score": (
            "Parallax's Z(k), proven by the configuration formulation",
            _parallax("patterns"),
        ),
        "dp": ("Parallax's phase 1 as printed, or over all regions if better", _parallax("dp")),
        "regions": (
            "Parallax's phase 1 as printed: inside each region, leftovers pooled",
            _parallax("dp", "region"),
        ),
        "greedy": ("Z(k) without a solver", _parallax("greedy")),
        "helix": ("Helix's mixed-integer program, slices may overlap", _helix),
        "swarm": ("Swarm: equal stages of equal power", _swarm),
        "petals": ("Petals: each machine where the model is thinnest", _petals),
        "separate": ("one pipeline for each type of machine", _separate(mixed=False)),
        "separate+": ("the same, and one mixed pipeline of the rest", _separate(mixed=True)),
        "memory": ("HyperCluster: layers in proportion to memory", _memory),
        "even": ("layers in equal parts", _even),
    }
)
