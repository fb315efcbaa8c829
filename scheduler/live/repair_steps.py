"""By which step is coverage restored with the least moved?

From mild to drastic: standby machines where the hole is, one serving machine extended or moved on,
machines that others can spare, everybody anew. Who is fixed by its owner takes part and is told
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.costs import tokens_per_s
from scheduler.fleet.fleet import Fleet, Machine, ModelShape
from scheduler.live.hand_over import least_moved
from scheduler.live.holdings import (
    Holding,
    alone,
    dearest_slice,
    fits,
    is_whole,
    loaded_bytes,
    missing,
)
from scheduler.live.standby import Rules, pipelines_of
from scheduler.methods.methods import Budget


@dataclass(frozen=True, slots=True)
class Restored:
    """Who holds what after the mildest step that gives coverage (see `Change.step`), and why."""

    step: str
    holding: Holding
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """What a step works on."""

    fleet: Fleet
    model: ModelShape
    fixed: Collection[str]
    partial: bool

    def is_whole(self, holding: Mapping[str, LayerRange]) -> bool:
        return is_whole(self.fleet, self.model, holding, self.partial)

    def missing(self, holding: Mapping[str, LayerRange]) -> list[LayerRange]:
        return missing(holding, self.model.layers, self.partial)

    def free(self, holding: Mapping[str, LayerRange]) -> list[Machine]:
        return [machine for machine in self.fleet.machines if machine.id not in holding]


def restored(
    fleet: Fleet,
    model: ModelShape,
    holding: Mapping[str, LayerRange],
    fixed: Collection[str] = (),
    rules: Rules = Rules(),
    budget: Budget = Budget(),
) -> Restored:
    """Coverage again by the mildest step that gives it; what was there if no step does."""
    work = Work(fleet, model, fixed, rules.partial)
    steps: tuple[tuple[str, Callable[[Work, Holding], Iterable[Holding]]], ...] = (
        ("standby", _filled_by_one),
        ("several", _filled),
        ("extend", _extended),
        ("several", _filled_after_release),
    )
    for name, step in steps if holding else ():
        for found in step(work, dict(holding)):
            if work.is_whole(found):
                return Restored(name, found)
    if len(fleet.machines) < rules.min_machines and not holding:
        return Restored("waiting", {})
    anew = pipelines_of(
        fleet.subset(m for m in fleet.machines if m.id not in fixed), model, rules, budget
    )
    if anew.holding:
        found = least_moved(fleet, model, anew.holding, holding, fixed)
        return Restored("anew", found, anew.why)
    return Restored("impossible", dict(holding), anew.why)


def _filled_by_one(work: Work, holding: Holding) -> Iterator[Holding]:
    """One standby machine takes the whole hole and, with partial slices, what fits around it."""
    holes = work.missing(holding)
    if not holes:
        yield from _any_free(work, holding)
        return
    hole = LayerRange(holes[0].start, holes[-1].end)
    if len(holes) > 1 and not work.partial:
        return
    able = [m for m in work.free(holding) if fits(m, work.model, hole.start, hole.end)]
    for machine in sorted(able, key=lambda m: (m.memory_bytes, m.id)):
        wider = None
        if work.partial:
            wider = dearest_slice(machine, work.fleet, work.model, holding, must=hole)
        yield {**holding, machine.id: wider or hole}


def _any_free(work: Work, holding: Holding) -> Iterator[Holding]:
    """All layers are held but no chain connects: standby machines that hold much may join it."""
    added = dict(holding)
    for machine in work.free(holding):
        layers = dearest_slice(machine, work.fleet, work.model, added)
        if layers is not None:
            added[machine.id] = layers
    if len(added) > len(holding):
        yield added


def _filled(work: Work, holding: Holding) -> Iterator[Holding]:
    """Holes from left to right, each by the standby machine that reaches furthest with least."""
    for hole in work.missing(holding):
        start = hole.start
        while start < hole.end:
            step = _furthest(work.free(holding), work.model, start, hole.end)
            if step is None:
                return
            machine, end = step
            holding[machine.id] = LayerRange(start, end)
            start = end
    yield holding


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


def _extended(work: Work, holding: Holding) -> Iterator[Holding]:
    """One serving machine takes the whole hole beside what only it holds; least to load first."""
    model = work.model
    holes = work.missing(holding)
    if not holes:
        return
    hole = LayerRange(holes[0].start, holes[-1].end)
    ways: list[tuple[int, str, LayerRange]] = []
    for machine_id, own in holding.items():
        if machine_id in work.fixed or not (own.start <= hole.end and hole.start <= own.end):
            continue  # apart from the hole: that would be a move
        only = alone(holding, machine_id, model.layers)
        start = min(hole.start, only.start if only else hole.start)
        end = max(hole.end, only.end if only else hole.end)
        machine = work.fleet.by_id[machine_id]
        # Of what it also holds it keeps as much as fits.
        for wider in ((min(start, own.start), max(end, own.end)), (start, end)):
            if fits(machine, model, *wider):
                layers = LayerRange(*wider)
                ways.append((loaded_bytes(model, own, layers), machine_id, layers))
                break
    for _, machine_id, layers in sorted(ways):
        yield {**holding, machine_id: layers}


def _filled_after_release(work: Work, holding: Holding) -> Iterator[Holding]:
    """The same with machines whose layers others hold too, those with least to lose first."""
    spare, layers = dict(holding), work.model.layers
    by_id = work.fleet.by_id
    while True:
        redundant = [i for i in spare if i not in work.fixed and alone(spare, i, layers) is None]
        if not redundant:
            return
        gone = min(redundant, key=lambda i: (tokens_per_s(by_id[i], work.model, len(spare[i])), i))
        del spare[gone]
        for found in _filled(work, dict(spare)):
            # A machine that was not needed in the hole stays where it was.
            yield {**{i: held for i, held in holding.items() if i not in found}, **found}
