"""How much passes every layer of a placement if no link binds and ranges open anywhere?

With partial inference the only cuts are the machines that hold one layer, so the max flow is the
least coverage: min over layers of Σ T of the machines that hold it (HELIX: coverage form).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from core.protocol.types import LayerRange
from scheduler.fleet.fleet import Placement, Shard, in_layer_order
from scheduler.stages.table import StageKind, StageTable, fits_at

#: Temperature at the start and the end of `raise_coverage`, in layers at the target.
HOT, COLD = 0.3, 0.02
RAISE = 1 + 1e-6

#: (first layer, layers) of each machine by index, None for a machine that holds nothing.
Ranges = list[tuple[int, int] | None]


def ranges_of(table: StageTable, placement: Placement) -> Ranges:
    """The ranges of a placement; machines that are not in the table are left out."""
    index = {machine.id: i for i, machine in enumerate(table.machines)}
    ranges: Ranges = [None] * len(table.machines)
    for machine_id, layers in placement:
        if machine_id in index:
            ranges[index[machine_id]] = (layers.start, len(layers))
    return ranges


def as_placement(table: StageTable, ranges: Ranges) -> Placement:
    """Shards in order of layers."""
    shards = [
        Shard(table.machines[i].id, LayerRange(held[0], held[0] + held[1]))
        for i, held in enumerate(ranges)
        if held is not None
    ]
    return in_layer_order(shards)


def coverage(table: StageTable, ranges: Ranges) -> list[float]:
    """Tokens per second through each layer."""
    covered = [0.0] * table.model.layers
    for i, held in enumerate(ranges):
        if held is not None:
            rate = table.kinds[table.kind_of[i]].rates[held[1] - 1]
            for layer in range(held[0], held[0] + held[1]):
                covered[layer] += rate
    return covered


def neighbour(
    kind: StageKind, held: tuple[int, int] | None, total: int, draw: Callable[[], float]
) -> tuple[int, int] | None:
    """Another range for a machine: ends moved a little, or anywhere; None when it does not fit."""
    way = draw()
    if held is None or way < 0.1:
        k = 1 + int(draw() * min(len(kind.rates), total))
        start = int(draw() * (total - k + 1))
    else:
        start, k = held
        by = 1 if draw() < 0.7 else 2
        if draw() < 0.5:
            by = -by
        if way < 0.4:
            start += by
        elif way < 0.7:
            k += by
        else:
            start, k = start + by, k - by
    if start < 0 or k < 1 or start + k > total or not fits_at(kind, start, k, total):
        return None
    return start, k


def raise_coverage(
    table: StageTable,
    ranges: Ranges,
    *,
    seed: int,
    evaluations: int,
    stop: Callable[[], bool] | None = None,
) -> Ranges:
    """Ranges of most least coverage, by annealing what layers lack of a target; never worse."""
    draw = random.Random(seed).random
    total = table.model.layers
    kinds = [table.kinds[kind] for kind in table.kind_of]
    ranges, best = ranges[:], ranges[:]
    covered = coverage(table, ranges)
    target = max(min(covered), table.capped_bound * 1e-3) * RAISE
    lack = _lack(covered, target)
    n, fade = len(ranges), (COLD / HOT) ** (64.0 / max(64, evaluations))
    temperature = HOT / fade
    for step in range(evaluations):
        if not step & 63:
            temperature *= fade
            if stop is not None and not step & 1023 and stop():
                break
        i = int(draw() * n)
        held = ranges[i]
        new = neighbour(kinds[i], held, total, draw)
        if new is None:
            continue
        changed = dict[int, float]()
        if held is not None:
            rate = kinds[i].rates[held[1] - 1]
            for layer in range(held[0], held[0] + held[1]):
                changed[layer] = covered[layer] - rate
        rate = kinds[i].rates[new[1] - 1]
        for layer in range(new[0], new[0] + new[1]):
            changed[layer] = changed.get(layer, covered[layer]) + rate
        after = lack
        for layer, now in changed.items():
            before = covered[layer]
            if now < target:
                after += target - now
            if before < target:
                after -= target - before
        if after > lack - temperature * target * math.log(1.0 - draw()):
            continue
        ranges[i], lack = new, after
        for layer, now in changed.items():
            covered[layer] = now
        if lack <= 1e-9 * target:
            covered = coverage(table, ranges)
            best, target = ranges[:], min(covered) * RAISE
            lack = _lack(covered, target)
    return best


def _lack(covered: list[float], target: float) -> float:
    return sum(target - now for now in covered if now < target)
