"""Which stages, as sets of kinds of machines, make the fastest single pipeline within a limit?

The stage-pattern problem: choose slice lengths, each with a multiset of machines whose rates at
that length add up to T or more; lengths add up to L; bisect on T. Links are not looked at, so it is
exact where they do not bind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.stages.chains import placement_of
from scheduler.stages.solver import LpColumn, maximise
from scheduler.stages.stages import StagePool
from scheduler.stages.table import StageTable, table_of

#: Most machines in one stage, and most patterns that one target may have.
MOST_MEMBERS = 8
MOST_PATTERNS = 40_000
#: Branch and bound nodes for each target.
NODE_LIMIT = 400


@dataclass(frozen=True)
class PatternPlan:
    """A pipeline in which every stage passes ``tokens_per_s`` or more while no link binds.

    ``bound``: no pipeline of stages within the limit passes more (as far as the node limit could
    prove).
    """

    placement: Placement
    tokens_per_s: float
    stages: int
    bound: float


def stage_patterns(
    fleet: Fleet,
    model: ModelShape,
    *,
    most_stages: int | None = None,
    tolerance: float = 1e-4,
    node_limit: int = NODE_LIMIT,
    over: Callable[[], bool] | None = None,
) -> PatternPlan:
    """The pipeline of the largest T, to ``tolerance``, of at most ``most_stages`` stages.

    ``over`` may end the bisection early. Raises PlanError when no such pipeline exists.
    """
    table = table_of(fleet, model)
    pool = StagePool(table)
    limit = min(most_stages or model.layers, model.layers)
    low, high, best = 0.0, table.capped_bound, None
    proven = high
    # a first point for the bisection: any pipeline at all
    target = high * 0.5
    while high - low > tolerance * high:
        if over is not None and best is not None and over():
            break
        stages, hopeless = _stages_at(table, target, limit, node_limit)
        flow = pool.flow([pool.stage(s) for s in stages], 0.0) if stages else -1.0
        if flow >= target * (1 - 1e-12) and flow > low:
            best, low = stages, flow
        else:
            high = target
            if hopeless:
                proven = min(proven, target)
        if high <= 1e-6 * table.capped_bound:
            break
        target = (low + high) / 2
    if best is None:
        raise PlanError("empty", f"no pipeline of at most {limit} stages")
    return PatternPlan(placement_of(pool, [best]), low, len(best), max(proven, low))


def _stages_at(
    table: StageTable, target: float, most_stages: int, node_limit: int
) -> tuple[list[list[int]], bool]:
    """Stages that hold L layers at the target, [] if none was found; whether there are none."""
    patterns = patterns_at(table, target)
    if not patterns:
        return [], True
    kinds = len(table.kinds)
    columns = [
        LpColumn(
            float(most_stages),
            True,
            float(layers),
            [*[(kind, float(n)) for kind, n in sorted(Counter(members).items())], (kinds, 1.0)],
        )
        for members, layers in patterns
    ]
    rows = [(0.0, float(len(kind.members))) for kind in table.kinds] + [(0.0, float(most_stages))]
    answer = maximise(columns, rows, node_limit=node_limit, enough=float(table.model.layers))
    if answer.values is None or answer.value < table.model.layers - 0.5:
        return [], answer.bound < table.model.layers - 0.5
    chosen = [
        members
        for (members, _), many in zip(patterns, answer.values, strict=True)
        for _ in range(round(many))
    ]
    return hand_out(table, chosen), False


def hand_out(table: StageTable, stages: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Machines by index for stages of kinds, the first of each kind first."""
    left = [list(reversed(kind.members)) for kind in table.kinds]
    return [[left[kind].pop() for kind in members] for members in stages]


def patterns_at(table: StageTable, target: float) -> list[tuple[tuple[int, ...], int]]:
    """Multisets of kinds with the layers they hold at the target, without useless machines."""
    curves = [[-rate for rate in _falling(kind.rates)] for kind in table.kinds]
    most = [kind.fits.plain for kind in table.kinds]
    counts = [len(kind.members) for kind in table.kinds]
    found = list[tuple[tuple[int, ...], int]]()
    known: dict[tuple[int, ...], int] = {}

    def held(members: tuple[int, ...]) -> int:
        layers = known.get(members)
        if layers is None:
            top = min(most[kind] for kind in members)
            curve = [sum(curves[kind][k] for kind in members) for k in range(top)]
            layers = known[members] = bisect_right(curve, -target)
        return layers

    def grow(members: tuple[int, ...], first: int) -> None:
        for kind in range(first, len(counts)):
            if members.count(kind) == counts[kind]:
                continue
            grown = (*members, kind)
            layers = held(grown)
            if layers and all(
                held(grown[:i] + grown[i + 1 :]) < layers
                for i in range(len(grown))
                if len(grown) > 1 and (i == 0 or grown[i] != grown[i - 1])
            ):
                found.append((grown, layers))
            if len(grown) < MOST_MEMBERS and len(found) < MOST_PATTERNS:
                grow(grown, kind)

    grow((), 0)
    return found


def _falling(rates: tuple[float, ...]) -> list[float]:
    falling, best = list[float](), 0.0
    for rate in reversed(rates):
        best = max(best, rate)
        falling.append(best)
    return falling[::-1]
