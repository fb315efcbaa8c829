"""How much flow fits through a network, over which arcs, and over which at least cost?

scipy's Dinic finds the largest flow, HiGHS's simplex the cheapest. Both answer in whole numbers, so
that a flow conserves exactly: the corners of a network's linear program are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from scheduler.fleet.arrays import Ints
from scheduler.fleet.highs import open_highs

#: (tail, head, capacity ≥ 0)
Arc: TypeAlias = tuple[int, int, int]
#: scipy counts flow in 32 bits, signed.
BITS = 30
#: The dearest arc in HiGHS's objective: its tolerances are absolute.
DEAREST = 1e3


@dataclass(frozen=True)
class ArcFlow:
    """A largest flow: its value, the flow on each arc, and the source's side of a minimum cut."""

    value: int
    on_arc: list[int]
    source_side: frozenset[int]


def largest(vertices: int, arcs: Sequence[Arc], source: int, sink: int) -> ArcFlow:
    """A maximum flow. Capacities together are below 2^62."""
    if not arcs:
        return ArcFlow(0, [], frozenset({source}))
    tail, head, most = _columns(arcs)
    shape = (vertices, vertices)
    room = csr_array((np.where(tail == head, 0, most), (tail, head)), shape=shape)
    flow = csr_array(shape, dtype=np.int64)
    limit = int(room[[source]].sum())
    # The high bits first. What is then left over is less than one unit an arc, either way.
    while limit:
        shift = max(0, limit.bit_length() - BITS)
        left = room - flow
        left.data = np.minimum(left.data, limit) >> shift
        left.eliminate_zeros()
        found = maximum_flow(left.astype(np.int32), source, sink).flow.astype(np.int64)
        found.data <<= shift
        flow = flow + found
        limit = 2 * len(arcs) << shift if shift else 0
    left = room - flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    return ArcFlow(
        int(flow[[source]].sum()), _on_arcs(flow, tail, head, most), frozenset(reached.tolist())
    )


def _columns(arcs: Sequence[Arc]) -> tuple[Ints, Ints, Ints]:
    tail, head, most = np.array(arcs, dtype=np.int64).reshape(-1, 3).T
    return tail, head, most


def _on_arcs(flow: csr_array, tail: Ints, head: Ints, most: Ints) -> list[int]:
    """What passes from vertex to vertex, given to parallel arcs one after the other."""
    between = np.maximum(0, np.asarray(flow[tail, head]).ravel())
    between[tail == head] = 0
    given = list[int]()
    before: dict[tuple[int, int], int] = {}
    for *ends, capacity, passed in zip(
        tail.tolist(), head.tolist(), most.tolist(), between.tolist(), strict=True
    ):
        pair = (ends[0], ends[1])
        amount = min(capacity, passed - before.get(pair, 0))
        before[pair] = before.get(pair, 0) + amount
        given.append(amount)
    return given


class Cheapest:
    """All flows of one value through a network, to be asked for the cheapest by different costs."""

    def __init__(
        self, vertices: int, arcs: Sequence[Arc], source: int, sink: int, value: int
    ) -> None:
        self._tail, self._head, most = _columns(arcs)
        self._gain = np.zeros(vertices, dtype=np.int64)
        self._gain[[source, sink]] = -value, value
        many = len(arcs)
        api, self._solver = open_highs()
        self._optimal = api.HighsModelStatus.kOptimal
        program = api.HighsLp()
        program.num_col_, program.num_row_ = many, vertices
        program.col_cost_ = program.col_lower_ = np.zeros(many)
        program.col_upper_ = np.where(self._tail == self._head, 0, most).astype(np.float64)
        program.row_lower_ = program.row_upper_ = self._gain.astype(np.float64)
        program.a_matrix_.format_ = api.MatrixFormat.kColwise
        program.a_matrix_.start_ = np.arange(0, 2 * many + 1, 2, dtype=np.int32)
        program.a_matrix_.index_ = np.column_stack([self._tail, self._head]).ravel()
        program.a_matrix_.value_ = np.tile([-1.0, 1.0], many)
        self._solver.passModel(program)

    def at(self, costs: Sequence[float]) -> list[int]:
        """The flow on each arc of the cheapest flow; costs are ≥ 0.

        Raises ArithmeticError where no flow has this value.
        """
        many = len(costs)
        scaled = np.array(costs, dtype=np.float64) * (DEAREST / max(1e-300, *costs, 1e-300))
        self._solver.changeColsCost(many, np.arange(many, dtype=np.int32), scaled)
        self._solver.run()
        flow = np.rint(self._solver.getSolution().col_value).astype(np.int64)
        gain = np.zeros_like(self._gain)
        np.add.at(gain, self._head, flow)
        np.add.at(gain, self._tail, -flow)
        if self._solver.getModelStatus() != self._optimal or not np.array_equal(gain, self._gain):
            raise ArithmeticError("no such flow, or HiGHS does not find it")
        return [int(amount) for amount in flow]
