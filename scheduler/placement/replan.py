"""Which machines should load other layers now that some came or left, when loading costs time?

A plan is worth the tokens it passes until the horizon: while machines load, only the others serve. So weights move only
where that pays, and fewer machines move before more do. The current placement is always one of the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.errors import PlanError
from scheduler.fleet import Fleet, ModelShape, Placement, Shard, in_layer_order
from scheduler.helix.max_flow import max_flow
from scheduler.placement.chain_search import ChainOptions, chain_search
from scheduler.placement.least_moves import hand_to_holders
from scheduler.placement.repair import repairs
from scheduler.placement.table import fits_at, table_of


@dataclass(frozen=True, slots=True)
class ReplanOptions:
    """``horizon_s`` is how long the fleet is expected to stay as it is; ``least_gain`` is the hysteresis.

    While machines load, at least the share ``least_served`` of what passes now must go on passing: a fleet that serves is
    not stopped for a better plan. ``load_bytes_per_s`` is what a machine loads from disk or network, each on its own. ``restarts`` of a full search
    are tried besides local repairs, 0 for none.
    """

    horizon_s: float = 1800.0
    load_bytes_per_s: float = 250e6
    least_gain: float = 0.01
    least_served: float = 0.5
    restarts: int = 2
    evaluations: int = 20_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """One machine's new layers. ``loads`` of them it does not hold yet; ``before`` is None for one that held nothing."""

    machine_id: str
    before: LayerRange | None
    after: LayerRange
    loads: int


@dataclass(frozen=True)
class Replan:
    """The placement to go to and what it takes. Flows are with partial inference, at once, while loading, and after.

    ``tokens`` is what passes until the horizon, ``tokens_if_kept`` what would without a move.
    """

    placement: Placement
    moves: tuple[Move, ...]
    kept_tokens_per_s: float
    loading_tokens_per_s: float
    tokens_per_s: float
    load_s: float
    tokens: float
    tokens_if_kept: float


def replan(
    fleet: Fleet, model: ModelShape, current: Placement, options: ReplanOptions = ReplanOptions()
) -> Replan:
    """The best way on from ``current``, whose shards on machines that left or shrank count as gone."""
    table = table_of(fleet, model)
    index = {machine.id: i for i, machine in enumerate(table.machines)}
    held = tuple(
        shard
        for shard in current
        if shard.machine_id in index
        and shard.layers.end <= model.layers
        and fits_at(
            table.kinds[table.kind_of[index[shard.machine_id]]],
            shard.layers.start,
            len(shard.layers),
            model.layers,
        )
    )
    flow = max_flow(fleet, model, held, partial=True).tokens_per_s if held else 0.0
    stay = flow * options.horizon_s
    best = Replan(held, (), flow, flow, flow, 0.0, stay, stay)
    for placement in _targets(fleet, model, held, options):
        found = _judge(fleet, model, held, placement, flow, options)
        served = found.loading_tokens_per_s >= flow * options.least_served
        if served and found.tokens > best.tokens * (1 + 1e-9):
            best = found
    best = _without_needless(fleet, model, held, best, options)
    if best.tokens <= stay * (1 + options.least_gain):
        return Replan(held, (), flow, flow, flow, 0.0, stay, stay)
    return best


def _targets(
    fleet: Fleet, model: ModelShape, held: Placement, options: ReplanOptions
) -> Sequence[Placement]:
    found = list(repairs(fleet, model, held))
    if options.restarts:
        search = ChainOptions(options.seed, options.restarts, options.evaluations)
        try:
            plan = chain_search(fleet, model, search, warm=[held] if held else [])
        except PlanError:
            return found
        found.append(hand_to_holders(fleet, model, held, plan.placement))
    return found


def moves_between(held: Placement, target: Placement) -> tuple[Move, ...]:
    """What every machine whose layers differ has to do, in order of id."""
    before = {shard.machine_id: shard.layers for shard in held}
    return tuple(
        Move(machine_id, old, layers, len(layers) - _common(old, layers))
        for machine_id, layers in sorted(target)
        if (old := before.get(machine_id)) != layers
    )


def _common(a: LayerRange | None, b: LayerRange) -> int:
    return 0 if a is None else max(0, min(a.end, b.end) - max(a.start, b.start))


def _judge(
    fleet: Fleet,
    model: ModelShape,
    held: Placement,
    target: Placement,
    kept: float,
    options: ReplanOptions,
) -> Replan:
    moves = moves_between(held, target)
    most = max((move.loads for move in moves), default=0)
    load_s = most * model.layer_bytes / options.load_bytes_per_s
    after = max_flow(fleet, model, target, partial=True).tokens_per_s
    loading = kept
    if most:
        away = {move.machine_id for move in moves if move.loads and not _grows(move)}
        staying = tuple(shard for shard in held if shard.machine_id not in away)
        loading = max_flow(fleet, model, staying, partial=True).tokens_per_s if staying else 0.0
    waited = min(load_s, options.horizon_s)
    tokens = loading * waited + after * (options.horizon_s - waited)
    return Replan(target, moves, kept, loading, after, load_s, tokens, kept * options.horizon_s)


def _grows(move: Move) -> bool:
    """Does it keep all it holds, and can hence serve on while it loads?"""
    old = move.before
    return old is not None and _common(old, move.after) == len(old)


def _without_needless(
    fleet: Fleet, model: ModelShape, held: Placement, plan: Replan, options: ReplanOptions
) -> Replan:
    """Take back, one by one, every move without which as many tokens pass."""
    before = {shard.machine_id: shard.layers for shard in held}
    for move in sorted(plan.moves, key=lambda move: (-move.loads, move.machine_id)):
        old = before.get(move.machine_id)
        shards = [shard for shard in plan.placement if shard.machine_id != move.machine_id]
        if old is not None:
            shards.append(Shard(move.machine_id, old))
        if not shards:
            continue
        fewer = in_layer_order(shards)
        found = _judge(fleet, model, held, fewer, plan.kept_tokens_per_s, options)
        if found.tokens >= plan.tokens * (1 - 1e-9):
            plan = found
    return plan
