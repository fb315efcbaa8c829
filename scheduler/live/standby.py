"""Where do standby machines serve, and what pipelines are planned together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.costs import capacities, tokens_per_s
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, Machine, ModelShape, Shard
from scheduler.live.holdings import Holding, dearest_slice, is_whole
from scheduler.live.rebalance import join
from scheduler.methods.explain_plan import explain_plan
from scheduler.methods.methods import Budget, plan_by

DEFAULT_METHOD = "utility"


@dataclass(frozen=True, slots=True)
class Rules:
    """How to plan, and how eager to.

    ``method`` of `scheduler.methods.methods` plans for many at once, for the first time when
    ``min_machines`` are there and whenever nobody came or went for ``settle_ms``. ``partial`` tells
    whether requests use parts of slices.

    Serving machines are moved for balance only if loads vary by more than ``load_spread``
    (`layer_loads`), throughput rises by ``worth_share``, at least ``least_served`` of it goes on
    while they load at ``load_bytes_per_s`` each, more tokens pass until ``horizon_s``, and nothing
    has changed for ``rest_ms``.
    """

    method: str = DEFAULT_METHOD
    partial: bool = True
    min_machines: int = 1
    settle_ms: int = 0
    load_spread: float = 0.1
    worth_share: float = 0.1
    least_served: float = 0.5
    horizon_s: float = 600.0
    load_bytes_per_s: float = 125e6
    rest_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Slices that cover the model and why; none, and what is short, where nothing does."""

    holding: Holding
    why: tuple[str, ...]


def pipelines_of(
    fleet: Fleet, model: ModelShape, rules: Rules, budget: Budget = Budget()
) -> Pipelines:
    """Slices over these machines alone, by the method of the rules, else by the utility plan."""
    refused: list[str] = []
    for method in dict.fromkeys((rules.method, DEFAULT_METHOD)):
        try:
            found = plan_by(method, fleet, model, budget)
        except FleetError as error:
            refused.append(str(error))
            continue
        if not found.disjoint and not is_whole(fleet, model, dict(found.placement), rules.partial):
            refused.append(f"method {method} makes slices that no machines here use whole")
            continue
        sentences = explain_plan(found, fleet, model).sentences
        return Pipelines(dict(found.placement), (*refused, *sentences))
    return Pipelines({}, tuple(dict.fromkeys(refused)))


def with_standby(
    fleet: Fleet,
    model: ModelShape,
    holding: Mapping[str, LayerRange],
    rules: Rules = Rules(),
    budget: Budget = Budget(),
) -> Pipelines:
    """Standby machines serve: as whole pipelines if they can, else where the model is thinnest."""
    holding, why = dict(holding), tuple[str, ...]()
    free = [m for m in fleet.machines if m.id not in holding and capacities(m, model).plain >= 1]
    if sum(capacities(m, model).plain for m in free) >= model.layers:
        own = pipelines_of(fleet.subset(free), model, rules, budget)
        if own.holding:
            holding, why = holding | own.holding, own.why
            free = [machine for machine in free if machine.id not in holding]
    if not holding:
        return Pipelines(holding, why)
    for machine in sorted(free, key=lambda m: (-tokens_per_s(m, model, 1), m.id)):
        layers = thinnest_slice(machine, fleet, model, holding, rules.partial)
        if layers is not None:
            holding[machine.id] = layers
    return Pipelines(holding, why)


def thinnest_slice(
    machine: Machine,
    fleet: Fleet,
    model: ModelShape,
    holding: Mapping[str, LayerRange],
    partial: bool,
) -> LayerRange | None:
    """The slice where another machine helps most; without ``partial`` its ends meet others'."""
    if partial:
        return dearest_slice(machine, fleet, model, holding)
    return join(machine, fleet, model, [Shard(*item) for item in holding.items()])
