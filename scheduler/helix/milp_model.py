"""Which mixed integer program is Helix's placement problem? (§4.4, tables 5 and 6)

Variables, in order of columns:

- s_i, whole: first layer of machine c_i; its end is e_i = s_i + Σ_j j b_i^j
- b_i^j, binary: c_i holds j layers
- f_{i,j} ≥ 0: flow from c_i to c_j, also from the source and to the sink
- d_{i,j}, binary: the connection is valid
- cond1_{i,j}, cond2_{i,j}, binary, with partial inference only: s_j ≤ e_i, and e_i < e_j

Only the half of each indicator that forbids is kept, as shipped: nothing is gained by closing a
valid connection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.protocol.types import LayerRange
from scheduler.fleet.costs import Capacities, capacities, link_tokens_per_s
from scheduler.fleet.fleet import Fleet, Machine, ModelShape
from scheduler.flow.bounds import capped_bound, rate_table

#: The two ends of a flow, where machines are numbers from 0.
SOURCE, SINK = -1, -2
Pair = tuple[int, int]


@dataclass
class MilpProgram:
    """Maximise Σ_i f_{source,i} over rows `lower ≤ Σ values · columns ≤ upper`."""

    machines: tuple[Machine, ...]
    rates: tuple[tuple[float, ...], ...]
    layers: int
    bound: float
    columns: int = 0
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, tuple[int, ...], tuple[float, ...]]] = field(
        default_factory=list
    )
    s: list[int] = field(default_factory=list)
    b: list[tuple[int, ...]] = field(default_factory=list)
    f: dict[Pair, int] = field(default_factory=dict)
    d: dict[Pair, int] = field(default_factory=dict)
    cond1: dict[Pair, int] = field(default_factory=dict)
    cond2: dict[Pair, int] = field(default_factory=dict)

    def column(self, upper: float, whole: bool) -> int:
        self.upper.append(upper)
        self.whole.append(whole)
        self.columns += 1
        return self.columns - 1

    def row(self, lower: float, upper: float, *terms: tuple[int, float]) -> None:
        self.rows.append((lower, upper, tuple(c for c, _ in terms), tuple(v for _, v in terms)))

    def end(self, i: int, sign: float = 1.0) -> list[tuple[int, float]]:
        """± e_i = s_i + Σ_j j b_i^j."""
        held = [(column, sign * j) for j, column in enumerate(self.b[i], 1)]
        return [(self.s[i], sign), *held]


def build_program(
    fleet: Fleet, model: ModelShape, *, partial: bool = False, capped: bool = False
) -> MilpProgram:
    """The program of a cluster with the connections its links allow (see `prune_links`).

    ``capped`` bounds each connection's S_{i,j} and each T_j by `capped_bound`, which no flow
    exceeds: far tighter than the printed program, where S reaches 10⁸ and a d_{i,j} of 10⁻⁶ lets
    real flow through. Machines without room for a layer have no variables. Where a machine holds
    fewer layers at an end of the model, two rows more forbid the excess.
    """
    machines = tuple(m for m in fleet.machines if some_layer(capacities(m, model), model.layers))
    bound = capped_bound(fleet, model)
    most = bound if capped else math.inf
    rates = tuple(tuple(min(t, most) for t in rate_table(m, model)) for m in machines)
    program = MilpProgram(machines, rates, model.layers, bound)
    limits = _connections(fleet, model, machines, most)
    _variables(program, limits, partial)
    for i, machine in enumerate(machines):
        _placement(program, i, capacities(machine, model))
    _flow(program)
    for pair in limits:
        _validity(program, pair, partial)
    for pair, limit in limits.items():
        # Constraint-5: f_{i,j} ≤ d_{i,j} S_{i,j}
        program.row(-math.inf, 0.0, (program.f[pair], 1.0), (program.d[pair], -limit))
    return program


def some_layer(fits: Capacities, layers: int) -> LayerRange | None:
    """One layer, the first possible, that a machine can hold by itself."""
    if layers == 1:
        return LayerRange(0, 1) if fits.both else None
    if fits.first:
        return LayerRange(0, 1)
    if fits.plain and layers > 2:
        return LayerRange(1, 2)
    return LayerRange(layers - 1, layers) if fits.last else None


def _connections(
    fleet: Fleet, model: ModelShape, machines: tuple[Machine, ...], most: float
) -> Mapping[Pair, float]:
    """S_{i,j} of every usable connection; the best T of a machine where no bandwidth is known."""
    coordinator, links = fleet.coordinator, fleet.links
    best = [max(rate_table(machine, model)) for machine in machines]
    found: dict[Pair, float] = {}
    for i, machine in enumerate(machines):
        into = out = math.inf
        if coordinator is not None:
            into = link_tokens_per_s(links, coordinator, machine, model)
            out = link_tokens_per_s(links, machine, coordinator, model)
        found[SOURCE, i] = best[i] if math.isinf(into) else into
        found[i, SINK] = best[i] if math.isinf(out) else out
        for j, other in enumerate(machines):
            if i != j:
                between = link_tokens_per_s(links, machine, other, model)
                found[i, j] = min(best[i], best[j]) if math.isinf(between) else between
    return {pair: min(most, limit) for pair, limit in found.items() if limit > 0}


def _variables(program: MilpProgram, limits: Mapping[Pair, float], partial: bool) -> None:
    program.s = [program.column(program.layers - 1, True) for _ in program.machines]
    program.b = [tuple(program.column(1, True) for _ in table) for table in program.rates]
    program.f = {pair: program.column(math.inf, False) for pair in limits}
    program.d = {pair: program.column(1, True) for pair in limits}
    if partial:
        inner = [pair for pair in limits if min(pair) >= 0]
        program.cond1 = {pair: program.column(1, True) for pair in inner}
        program.cond2 = {pair: program.column(1, True) for pair in inner}


def _placement(program: MilpProgram, i: int, fits: Capacities) -> None:
    """Constraint-1: Σ_j b_i^j = 1 and e_i ≤ L."""
    program.row(1.0, 1.0, *((column, 1.0) for column in program.b[i]))
    program.row(-math.inf, program.layers, *program.end(i))
    beyond_first = [(c, -1.0) for j, c in enumerate(program.b[i], 1) if j > fits.first]
    beyond_last = [(c, 1.0) for j, c in enumerate(program.b[i], 1) if j > fits.last]
    if beyond_first and fits.first < fits.plain:
        program.row(0.0, math.inf, (program.s[i], 1.0), *beyond_first)
    if beyond_last and fits.last < fits.plain:
        end = dict(program.end(i))
        for column, value in beyond_last:
            end[column] += value
        program.row(-math.inf, program.layers, *end.items())
    if len(program.b[i]) == program.layers > fits.both:
        program.upper[program.b[i][-1]] = 0.0


def _flow(program: MilpProgram) -> None:
    """Constraint-2, Σ_u f_{u,i} = Σ_v f_{i,v}, and constraint-3, Σ_u f_{u,i} ≤ Σ_j b_i^j T_j."""
    into: list[list[int]] = [[] for _ in program.machines]
    out: list[list[int]] = [[] for _ in program.machines]
    for (i, j), column in program.f.items():
        if j >= 0:
            into[j].append(column)
        if i >= 0:
            out[i].append(column)
    for i, table in enumerate(program.rates):
        arriving = [(column, 1.0) for column in into[i]]
        program.row(0.0, 0.0, *arriving, *((column, -1.0) for column in out[i]))
        passed = [(column, -rate) for column, rate in zip(program.b[i], table, strict=True)]
        program.row(-math.inf, 0.0, *arriving, *passed)


def _validity(program: MilpProgram, pair: Pair, partial: bool) -> None:
    """Constraint-4: which connections may be valid."""
    i, j = pair
    L, d = program.layers, program.d[pair]
    if i == SOURCE:  # s_j ≤ L (1 − d)
        program.row(-math.inf, L, (program.s[j], 1.0), (d, L))
    elif j == SINK:  # L d ≤ e_i
        program.row(-math.inf, 0.0, (d, L), *program.end(i, -1.0))
    elif partial:
        cond1, cond2 = program.cond1[pair], program.cond2[pair]
        # (L + 1)(1 − cond1) ≥ s_j − e_i
        program.row(-math.inf, L + 1, (program.s[j], 1.0), *program.end(i, -1.0), (cond1, L + 1))
        # e_j − e_i ≥ 1 − (L + 1)(1 − cond2)
        program.row(-L, math.inf, *program.end(j), *program.end(i, -1.0), (cond2, -(L + 1)))
        # d ≤ cond1 / 2 + cond2 / 2
        program.row(-math.inf, 0.0, (d, 1.0), (cond1, -0.5), (cond2, -0.5))
    else:
        # L d ≤ L + s_j − e_i and L d ≤ L − s_j + e_i
        program.row(-math.inf, L, (d, L), (program.s[j], -1.0), *program.end(i))
        program.row(-math.inf, L, (d, L), (program.s[j], 1.0), *program.end(i, -1.0))
