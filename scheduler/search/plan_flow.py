"""Which placement has the largest max flow that can be found in the time given?

Where links do not bind, stage patterns first, which often meet the bound at once; then chain
search, also from what the heuristics and the patterns found, until the time is up; then single
machines are shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.bounds import capped_bound
from scheduler.flow.max_flow import max_flow
from scheduler.search.candidates import MOST_KINDS, heuristics
from scheduler.search.chain_search import ChainOptions, Clock, chain_search
from scheduler.stages.polish import polish
from scheduler.stages.stage_patterns import stage_patterns
from scheduler.stages.table import table_of

#: Share of the time that is kept for shifting single machines.
POLISH_SHARE = 0.1
#: Above this many machines a max flow over all pairs is slower than it is worth: the chains' own
#: flow counts.
MOST_MACHINES = 128


@dataclass(frozen=True)
class FlowPlan:
    """A placement, its max flow with partial inference, a bound of all, and its source.

    ``found_s`` is how long after the start it was found, by the clock given; None without one.
    """

    placement: Placement
    tokens_per_s: float
    bound: float
    source: str
    found_s: float | None = None

    @property
    def proven(self) -> bool:
        """Does the flow meet the bound (to a millionth)?"""
        return self.tokens_per_s >= self.bound * (1 - 1e-6)


def plan_flow(
    fleet: Fleet,
    model: ModelShape,
    *,
    seed: int = 0,
    restarts: int = 6,
    evaluations: int = 40_000,
    warm: Sequence[Placement] = (),
    clock: Clock | None = None,
    seconds: float | None = None,
) -> FlowPlan:
    """The largest flow of ``restarts`` runs, or within ``seconds`` of a clock, until proven.

    The same seed takes the same steps; how many of them fit into ``seconds`` is up to the machine
    and who else is on it.

    Raises PlanError when no placement reaches from end to end.
    """
    begun = clock() if clock is not None else 0.0
    bound = capped_bound(fleet, model)
    table = table_of(fleet, model)
    found = list[FlowPlan]()

    def measure(
        source: str,
        placement: Placement,
        flow: float | None = None,
        found_at_s: float | None = None,
    ) -> bool:
        if flow is None:
            flow = max_flow(fleet, model, placement, partial=True).tokens_per_s
        if clock is not None and found_at_s is None:
            found_at_s = clock()
        found_s = None if found_at_s is None else found_at_s - begun
        found.append(FlowPlan(placement, flow, bound, source, found_s))
        return found[-1].proven

    def over(share: float) -> Callable[[], bool] | None:
        if clock is None or seconds is None:
            return None
        at = begun + seconds * share
        return lambda: clock() >= at

    for i, placement in enumerate(warm):
        if measure(f"given {i + 1}", placement):
            return found[-1]
    if len(table.kinds) <= MOST_KINDS and table.capped_bound > 0 and not table.links_bind:
        try:
            patterns = stage_patterns(fleet, model, over=over(0.3))
            if measure(f"{patterns.stages} stage patterns", patterns.placement):
                return found[-1]
        except PlanError:
            pass
    if len(table.machines) <= MOST_MACHINES:
        for source, placement in heuristics(fleet, model):
            if measure(source, placement):
                return found[-1]
    starts = [plan.placement for plan in sorted(found, key=lambda plan: -plan.tokens_per_s)[:3]]
    chains = chain_search(
        fleet,
        model,
        ChainOptions(seed, restarts, evaluations),
        warm=starts,
        clock=clock,
        deadline_s=None
        if clock is None or seconds is None
        else begun + seconds * (1 - POLISH_SHARE),
    )
    small = len(table.machines) <= MOST_MACHINES
    flow = None if small else chains.tokens_per_s
    if measure("chains", chains.placement, flow, chains.found_at_s) or not small:
        return max(found, key=lambda plan: plan.tokens_per_s)
    best = max(found, key=lambda plan: plan.tokens_per_s)
    better = polish(fleet, model, best.placement, seed=seed, stop=over(1.0))
    if better.tokens_per_s > best.tokens_per_s:
        measure(f"{best.source}, shifted", better.placement, better.tokens_per_s)
    return max(found, key=lambda plan: plan.tokens_per_s)
