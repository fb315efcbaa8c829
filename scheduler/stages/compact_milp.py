"""How many machines of each kind hold [s, s + k), for the largest flow, where links do not bind?

Equal machines are counted, not told apart, and the vertices are the model's layer boundaries
instead of pairs of machines: no big-M, no symmetry. Two forms: boundary flow (a hop only where one
range ends and the next begins) and coverage (partial inference: a range may be entered anywhere).
Both are exact while no link binds; the bound holds always.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard, in_layer_order
from scheduler.stages.solver import LpColumn, Solution, maximise
from scheduler.stages.table import StageTable, fits_at, table_of

#: Enough for the 24-node clusters to be proven; larger fleets stop here with what they have.
NODE_LIMIT = 2_000


@dataclass(frozen=True)
class CompactPlan:
    """A placement, its flow while no link binds, and the proven limit of this form."""

    placement: Placement
    tokens_per_s: float
    bound: float
    proven: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    kind: int
    start: int
    layers: int
    rate: float


def solve_compact(
    fleet: Fleet,
    model: ModelShape,
    *,
    partial: bool,
    node_limit: int = NODE_LIMIT,
    time_limit_s: float = math.inf,
    gap: float = 1e-9,
) -> CompactPlan:
    """The best counts within the limits; an empty placement when none was found.

    Every T(k) is capped at the capped bound: a rate above the flow is of no use.
    """
    table = table_of(fleet, model)
    choices = _choices(table)
    build = _coverage if partial else _boundary
    columns, rows = build(table, choices)
    answer = maximise(columns, rows, node_limit=node_limit, time_limit_s=time_limit_s, gap=gap)
    bound = min(table.capped_bound, max(answer.bound, 0.0))
    if answer.values is None:
        return CompactPlan((), 0.0, bound, answer.proven)
    placement = _hand_out(table, choices, answer)
    return CompactPlan(placement, max(0.0, answer.value), bound, answer.proven)


def _choices(table: StageTable) -> list[_Choice]:
    total, cap = table.model.layers, table.capped_bound
    return [
        _Choice(index, start, k, min(rate, cap))
        for index, kind in enumerate(table.kinds)
        for k, rate in enumerate(kind.rates, 1)
        for start in range(total - k + 1)
        if fits_at(kind, start, k, total)
    ]


def _counts(table: StageTable) -> list[tuple[float, float]]:
    return [(-math.inf, float(len(kind.members))) for kind in table.kinds]


def _coverage(
    table: StageTable, choices: list[_Choice]
) -> tuple[list[LpColumn], list[tuple[float, float]]]:
    """Maximise F with Σ over (s, k) that cover a layer of y·T(k) ≥ F, for every layer."""
    total = table.model.layers
    columns = [
        LpColumn(
            float(len(table.kinds[c.kind].members)),
            True,
            0.0,
            [(layer, c.rate) for layer in range(c.start, c.start + c.layers)]
            + [(total + c.kind, 1.0)],
        )
        for c in choices
    ]
    flow = LpColumn(table.capped_bound, False, 1.0, [(layer, -1.0) for layer in range(total)])
    return [*columns, flow], [(0.0, math.inf)] * total + _counts(table)


def _boundary(
    table: StageTable, choices: list[_Choice]
) -> tuple[list[LpColumn], list[tuple[float, float]]]:
    """Arcs s → s + k of capacity y·T(k); conserve the flow at every boundary, maximise what leaves
    0.

    Machines of all kinds share one flow variable per (s, k), so the whole part has no pairs in it.
    """
    total = table.model.layers
    inner, counts = total - 1, total - 1 + len(table.kinds)
    arcs = sorted({(c.start, c.layers) for c in choices})
    row_of = {arc: counts + i for i, arc in enumerate(arcs)}
    columns = [
        LpColumn(
            float(len(table.kinds[c.kind].members)),
            True,
            0.0,
            [(inner + c.kind, 1.0), (row_of[c.start, c.layers], c.rate)],
        )
        for c in choices
    ]
    for start, layers in arcs:
        entries = [(row_of[start, layers], -1.0)]
        if start > 0:
            entries.append((start - 1, -1.0))
        if start + layers < total:
            entries.append((start + layers - 1, 1.0))
        columns.append(LpColumn(table.capped_bound, False, 0.0 if start else 1.0, entries))
    rows = [(0.0, 0.0)] * inner + _counts(table) + [(0.0, math.inf)] * len(arcs)
    return columns, rows


def _hand_out(table: StageTable, choices: list[_Choice], answer: Solution) -> Placement:
    """Give the counted ranges to the machines of each kind, in order of layers and of id."""
    assert answer.values is not None
    left = [list(reversed(kind.members)) for kind in table.kinds]
    shards = []
    for choice, many in sorted(
        zip(choices, answer.values, strict=False), key=lambda pair: pair[0].start
    ):
        for _ in range(round(many)):
            machine = table.machines[left[choice.kind].pop()]
            layers = LayerRange(choice.start, choice.start + choice.layers)
            shards.append(Shard(machine.id, layers))
    return in_layer_order(shards)
