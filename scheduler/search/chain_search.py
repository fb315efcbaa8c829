"""Which chains of stages pass the most? The best of many short seeded runs (HELIX §3).

Deterministic: limits are restarts and evaluations. A caller with a clock may give a deadline; the
search then goes on with further restarts until it, and ends with the best so far.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.search.aim import aim
from scheduler.search.anneal import Arrangement, anneal
from scheduler.search.starts import many_chains, one_chain
from scheduler.stages.chains import chains_of, depth_of, placement_of
from scheduler.stages.moves import Chain
from scheduler.stages.stages import StagePool
from scheduler.stages.table import StageTable, table_of

Clock = Callable[[], float]
#: Replicas from which on one chain over all machines is not worth trying.
MANY_REPLICAS = 12
#: A restart aims at this share of the best so far, to come past it by another way.
REACH = 0.95


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """``restarts`` runs of ``evaluations`` each; worth is Σ flow / depth^``depth_penalty``.

    Links are to carry ``headroom`` times the flow. ``one_chain`` looks for a single pipeline only.
    """

    seed: int = 0
    restarts: int = 6
    evaluations: int = 40_000
    depth_penalty: float = 0.0
    headroom: float = 1.0
    one_chain: bool = False


@dataclass(frozen=True)
class ChainPlan:
    """A placement and what its chains pass, each for itself; ``bound`` is what no placement passes.

    The max flow of the placement may be higher, since flow may change between chains.
    ``found_at_s`` is the clock's time at the end of the run that found it, None without a clock.
    """

    placement: Placement
    tokens_per_s: float
    worth: float
    depth: int
    chains: int
    bound: float
    runs: int
    found_at_s: float | None = None

    @property
    def proven(self) -> bool:
        """Does the flow meet the bound?"""
        return self.tokens_per_s >= self.bound * (1 - 1e-9)


def chain_search(
    fleet: Fleet,
    model: ModelShape,
    options: ChainOptions = ChainOptions(),
    *,
    warm: Sequence[Placement] = (),
    clock: Clock | None = None,
    deadline_s: float | None = None,
) -> ChainPlan:
    """The best chains found from region order and from the ``warm`` placements.

    Raises PlanError when the machines cannot hold the model or no chain of them can be linked.
    """
    table = table_of(fleet, model)
    if table.capped_bound <= 0:
        raise PlanError("empty", f"these machines cannot hold {model.layers} layers together")
    search = _Search(StagePool(table, options.headroom), options, _stop(clock, deadline_s), clock)
    best = search.run(warm, endless=deadline_s is not None)
    if best is None:
        raise PlanError("unreachable", "no chain of these machines reaches from end to end")
    return ChainPlan(
        placement_of(search.pool, best.chains),
        best.tokens_per_s,
        best.worth,
        depth_of(best.chains),
        len(best.chains),
        table.capped_bound,
        search.runs,
        search.found_at_s,
    )


def _stop(clock: Clock | None, deadline_s: float | None) -> Callable[[], bool] | None:
    if clock is None or deadline_s is None:
        return None
    return lambda: clock() >= deadline_s


class _Search:
    """One search: its pool of stages, and the runs made so far."""

    def __init__(
        self,
        pool: StagePool,
        options: ChainOptions,
        stop: Callable[[], bool] | None,
        clock: Clock | None,
    ) -> None:
        self.pool = pool
        self.options = options
        self.stop = stop
        self.clock = clock
        self.found_at_s: float | None = None
        self.runs = 0
        self.best: Arrangement | None = None
        room = sum(kind.fits.plain * len(kind.members) for kind in pool.table.kinds)
        self.replicas = room / pool.table.model.layers

    def run(self, warm: Sequence[Placement], endless: bool) -> Arrangement | None:
        starts = [chains_of(self.pool, placement) for placement in warm]
        if self.options.one_chain:
            starts = [(chains, idle) for chains, idle in starts if len(chains) == 1]
        for at in count():
            if self._over(at, endless, len(starts)):
                return self.best
            seed = random.Random(f"{self.options.seed}:{at}").getrandbits(32)
            # every third run starts from a warm placement while there are any
            chains, idle = starts.pop(0) if starts and at % 3 == 2 else ([], [])
            if not chains and self._tries_one(at):
                self._aim(one_chain(self.pool, seed), [], seed)
            elif len(chains) == 1 and len(chains[0]) <= self.pool.table.model.layers:
                self._aim(chains[0], idle, seed)
            else:
                self._anneal(chains, idle, seed)
            self.runs += 1
        return self.best

    def _over(self, at: int, endless: bool, waiting: int) -> bool:
        if self.stop is not None and at and self.stop():
            return True
        best, options = self.best, self.options
        if best and not options.depth_penalty and best.worth >= self.pool.cap * (1 - 1e-9):
            return True
        return not (endless and self.stop is not None) and at >= max(options.restarts, 3 * waiting)

    def _tries_one(self, at: int) -> bool:
        if not self.pool.several or self.options.one_chain:
            return True
        return self.replicas < MANY_REPLICAS and at % 4 != 3

    def _aim(self, start: Chain, idle: Sequence[int], seed: int) -> None:
        floor = self.best.worth * REACH if self.best else 0.0
        self._keep(
            aim(
                self.pool,
                start,
                idle,
                seed=seed,
                evaluations=self.options.evaluations,
                depth_penalty=self.options.depth_penalty,
                floor=floor,
                stop=self.stop,
            )
        )

    def _anneal(self, chains: list[Chain], idle: Sequence[int], seed: int) -> None:
        if not chains:
            chains, idle = many_chains(self.pool, seed, regions_of(self.pool.table))
        found = anneal(
            self.pool,
            chains,
            idle,
            seed=seed,
            evaluations=self.options.evaluations,
            depth_penalty=self.options.depth_penalty,
            stop=self.stop,
        )
        self._keep(found if found.worth > 0 else None)

    def _keep(self, found: Arrangement | None) -> None:
        if found and (self.best is None or found.worth > self.best.worth * (1 + 1e-12)):
            self.best = found
            self.found_at_s = self.clock() if self.clock is not None else None


def regions_of(table: StageTable) -> list[list[int]]:
    """Machines by region, in order of the regions' names."""
    groups: dict[str, list[int]] = {}
    for i, machine in enumerate(table.machines):
        groups.setdefault(machine.region, []).append(i)
    return [groups[region] for region in sorted(groups)]
