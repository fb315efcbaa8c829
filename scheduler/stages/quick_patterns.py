"""Which single pipeline that passes so much takes a prompt the least time?

The fastest pipeline takes every machine that adds a token, and most prompts then cross slow ones: a
few percent less flow often needs far fewer of them. Same patterns as `stage_patterns` at a given T,
each with the time of a mean prompt in its layers, over its machines by what they pass; lengths add
up to L, and the sum of times is the least.
"""

from __future__ import annotations

from collections import Counter

from scheduler.fleet.costs import prefill_ms_per_layer
from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.fleet.workload import Workload
from scheduler.stages.chains import placement_of
from scheduler.stages.solver import LpColumn, maximise
from scheduler.stages.stage_patterns import hand_out, patterns_at
from scheduler.stages.stages import StagePool
from scheduler.stages.table import StageTable, table_of

#: Layers fewer than a pattern could hold at T, so that lengths can add up to L exactly.
FEWER = 1
#: Branch and bound nodes.
NODE_LIMIT = 2000


def quick_patterns(
    fleet: Fleet, model: ModelShape, tokens_per_s: float, *, most_stages: int | None = None
) -> Placement:
    """A pipeline of at most ``most_stages`` stages of ``tokens_per_s`` or more; no link binds.

    Its prompts take the least time that the node limit finds. Raises PlanError when there is no
    such pipeline.
    """
    table = table_of(fleet, model)
    limit = min(most_stages or model.layers, model.layers)
    kinds = len(table.kinds)
    columns, stages = list[LpColumn](), list[tuple[int, ...]]()
    for members, most in patterns_at(table, tokens_per_s):
        counts = [(kind, float(n)) for kind, n in sorted(Counter(members).items())]
        for layers in range(most, max(0, most - 1 - FEWER), -1):
            ms = _prompt_ms(table, model, members, layers)
            entries = [*counts, (kinds, float(layers)), (kinds + 1, 1.0)]
            columns.append(LpColumn(float(limit), True, -ms, entries))
            stages.append(members)
    total = float(model.layers)
    rows = [(0.0, float(len(kind.members))) for kind in table.kinds]
    answer = maximise(
        [*columns], [*rows, (total, total), (0.0, float(limit))], node_limit=NODE_LIMIT
    )
    if answer.values is None:
        raise PlanError("empty", f"no pipeline of at most {limit} stages passes {tokens_per_s:.1f}")
    chosen = [
        members
        for members, many in zip(stages, answer.values, strict=True)
        for _ in range(round(many))
    ]
    return placement_of(StagePool(table), [hand_out(table, chosen)])


def _prompt_ms(
    table: StageTable, model: ModelShape, members: tuple[int, ...], layers: int
) -> float:
    """What a mean prompt takes in a stage, each kind as often as it passes tokens."""
    prompt_tokens = round(Workload().input_tokens)
    rates = [table.kinds[kind].rates[layers - 1] for kind in members]
    times = [
        prefill_ms_per_layer(table.machines[table.kinds[kind].members[0]], model, prompt_tokens)
        for kind in members
    ]
    return layers * sum(r * t for r, t in zip(rates, times, strict=True)) / sum(rates)
