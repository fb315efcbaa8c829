"""Which chain is best now, when τ, loads and KV room change between any two questions?

Every change has a version. An answer whose version is current is returned as it is; a change that
provably cannot alter it passes its version on in O(1); any other change re-runs the sweep from the
first segment it touches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Floats
from scheduler.fleet.fleet import Pipeline
from scheduler.routing.bounds import Bounds
from scheduler.routing.layout import RoutingLayout, Sweep, best_end, sweep, trace
from scheduler.routing.parallax_route import Answer, NoRoute, Route, no_route, priced_route
from scheduler.routing.partial import best_partial
from scheduler.routing.routing_table import RoutingTable
from scheduler.routing.sweep import Run
from scheduler.routing.whole import sweep_whole

#: Bounds are made anew once chains may have become cheaper by this share of the answer.
STALE_SHARE = 0.05


@dataclass(slots=True)
class Counts:
    """How often each way to an answer was taken."""

    cached: int = 0
    dismissed: int = 0
    resumed: int = 0
    searched: int = 0


@dataclass(slots=True)
class KeptAnswer:
    """The last pass over a layout: enough to go on from the first segment that a change touches."""

    layout: RoutingLayout
    beyond: float  # no chain that leaves this layout costs less
    tau: list[float]
    after: list[float]
    swept: Sweep
    number: dict[int, int]  # k by g
    changed: set[int] = field(default_factory=set)  # g since then


class LiveRouter:
    """The best chain over one placement, kept current; the same answers as `route`.

    Stages are parts of shards, or whole ones without ``partial``. ``marginal`` weighs a machine by
    what one more resident costs everybody there, not only itself.
    """

    ends = True

    def __init__(
        self, table: RoutingTable, *, partial: bool = True, marginal: bool = False
    ) -> None:
        many = len(table.machines)
        self.table, self.counts, self.version = table, Counts(), 0
        self.partial = partial
        self._marginal = marginal
        self._busy = [0] * many
        self._factor = list(table.paces.correction)
        self._floor_factor = list(table.paces.correction)
        self._ready = [True] * many
        self._room = table.kv_tokens.tolist()
        self._slots: list[int] = table.slots.tolist()
        self._needed = 0  # tokens that the answer's machines must have free
        self._credit = dict[int, float]()
        self._slack = 0.0  # how much cheaper than its bound any chain may be
        self._answer: Answer | None = None
        self._stamp = -1
        self._runs: list[Run] = []
        self._cost = inf
        self._kept: KeptAnswer | None = None
        self._bounds: Bounds | None = None
        self._repriced = False
        self._weights: Floats | None = None  # `one` of every machine

    def load(self, machine_id: str, in_flight: int) -> None:
        """This number of requests is on the machine now."""
        g = self.table.index[machine_id]
        before = self.one(g)
        self._busy[g] = max(0, in_flight)
        self._changed(g, before)

    def room(self, machine_id: str, free_tokens: int) -> None:
        """This number of tokens of its KV cache is free."""
        g = self.table.index[machine_id]
        before = self.one(g)
        self._room[g] = free_tokens
        self._changed(g, before)

    def ready(self, machine_id: str, is_ready: bool) -> None:
        """Whether it may be sent anything: loaded, reachable and not leaving."""
        g = self.table.index[machine_id]
        before = self.one(g)
        self._ready[g] = is_ready
        self._changed(g, before)

    def measured(self, machine_id: str, tau_ms: float, batch: int) -> None:
        """A layer took so long there at this batch; a time that no machine has is ignored."""
        if not (1e-6 <= tau_ms <= 1e9 and 1 <= batch <= 1e9):
            return
        g = self.table.index[machine_id]
        before = self.one(g)
        paces = self.table.paces
        self._factor[g] = tau_ms / paces.cell(paces.kind[g], batch)[0]
        self._note_credit(g)
        self._changed(g, before)

    def route(self, kv_needed_tokens: int = 0, excluded: Collection[str] = ()) -> Answer:
        """The best chain of machines not excluded that have a slot and this much KV room each."""
        best = self._best(kv_needed_tokens)
        if isinstance(best, NoRoute) or best.machine_ids.isdisjoint(excluded):
            return best  # without machines that it does not use, it is still the best
        self.can_hold(kv_needed_tokens)
        with self.without(excluded):
            return self._once()

    def priced(self, stages: Pipeline) -> Route:
        """A chain that was chosen elsewhere, with what each of its stages costs now."""
        index = self.table.index
        return self._priced([(index[i], held.start, held.end) for i, held in stages])

    def backups(
        self, n: int, kv_needed_tokens: int = 0, excluded: Collection[str] = ()
    ) -> tuple[Route, ...]:
        """Up to n further chains, each the best that shares no machine with those before it."""
        first = self.route(kv_needed_tokens, excluded)
        self.can_hold(kv_needed_tokens)
        found: list[Route] = []
        used = set(excluded)
        while isinstance(first, Route) and len(found) < n:
            used |= first.machine_ids
            with self.without(used):
                first = self._once()
            if isinstance(first, Route):
                found.append(first)
        return tuple(found)

    @contextmanager
    def without(self, excluded: Collection[str]) -> Iterator[None]:
        """Inside, these machines may not be used; no version passes."""
        index = self.table.index
        masked = [index[i] for i in excluded if i in index and self._ready[index[i]]]
        for g in masked:
            self._mask(g, False)
        try:
            yield
        finally:
            for g in masked:
                self._mask(g, True)

    def can_hold(self, kv_needed_tokens: int) -> None:
        """From now on only machines with this much KV room count."""
        if kv_needed_tokens == self._needed:
            return
        low, high = sorted((kv_needed_tokens, self._needed))
        self._needed = kv_needed_tokens
        if any(low <= room < high for room in self._room):  # else the same machines are masked
            self._kept = self._weights = None
            self._stamp = -1

    def one(self, g: int) -> tuple[float, float]:
        """τ and head as the search weighs them now, infinite where g may not be used."""
        busy = self._busy[g]
        if busy >= self._slots[g] or not self._ready[g] or self._room[g] < self._needed:
            return inf, inf
        tau_ms, head_ms = self.stage_ms(g)
        if self._marginal and busy:
            paces = self.table.paces
            before = paces.cell(paces.kind[g], busy)
            factor = self._factor[g]
            tau_ms += busy * max(0.0, tau_ms - factor * before[0])
            head_ms += busy * max(0.0, head_ms - factor * before[1])
        return tau_ms, head_ms

    def stage_ms(self, g: int) -> tuple[float, float]:
        """τ and head with one more resident."""
        paces, factor = self.table.paces, self._factor[g]
        tau_ms, head_ms = paces.cell(paces.kind[g], self._busy[g] + 1)
        return factor * tau_ms, factor * head_ms

    def edge_ms(self, g: int) -> tuple[float, float]:
        """Nothing: chains begin and end at the requester."""
        return 0.0, 0.0

    def all(self) -> tuple[Floats, Floats]:
        """`one` of every machine."""
        if self._weights is None:
            self._weights = np.array([self.one(g) for g in range(len(self._busy))]).reshape(-1, 2)
        return self._weights[:, 0], self._weights[:, 1]

    def edges(self) -> tuple[Floats, Floats]:
        """`edge_ms` of every machine."""
        nothing: Floats = np.zeros(len(self._busy))
        return nothing, nothing

    def masked(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Machines that may not be used."""
        return np.isinf(self.all()[0])

    def _mask(self, g: int, is_ready: bool) -> None:
        self._ready[g] = is_ready
        if self._weights is not None:
            self._weights[g] = self.one(g)

    def _changed(self, g: int, before: tuple[float, float]) -> None:
        """A new version; the answer keeps up with it where this change provably cannot alter it."""
        now = self.one(g)
        if now == before:
            return
        self.version += 1
        if self._weights is not None:
            self._weights[g] = now
        if self._kept is not None:
            self._kept.changed.add(g)
        if not isinstance(self._answer, Route) or self._stamp != self.version - 1:
            return
        run = next((run for run in self._runs if run[0] == g), None)
        rises = now[0] >= before[0] and now[1] >= before[1]
        if run is None:
            # Dearer machines off the best chain change nothing, nor do those whose every chain
            # costs more than it.
            harmless = rises or self._out_of_reach(g)
        else:
            # The best chain gets cheaper by as much as any other can: g does all its layers in it,
            # and its head or no head.
            whole = run[2] - run[1] == self.table.held_layers[g]
            is_last = run is self._runs[-1]
            harmless = (
                whole
                and now[0] <= before[0]
                and (now[1] <= before[1] if is_last else now[1] == before[1])
            )
            if harmless:
                self._repriced = True
                self._cost += (now[0] - before[0]) * (run[2] - run[1])
                self._cost += now[1] - before[1] if is_last else 0.0
        if harmless:
            self._stamp = self.version
            self.counts.dismissed += 1

    def _out_of_reach(self, g: int) -> bool:
        if not self.partial or self.table.every_state is not None or self._cost == inf:
            return False
        bounds = self._bounds or self.table.bounds
        return float(bounds.of_machine[g]) - self._slack >= self._cost * (1 + 1e-9)

    def _best(self, needed: int) -> Answer:
        answer = self._answer
        if answer is not None and self._stamp == self.version:
            if self._repriced:
                answer = self._answer = self._priced(self._runs)
                self._repriced = False
            if self._still_answers(answer, needed):
                self.counts.cached += 1
                return answer
        self.can_hold(needed)
        if answer is not None and self._stamp == self.version:
            self.counts.cached += 1
            return answer
        found: list[Run] | int | None = self._resumed()
        if found is None:
            self.counts.searched += 1
            found = self._anew()
        self._stamp, self._repriced = self.version, False
        if isinstance(found, int):
            self._runs, self._cost = [], inf
            self._answer = no_route(self.table, None, self, found)
        else:
            self._runs = found
            self._answer = self._priced(found)
        return self._answer

    def _still_answers(self, answer: Answer, needed: int) -> bool:
        if needed == self._needed:
            return True
        # More masked machines cannot make another chain better than the one that stays possible.
        if isinstance(answer, NoRoute) or needed < self._needed:
            return False
        return all(self._room[g] >= needed for g, _, _ in self._runs)

    def _once(self) -> Answer:
        """The best chain now, without a trace of the search."""
        found = self._whole() if not self.partial else self._partial()
        return (
            no_route(self.table, None, self, found)
            if isinstance(found, int)
            else self._priced(found)
        )

    def _whole(self) -> list[Run] | int:
        """The best chain of whole shards, as layers."""
        tau, head = self.all()
        return sweep_whole(
            self.table, LayerRange(0, self.table.model.layers), tau, np.zeros_like(tau), head
        )

    def _partial(self) -> list[Run] | int:
        runs = best_partial(self.table, self, False, 1, self._bounds, self._slack)
        return runs if isinstance(runs, int) else self._layers(runs)

    def _resumed(self) -> list[Run] | None:
        """The answer by going on with the last pass from the first segment that changed."""
        kept = self._kept
        if kept is None:
            return None
        start = len(kept.layout.segments)
        for g in kept.changed:
            k = kept.number.get(g)
            if k is not None:
                kept.tau[k], kept.after[k] = self.one(g)
                start = min(start, kept.layout.touches[k])
        kept.changed.clear()
        if start < len(kept.layout.segments):
            kept.swept = sweep(kept.layout, kept.tau, None, kept.swept, start)
        cost, at = best_end(kept.layout, kept.swept, kept.after)
        if at < 0 or cost > kept.beyond - self._slack:
            return None
        self.counts.resumed += 1
        self._cost = cost
        return self._layers(trace(kept.layout, kept.swept, at))

    def _anew(self) -> list[Run] | int:
        """The answer from nothing, and a pass to go on from."""
        table = self.table
        self._kept = None
        if not table.index:
            return 0
        if not self.partial:
            found = self._whole()
            if not isinstance(found, int):
                self._cost = self._weight(found)
            return found
        layout, beyond = table.every_state, inf
        if layout is None:
            bounds = self._fresh_bounds()
            runs = best_partial(table, self, False, 1, bounds, self._slack)
            if isinstance(runs, int):
                return runs
            self._cost = self._weight(self._layers(runs))
            size = bounds.size_for(bounds.states_within(self._cost + self._slack) * 5 // 4)
            layout, beyond = bounds.layout(size), bounds.next_bound(size)
            if layout is None:
                return self._layers(runs)
        weights = [self.one(g) for g in layout.machines]
        tau, after = [w[0] for w in weights], [w[1] for w in weights]
        swept = sweep(layout, tau, None)
        number = {g: k for k, g in enumerate(layout.machines)}
        self._kept = KeptAnswer(layout, beyond, tau, after, swept, number)
        cost, at = best_end(layout, swept, after)
        if at < 0:
            return best_partial(table, self, False)  # nowhere: says how far it gets
        self._cost = cost
        return self._layers(trace(layout, swept, at))

    def _fresh_bounds(self) -> Bounds:
        """Bounds that are not too far below what chains can cost now."""
        if self._bounds is None:
            self._bounds = self.table.bounds
        if self._slack > STALE_SHARE * max(self._bounds.next_bound(0), 1e-9):
            tau, head = self.table.paces.least_with(self._factor)
            self._bounds = self.table.bounds_from(tau, head)
            self._floor_factor, self._credit, self._slack = list(self._factor), {}, 0.0
            self._kept = None
        return self._bounds

    def _note_credit(self, g: int) -> None:
        """How much cheaper than the bounds assume a chain through g may be now."""
        short = self._floor_factor[g] - self._factor[g]
        self._slack -= self._credit.pop(g, 0.0)
        if short > 0:
            tau_ms, head_ms = self.table.paces.least_of(g)
            self._credit[g] = short * (tau_ms * self.table.held_layers[g] + head_ms)
            self._slack += self._credit[g]

    def _weight(self, runs: Sequence[Run]) -> float:
        """What the search minimises."""
        cost, before = 0.0, -1
        for g, start, end in runs:
            if before >= 0:
                cost += self.table.hops.between(before, g)
            cost += self.one(g)[0] * (end - start)
            before = g
        return cost + self.one(before)[1]

    def _layers(self, runs: Sequence[Run]) -> list[Run]:
        grid = self.table.grid
        return [(g, grid[first], grid[end]) for g, first, end in runs]

    def _priced(self, runs: Sequence[Run]) -> Route:
        return priced_route(self.table, self, runs)
