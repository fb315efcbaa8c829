"""Which few machines, by taking other layers, make up for what a placement lacks?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.stages.coverage import Ranges, as_placement, coverage, ranges_of
from scheduler.stages.table import StageTable, fits_at, table_of

#: Flows aimed at, as shares of the capped bound.
TARGETS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


def patches(
    fleet: Fleet,
    model: ModelShape,
    held: Placement,
    *,
    at_least: float = 0.0,
    fixed: Collection[str] = (),
) -> Iterator[Placement]:
    """Placements that differ from that held in ever more machines, aimed at ever less flow.

    Only those whose every layer passes `at_least`. Links are not looked at: the caller, which
    chooses among them measures the flow. Shards that their machines cannot hold are left out.
    """
    table = table_of(fleet, model)
    index = {machine.id: i for i, machine in enumerate(table.machines)}
    fitting = tuple(
        shard
        for shard in held
        if shard.machine_id in index
        and fits_at(
            table.kinds[table.kind_of[index[shard.machine_id]]],
            shard.layers.start,
            len(shard.layers),
            model.layers,
        )
    )
    start, seen = ranges_of(table, fitting), {fitting}
    movable = [i for i, machine in enumerate(table.machines) if machine.id not in fixed]
    idle = [i for i in movable if start[i] is None]
    for allowed in (idle, movable):
        for share in TARGETS:
            target = table.capped_bound * share
            if target < at_least:
                break
            ranges = start[:]
            for _ in range(len(start)):
                step = best_step(table, ranges, target, allowed)
                if step is None:
                    break
                ranges[step[0]] = step[1:]
                if min(coverage(table, ranges)) < at_least:
                    continue
                placement = as_placement(table, ranges)
                if placement not in seen:
                    seen.add(placement)
                    yield placement


def best_step(
    table: StageTable, ranges: Ranges, target: float, allowed: Iterable[int]
) -> tuple[int, int, int] | None:
    """(machine, first layer, layers): the change that most lowers what lacks per layer loaded.

    None when nothing lacks or no change lowers it.
    """
    covered, total = coverage(table, ranges), table.model.layers
    best, most = None, 1e-9 * target
    tried = set[tuple[int, tuple[int, int] | None]]()
    for i in allowed:
        kind, held = table.kinds[table.kind_of[i]], ranges[i]
        if (table.kind_of[i], held) in tried:
            continue
        tried.add((table.kind_of[i], held))
        without = covered[:]
        rate = kind.rates[held[1] - 1] if held else 0.0
        for layer in range(held[0], held[0] + held[1]) if held else ():
            without[layer] -= rate
        short = [max(0.0, target - now) for now in without]
        lost = sum(short) - sum(max(0.0, target - now) for now in covered)
        for k, rate in enumerate(kind.rates, 1):
            gains = [min(rate, lack) for lack in short]
            gain = sum(gains[:k])
            for at in range(total - k + 1):
                if at:
                    gain += gains[at + k - 1] - gains[at - 1]
                if gain - lost <= most or not fits_at(kind, at, k, total):
                    continue
                loads = k - _common(held, at, k)
                value = (gain - lost) / (2 + loads)
                if value > most:
                    best, most = (i, at, k), value
    return best


def _common(held: tuple[int, int] | None, start: int, layers: int) -> int:
    if held is None:
        return 0
    return max(0, min(held[0] + held[1], start + layers) - max(held[0], start))
