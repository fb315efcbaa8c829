"""Which placement does Helix find? (§4.4 and §4.5, solved by HiGHS instead of Gurobi)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Floats
from scheduler.fleet.costs import capacities
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard, in_layer_order
from scheduler.fleet.highs import open_highs
from scheduler.flow.max_flow import Flow, max_flow
from scheduler.flow.valid import validate_placement
from scheduler.helix.milp_model import SINK, SOURCE, MilpProgram, Pair, build_program, some_layer


@dataclass(frozen=True, slots=True)
class MilpOptions:
    """When to stop, besides at the optimum.

    ``stop_at`` is the share of the capped bound that is good enough (§4.5's early stop; Helix: 0.95
    of a bound it never came near). ``time_limit_s`` is handed to HiGHS; plans that must be the same
    everywhere use ``node_limit``. ``capped`` is explained at `build_program`; False solves the
    program as printed.
    """

    partial: bool = False
    capped: bool = True
    stop_at: float = 1.0
    relative_gap: float = 1e-6
    time_limit_s: float = math.inf
    node_limit: int = 10_000


@dataclass(frozen=True, slots=True)
class MilpResult:
    """What HiGHS found. ``tokens_per_s`` is the max flow of ``placement``, both empty if none.

    ``bound`` is the smaller of HiGHS's dual bound and the capped bound; ``start_tokens_per_s`` what
    the best warm start is worth on the links given. ``proven`` says that nothing better exists
    (within the gap asked for).
    """

    placement: Placement
    tokens_per_s: float
    bound: float
    proven: bool
    nodes: int
    start_tokens_per_s: float

    @property
    def gap(self) -> float:
        """How far the bound is above the result, relative to it; infinite when nothing flows."""
        if self.tokens_per_s <= 0:
            return 0.0 if self.bound <= 0 else math.inf
        return max(0.0, self.bound / self.tokens_per_s - 1)


def solve_milp(
    fleet: Fleet,
    model: ModelShape,
    options: MilpOptions = MilpOptions(),
    starts: Sequence[Placement] = (),
) -> MilpResult:
    """Helix's placement of a cluster: one thread, fixed seed.

    Of the ``starts``, the one that flows best on the fleet's links becomes HiGHS's first solution;
    one whose links were pruned away is worth 0 and said so in the result. Raises PlanError on a
    start that does not fit its machines. Meant for up to a handful of machines, and as what other
    planners are compared with: on 24 machines HiGHS rarely improves on its start.
    """
    program = build_program(fleet, model, partial=options.partial, capped=options.capped)
    valued: list[tuple[float, Flow, Placement]] = []
    for start in starts:
        validate_placement(start, fleet, model)
        flow = max_flow(fleet, model, start, partial=options.partial)
        valued.append((flow.tokens_per_s, flow, start))
    best = max(valued, key=lambda found: found[0], default=None)
    start_value = best[0] if best else 0.0
    if program.bound <= 0 or not program.machines:
        return MilpResult((), 0.0, 0.0, True, 0, start_value)
    highspy, solver = open_highs(
        mip_rel_gap=options.relative_gap,
        mip_abs_gap=1e-9,
        time_limit=options.time_limit_s,
        mip_max_nodes=options.node_limit,
        objective_target=options.stop_at * program.bound * (1 - 1e-9),
    )
    _load(solver, highspy, program)
    if best is not None:
        solution = highspy.HighsSolution()
        solution.col_value = list(start_columns(program, model, best[2], best[1]))
        solver.setSolution(solution)
    solver.run()
    return _result(solver, highspy, program, fleet, model, options, best)


def start_columns(
    program: MilpProgram, model: ModelShape, placement: Placement, flow: Flow
) -> Floats:
    """Every variable for a placement with its flow; idle machines hold a layer and pass nothing."""
    number = {machine.id: i for i, machine in enumerate(program.machines)}
    values = np.zeros(program.columns)
    ranges: dict[int, LayerRange] = {}
    for machine_id, layers in placement:
        ranges[number[machine_id]] = layers
    for i, machine in enumerate(program.machines):
        if i not in ranges:
            spare = some_layer(capacities(machine, model), model.layers)
            assert spare is not None, f"{machine.id} has variables but can hold nothing"
            ranges[i] = spare
        values[program.s[i]] = ranges[i].start
        values[program.b[i][len(ranges[i]) - 1]] = 1.0
    for (i, j), column in program.cond1.items():
        values[column] = float(ranges[j].start <= ranges[i].end)
        values[program.cond2[i, j]] = float(ranges[i].end < ranges[j].end)
    for (a, b), rate in flow.links.items():
        pair: Pair = (number.get(a, SOURCE), number.get(b, SINK))
        values[program.f[pair]] = rate
        values[program.d[pair]] = 1.0
    return values


def _load(solver: Any, api: Any, program: MilpProgram) -> None:
    n = program.columns
    none_i, none_f = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
    cost = np.zeros(n)
    cost[[column for (i, _), column in program.f.items() if i == SOURCE]] = 1.0
    upper = np.array(program.upper, dtype=np.float64)
    solver.addCols(n, cost, np.zeros(n), upper, 0, np.zeros(n, dtype=np.int32), none_i, none_f)
    whole = np.array([int(api.HighsVarType.kInteger if w else 0) for w in program.whole])
    solver.changeColsIntegrality(n, np.arange(n, dtype=np.int32), whole.astype(np.uint8))
    starts, indices, values = list[int](), list[int](), list[float]()
    for _, _, columns, coefficients in program.rows:
        starts.append(len(indices))
        indices += columns
        values += coefficients
    solver.addRows(
        len(program.rows),
        np.array([lower for lower, _, _, _ in program.rows]),
        np.array([upper for _, upper, _, _ in program.rows]),
        len(indices),
        np.array(starts, dtype=np.int32),
        np.array(indices, dtype=np.int32),
        np.array(values, dtype=np.float64),
    )
    solver.changeObjectiveSense(api.ObjSense.kMaximize)


def _result(
    solver: Any,
    api: Any,
    program: MilpProgram,
    fleet: Fleet,
    model: ModelShape,
    options: MilpOptions,
    start: tuple[float, Flow, Placement] | None,
) -> MilpResult:
    info = solver.getInfo()
    bound = program.bound
    if math.isfinite(info.mip_dual_bound):
        bound = min(bound, info.mip_dual_bound)
    placement: Placement = ()
    value = start_value = 0.0
    if start is not None:
        start_value = value = start[0]
        placement = start[2] if value > 0 else ()
    if info.primal_solution_status == 2:  # 2: a feasible point is there
        found = _placement(program, solver.getSolution().col_value)
        flow = max_flow(fleet, model, found, partial=options.partial).tokens_per_s
        if flow > value:
            value, placement = flow, found
    # not HiGHS's word for it: on the printed program its d_{i,j} of 10⁻⁶ can carry flow that no
    # placement has
    proven = bound <= value * (1 + max(options.relative_gap, 1e-5)) + 1e-5
    return MilpResult(placement, value, max(bound, value), proven, info.mip_node_count, start_value)


def _placement(program: MilpProgram, values: Sequence[float]) -> Placement:
    """§4.4, orchestration: c_i loads [s_i, e_i)."""
    shards = []
    for i, machine in enumerate(program.machines):
        start = round(values[program.s[i]])
        held = max(range(len(program.b[i])), key=lambda j: values[program.b[i][j]]) + 1
        shards.append(Shard(machine.id, LayerRange(start, start + held)))
    return in_layer_order(shards)
