"""Which machine holds which layers (phase 1, from a fleet to validated pipelines)?

Region by region first, leftovers pooled over all regions, and over the whole fleet at once where
that serves better, so there is never "no pipeline" while the fleet holds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from scheduler.fleet.connected import search_connected
from scheduler.fleet.costs import capacities, pipeline_ms
from scheduler.fleet.fleet import Fleet, Links, Machine, ModelShape, Pipeline, Shard
from scheduler.fleet.gap import relative_gap
from scheduler.fleet.kinds import Pool, most_layers_of_any, pool_of
from scheduler.fleet.shortage import shortage, too_small
from scheduler.fleet.validate import validate_pipelines
from scheduler.parallax.assemble import Balance, arrange, hand_out, split
from scheduler.parallax.column_generation import PatternLimits, allocate_by_patterns
from scheduler.parallax.greedy_cover import allocate_greedily
from scheduler.parallax.objective import objective_for
from scheduler.parallax.parallax_allocate import (
    Cover,
    Objective,
    ScoredK,
    TooManyStates,
    allocate_by_dp,
)

GLOBAL = "all regions"


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """How to plan.

    ``alpha`` is the replication preference of Z(k). ``t_comp_ms`` and ``r_rtt_ms`` override the
    fleet's averages. ``scope``: "region" is the paper's (inside regions, leftovers pooled),
    "global" ignores regions, "auto" makes both where the fleet has at most ``both_scopes_up_to``
    machines and keeps the better. ``method``: "dp" is dp₁, "patterns" the configuration
    formulation, "greedy" takes machines one after another; "auto" uses dp₁ up to ``dp_machines``
    machines, then patterns.
    """

    alpha: float = 1.0
    t_comp_ms: float | None = None
    r_rtt_ms: float | None = None
    scope: Literal["auto", "region", "global"] = "auto"
    method: Literal["auto", "dp", "patterns", "greedy"] = "auto"
    balance: Balance = "rate"
    both_scopes_up_to: int = 512
    dp_machines: int = 8
    dp_states: int = 20_000
    limits: PatternLimits = field(default_factory=PatternLimits)


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """What phase 1 found in a scope: the k considered, the best Z, its bound, how it was solved."""

    scope: str
    machines: int
    pipelines: int
    z: float
    z_at_most: float
    method: str
    scores: tuple[ScoredK, ...]

    @property
    def gap(self) -> float:
        return relative_gap(self.z, self.z_at_most)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A validated plan.

    ``standby`` machines could hold layers but are in no pipeline; ``ignored`` ones hold none, with
    the reason. ``z`` is k^α over the plan's own mean latency per token; ``gap`` the worst distance
    to a proven bound of Z(k) in any scope. An impossible fleet gives no pipelines and an
    explanation of what is short.
    """

    pipelines: tuple[Pipeline, ...]
    standby: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]
    scopes: tuple[ScopeResult, ...]
    z: float
    explanation: tuple[str, ...]

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Every shard of the plan, in order of machine id."""
        return tuple(sorted(shard for pipeline in self.pipelines for shard in pipeline))

    @property
    def gap(self) -> float:
        return max((scope.gap for scope in self.scopes), default=0.0)

    @property
    def method(self) -> str:
        """How the scopes were solved, most used first."""
        methods = [scope.method for scope in self.scopes]
        return ", ".join(sorted(set(methods), key=lambda name: (-methods.count(name), name)))


DEFAULTS = AllocateOptions()


def allocate(fleet: Fleet, model: ModelShape, options: AllocateOptions = DEFAULTS) -> Allocation:
    """Phase 1 (Parallax §3.2): pipelines that maximise Z(k), layers water-filled inside each.

    Deterministic, independent of the order of machines, and validated. Raises FleetError for absurd
    options only.
    """
    usable = [machine for machine in fleet.machines if capacities(machine, model).plain >= 1]
    ignored = tuple(
        (machine.id, too_small(machine, model))
        for machine in fleet.machines
        if capacities(machine, model).plain < 1
    )
    plans = []
    regions = {machine.region for machine in usable}
    if options.scope != "global" and len(regions) > 1:
        plans.append(_by_region(usable, fleet.links, model, options))
    if not plans or (options.scope == "auto" and len(usable) <= options.both_scopes_up_to):
        plans.append(_Plan([], [], []).extended(GLOBAL, usable, fleet.links, model, options))
    ranked = [
        (_realised_z(plan.pipelines, fleet, model, options.alpha), -i)
        for i, plan in enumerate(plans)
    ]
    best = plans[-max(ranked)[1]]
    validate_pipelines(best.pipelines, fleet, model)
    used = {shard.machine_id for pipeline in best.pipelines for shard in pipeline}
    notes = [_sentence(scope) for scope in best.scopes if scope.pipelines] + best.notes
    if not best.pipelines:
        notes.append(shortage(usable, model))
    notes += [f"{machine_id} is ignored: {reason}" for machine_id, reason in ignored]
    return Allocation(
        pipelines=tuple(sorted(best.pipelines)),
        standby=tuple(machine.id for machine in usable if machine.id not in used),
        ignored=ignored,
        scopes=tuple(best.scopes),
        z=max(ranked)[0],
        explanation=tuple(notes),
    )


@dataclass(slots=True)
class _Plan:
    pipelines: list[Pipeline]
    scopes: list[ScopeResult]
    notes: list[str]

    def extended(
        self,
        scope: str,
        machines: Sequence[Machine],
        links: Links,
        model: ModelShape,
        options: AllocateOptions,
    ) -> _Plan:
        """This plan and the best pipelines of one more scope."""
        pool = pool_of(machines, model)
        caps = [capacities(machine, model) for machine in machines]
        if most_layers_of_any(caps, model.layers) < model.layers:
            return self
        cover = best_cover(
            pool,
            objective_for(
                machines, links, model, options.alpha, options.t_comp_ms, options.r_rtt_ms
            ),
            options,
        )
        orders, notes = [], list[str]()
        left = {machine.id: machine for machine in machines}
        for group in hand_out(pool, cover.patterns, model, links):
            order = arrange(group, model, links)
            if order is not None:
                orders.append(order)
                for machine in order:
                    del left[machine.id]
        while len(orders) < len(cover.patterns):
            order = search_connected(list(left.values()), model, links)
            if order is None:
                lost = len(cover.patterns) - len(orders)
                notes.append(
                    f"{scope}: {lost} pipelines less, their machines cannot reach each other"
                )
                break
            orders.append(order)
            for machine in order:
                del left[machine.id]
        pipelines = [split(order, model, options.balance) for order in orders]
        found = ScopeResult(
            scope,
            len(machines),
            len(pipelines),
            cover.z,
            cover.z_at_most,
            cover.method,
            cover.scores,
        )
        return _Plan([*self.pipelines, *pipelines], [*self.scopes, found], [*self.notes, *notes])


def _by_region(
    machines: Sequence[Machine], links: Links, model: ModelShape, options: AllocateOptions
) -> _Plan:
    plan = _Plan([], [], [])
    for region in sorted({machine.region for machine in machines}):
        inside = [machine for machine in machines if machine.region == region]
        plan = plan.extended(region or "unnamed region", inside, links, model, options)
    used = {shard.machine_id for pipeline in plan.pipelines for shard in pipeline}
    left = [machine for machine in machines if machine.id not in used]
    return plan.extended(
        "leftovers of all regions" if used else GLOBAL, left, links, model, options
    )


def best_cover(pool: Pool, objective: Objective, options: AllocateOptions = DEFAULTS) -> Cover:
    """k̂ = arg max Z(k), the patterns of its pipelines and the proof, by the method asked for."""
    if options.method == "greedy":
        return allocate_greedily(pool, objective)
    if options.method == "dp" or (
        options.method == "auto" and sum(pool.counts) <= options.dp_machines
    ):
        try:
            return allocate_by_dp(pool, objective, options.dp_states)
        except TooManyStates:
            pass  # the configuration formulation answers the same question
    return allocate_by_patterns(pool, objective, options.limits)


def _realised_z(
    pipelines: Sequence[Pipeline], fleet: Fleet, model: ModelShape, alpha: float
) -> float:
    if not pipelines:
        return 0.0
    mean = sum(pipeline_ms(pipeline, fleet, model) for pipeline in pipelines) / len(pipelines)
    return float(len(pipelines) ** alpha / mean)


def _sentence(scope: ScopeResult) -> str:
    proof = "proven best" if scope.gap <= 1e-12 else f"at most {scope.gap:.2%} below the best"
    return (
        f"{scope.scope}: {scope.pipelines} pipelines from {scope.machines} machines, "
        f"Z = {scope.z:.6g} by {scope.method}, {proof}"
    )
