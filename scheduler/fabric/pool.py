"""Which columns are in play, and which more do the prices ask for?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.fabric.columns import (
    Column,
    ColumnTable,
    Options,
    Part,
    columns_of,
    evaluate,
    undominated,
)
from scheduler.fabric.knapsack import Knapsack
from scheduler.fabric.lazy import PriceBound, neighbours
from scheduler.fabric.objective import Pieces, cost
from scheduler.fabric.solver import relax
from scheduler.fabric.switching import Switch, penalty_ms
from scheduler.fleet.arrays import Floats

IMPROVES = 1e-9


@dataclass(frozen=True, slots=True)
class PlacementEffort:
    """How hard to try, in counts.

    Up to ``exact_types`` types and ``combinations`` a model, every column is built. Otherwise
    columns are generated for ``rounds`` rounds from the ``parents`` best of each model, with ψ_DP
    thinned to ``degrees`` values.
    """

    exact_types: int = 3
    combinations: int = 150_000
    degrees: int = 32
    rounds: int = 12
    parents: int = 12
    mip_nodes: int = 20_000


class ColumnPool:
    """The columns in play and what each costs."""

    def __init__(
        self,
        options: Sequence[Options],
        pieces: Sequence[Pieces],
        worst: bool,
        switch: Switch,
        effort: PlacementEffort,
    ) -> None:
        self.options, self.pieces, self.worst = options, pieces, worst
        self.switch, self.effort = switch, effort
        self.counts = tuple(gpu.count for gpu in options[0].types)
        self.columns: list[Column] = []
        self.penalties: dict[Column, float] = {}

    def add(self, of: Options, table: ColumnTable) -> None:
        """Take over the undominated columns of a table."""
        penalty = penalty_ms(of, table, self.switch)
        kept = undominated(table, table.latency_ms + penalty)
        found = columns_of(of, kept)
        self.columns += found
        for column, ms in zip(found, penalty_ms(of, kept, self.switch), strict=True):
            self.penalties[column] = float(ms)

    def costs(self, column: Column) -> tuple[float, ...]:
        """What each part of a column costs, switching included."""
        return tuple(
            cost(self.pieces[part.model], part.latency_ms + self.penalties.get(column, 0.0))
            for part in column.parts
        )

    def knapsack(self) -> Knapsack:
        """The choice among the columns so far."""
        columns = tuple(self.columns)
        costs = tuple(self.costs(column) for column in columns)
        return Knapsack(self.counts, len(self.options), columns, costs, self.worst)

    def generate(self) -> float:
        """Add columns that the prices ask for; the best bound met on the way."""
        free, ones = np.zeros(len(self.counts)), np.ones(len(self.options))
        if self.worst:
            ones /= len(ones)
        limit = PriceBound(self.options, self.pieces)
        bound = limit.at(free, ones)
        for _ in range(self.effort.rounds):
            knapsack = self._with_way_out()
            relaxed = relax(knapsack)
            if relaxed is None:
                return bound
            weights, prices = relaxed.multipliers, relaxed.prices
            bound = max(bound, limit.at(prices, weights))
            before = len(self.columns)
            for of in self.options:
                self._improve(of, weights[of.model], prices)
            if len(self.columns) == before:
                break
        return bound

    def _with_way_out(self) -> Knapsack:
        """The knapsack with a column for each model that uses nothing, at a forbidding price."""
        real = self.knapsack()
        dear = 1e3 * max((c for costs in real.costs for c in costs), default=1.0) + 1e3
        nothing = tuple(
            Column((0,) * len(self.counts), (Part(of.model, (), dear, 1.0),)) for of in self.options
        )
        costs = (*real.costs, *(((dear,),) * len(nothing)))
        return Knapsack(real.counts, real.models, (*real.columns, *nothing), costs, real.worst)

    def _improve(self, of: Options, weight: float, prices: Floats) -> None:
        def reduced(column: Column) -> float:
            paid = sum(p * a for p, a in zip(prices, column.gpus, strict=True))
            return weight * self.costs(column)[0] + float(paid)

        own = [column for column in self.columns if column.parts[0].model == of.model]
        own.sort(key=lambda column: (reduced(column), column.gpus))
        parents = own[: self.effort.parents]
        near = {c for column in parents for c in neighbours(of, column, self.effort.degrees)}
        if not near:
            return
        fresh = ColumnPool(self.options, self.pieces, self.worst, self.switch, self.effort)
        fresh.add(of, evaluate(of, sorted(near)))
        best = reduced(own[0])
        known = set(own)
        better = [
            column
            for column in fresh.columns
            if column not in known and reduced(column) < best - IMPROVES * max(1.0, abs(best))
        ]
        better.sort(key=lambda column: (reduced(column), column.gpus))
        for column in better[: self.effort.parents]:
            self.columns.append(column)
            self.penalties[column] = fresh.penalties[column]
