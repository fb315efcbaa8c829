"""By which step is coverage restored with the least moved?

From mild to drastic: one serving machine extended, one standby machine where the hole is, several of them, machines that
others can spare, everybody anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from core.protocol.types import LayerRange
from scheduler.allocate import allocate
from scheduler.costs import tokens_per_s
from scheduler.fleet import Fleet, Machine, ModelShape
from scheduler.slices import Holding, alone, dearest_slice, fits, is_whole, loaded_bytes, uncovered


def restored(
    fleet: Fleet, model: ModelShape, holding: Mapping[str, LayerRange]
) -> tuple[str, Holding]:
    """Coverage again by the mildest step that gives it; what was there if no step does."""
    if not holding:
        found = _anew(fleet, model, {})
        return ("impossible", {}) if found is None else ("anew", found)
    steps: tuple[tuple[str, Callable[[Fleet, ModelShape, Holding], Holding | None]], ...] = (
        ("extend", _extended),
        ("standby", _filled_by_one),
        ("several", _filled),
        ("several", _filled_after_release),
        ("anew", _anew),
    )
    for name, step in steps:
        found = step(fleet, model, dict(holding))
        if found is not None and is_whole(fleet, model, found):
            return name, found
    return "impossible", dict(holding)


def _extended(fleet: Fleet, model: ModelShape, holding: Holding) -> Holding | None:
    """One serving machine takes the whole hole beside what only it holds, with the fewest bytes to load."""
    holes = uncovered(holding, model.layers)
    if not holes:
        return None
    hole = LayerRange(holes[0].start, holes[-1].end)
    best: tuple[int, str, LayerRange] | None = None
    for machine_id, own in holding.items():
        only = alone(holding, machine_id, model.layers)
        if not (own.start <= hole.end and hole.start <= own.end):
            continue  # apart from the hole: that would be a move
        start = min(hole.start, only.start if only else hole.start)
        end = max(hole.end, only.end if only else hole.end)
        machine = fleet.by_id[machine_id]
        # Of what it also holds it keeps as much as fits.
        for wider in ((min(start, own.start), max(end, own.end)), (start, end)):
            if fits(machine, model, *wider):
                layers = LayerRange(*wider)
                found = (loaded_bytes(model, own, layers), machine_id, layers)
                if best is None or found < best:
                    best = found
                break
    return None if best is None else {**holding, best[1]: best[2]}


def _filled_by_one(fleet: Fleet, model: ModelShape, holding: Holding) -> Holding | None:
    """One standby machine takes the whole hole, and as many layers around it as fit."""
    holes = uncovered(holding, model.layers)
    free = [machine for machine in fleet.machines if machine.id not in holding]
    if not holes:
        return _any_free(fleet, model, holding, free)
    hole = LayerRange(holes[0].start, holes[-1].end)
    able = [m for m in free if fits(m, model, hole.start, hole.end)]
    for machine in sorted(able, key=lambda m: (m.memory_bytes, m.id)):
        layers = dearest_slice(machine, fleet, model, holding, must=hole) or hole
        return {**holding, machine.id: layers}
    return None


def _any_free(
    fleet: Fleet, model: ModelShape, holding: Holding, free: Iterable[Machine]
) -> Holding | None:
    """Every layer is held but no chain connects: standby machines that hold much may join the parts."""
    added = dict(holding)
    for machine in free:
        layers = dearest_slice(machine, fleet, model, added)
        if layers is not None:
            added[machine.id] = layers
    return added if len(added) > len(holding) else None


def _filled(fleet: Fleet, model: ModelShape, holding: Holding) -> Holding | None:
    """Holes from left to right, each by whoever of the standby machines reaches furthest, smallest first if it is enough."""
    for hole in uncovered(holding, model.layers):
        start = hole.start
        while start < hole.end:
            free = [machine for machine in fleet.machines if machine.id not in holding]
            step = _furthest(free, model, start, hole.end)
            if step is None:
                return None
            machine, end = step
            holding[machine.id] = LayerRange(start, end)
            start = end
    return holding


def _furthest(
    free: Sequence[Machine], model: ModelShape, start: int, stop: int
) -> tuple[Machine, int] | None:
    best: tuple[int, int, str] | None = None
    chosen: Machine | None = None
    for machine in free:
        end = stop
        while end > start and not fits(machine, model, start, end):
            end -= 1
        if end == start:
            continue
        found = (-end, machine.memory_bytes, machine.id)
        if best is None or found < best:
            best, chosen = found, machine
    return None if best is None or chosen is None else (chosen, -best[0])


def _filled_after_release(fleet: Fleet, model: ModelShape, holding: Holding) -> Holding | None:
    """The same with machines whose every layer others hold too, those with the least to lose first."""
    spare = dict(holding)
    while True:
        redundant = [i for i in spare if alone(spare, i, model.layers) is None]
        if not redundant:
            return None
        gone = min(redundant, key=lambda i: (tokens_per_s(fleet.by_id[i], model, len(spare[i])), i))
        del spare[gone]
        found = _filled(fleet, model, dict(spare))
        if found is not None:
            # Whoever was not needed in the hole stays where it was.
            return {**{i: h for i, h in holding.items() if i not in found}, **found}


def _anew(fleet: Fleet, model: ModelShape, holding: Holding) -> Holding | None:
    """Everybody planned anew; whoever was planned for a slice that another one holds changes places with it."""
    planned = dict(allocate(fleet, model).shards)
    if not planned:
        return None
    holder = {layers: i for i, layers in sorted(holding.items()) if i in planned}
    for i, layers in sorted(planned.items()):
        other = holder.get(layers)
        if other is None or other == i or holding.get(i) == layers:
            continue
        theirs = planned[other]
        if theirs != layers and fits(fleet.by_id[i], model, theirs.start, theirs.end):
            planned[i], planned[other] = theirs, layers
    # Nobody healthy goes to standby: who is not in the new plan stays where it was.
    stays = {i: layers for i, layers in holding.items() if i not in planned}
    return {**stays, **planned}
