"""Where do standby machines serve, and is moving one serving machine worth it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.allocate import allocate
from scheduler.costs import capacities, tokens_per_s
from scheduler.fleet import Fleet, ModelShape, Shard
from scheduler.flow_lp import solve_flow_lp
from scheduler.slices import (
    Holding,
    dearest_slice,
    is_whole,
    layer_supply,
    loaded_bytes,
    uncovered,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How eager to move a serving machine for balance.

    The throughput over all slices must rise by ``worth_share``, the last such move be ``rest_ms`` old, and what is
    gained in ``horizon_s`` exceed what the machine does not serve while it loads at ``load_bytes_per_s``.
    """

    worth_share: float = 0.15
    rest_ms: int = 60_000
    horizon_s: float = 600.0
    load_bytes_per_s: float = 125e6


def with_standby(fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange]) -> Holding:
    """Standby machines serve at once: as whole pipelines where they suffice, the others where the model is thinnest."""
    holding = dict(holding)
    free = [m for m in fleet.machines if m.id not in holding and capacities(m, model).plain >= 1]
    if sum(capacities(m, model).plain for m in free) >= model.layers:
        own = allocate(fleet.subset(free), model)
        holding |= dict(own.shards)
        free = [machine for machine in free if machine.id not in holding]
    if not holding:
        return holding
    for machine in sorted(free, key=lambda m: (-tokens_per_s(m, model, 1), m.id)):
        layers = dearest_slice(machine, fleet, model, holding)
        if layers is not None:
            holding[machine.id] = layers
    return holding


def balanced(
    fleet: Fleet,
    model: ModelShape,
    holding: Mapping[str, LayerRange],
    serving: Mapping[str, LayerRange],
    rules: Rules,
) -> Holding | None:
    """One serving machine moved where it raises throughput by enough to be worth it, else None."""
    now = throughput(fleet, model, holding)
    supply = layer_supply(fleet, model, holding)
    thinnest = supply.index(min(supply))

    def spare(i: str) -> tuple[float, str]:
        return -min(supply[holding[i].start : holding[i].end]), i

    best: tuple[float, Holding] | None = None
    movable = [i for i in holding if thinnest not in holding[i]]
    for i in sorted(movable, key=spare)[:8]:
        rest = {other: layers for other, layers in holding.items() if other != i}
        serves = {other: layers for other, layers in serving.items() if other != i}
        if uncovered(rest, model.layers) or (
            is_whole(fleet, model, serving) and not is_whole(fleet, model, serves)
        ):
            continue
        machine = fleet.by_id[i]
        layers = dearest_slice(machine, fleet, model, rest)
        if layers is None or layers == holding[i]:
            continue
        after = throughput(fleet, model, {**rest, i: layers})
        loading_s = loaded_bytes(model, holding[i], layers) / rules.load_bytes_per_s
        lost = loading_s * (now - throughput(fleet, model, rest))
        gain = (after - now) * rules.horizon_s - lost
        moved = {**rest, i: layers}
        if (
            after >= now * (1 + rules.worth_share)
            and gain > 0
            and (best is None or gain > best[0])
            and is_whole(fleet, model, rest)
            and is_whole(fleet, model, moved)
        ):
            best = gain, moved
    return None if best is None else best[1]


def throughput(fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange]) -> float:
    """Tokens per second over these slices with partial use."""
    placement = tuple(Shard(i, layers) for i, layers in sorted(holding.items()))
    return solve_flow_lp(fleet, model, placement, fewest_hops=False).tokens_per_s
