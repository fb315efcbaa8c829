"""Which placements of different depth are worth simulating?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.bounds import capped_bound
from scheduler.helix.petals import petals
from scheduler.helix.separate import as_placement, separate_pipelines
from scheduler.helix.swarm import swarm
from scheduler.search.candidate import NARROW, Candidate, candidate_of
from scheduler.search.chain_search import ChainOptions, chain_search
from scheduler.stages.chains import chains_of, placement_of
from scheduler.stages.compact_milp import solve_compact
from scheduler.stages.moves import Chain
from scheduler.stages.quick_patterns import quick_patterns
from scheduler.stages.stage_patterns import stage_patterns
from scheduler.stages.stages import StagePool
from scheduler.stages.table import table_of

#: Kinds of machines up to which the exact methods (patterns, compact MILP) are tried.
MOST_KINDS = 12
#: Exchanges per stage for another order.
SWAPS = 3


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What to sweep. Where links do not bind, one headroom and one seed do.

    Of ``stage_shares`` of the stages of the largest flow, the pipelines of most flow, and with
    ``quick_shares`` of that flow those whose prompts take the least time.
    """

    seed: int = 0
    depth_penalties: tuple[float, ...] = (0.0, 0.6, 1.0)
    headrooms: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0)
    seeds: int = 2
    restarts: int = 2
    evaluations: int = 20_000
    stage_shares: tuple[float, ...] = (0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 1.0)
    quick_shares: tuple[float, ...] = (1.0, 0.92)
    compact_nodes: int = 20


def candidates(
    fleet: Fleet,
    model: ModelShape,
    options: PoolOptions = PoolOptions(),
    *,
    warm: Sequence[Placement] = (),
    over: Callable[[], bool] | None = None,
) -> tuple[Candidate, ...]:
    """Placements by every method that applies, no two alike, all of which let something through.

    ``over`` may end the gathering early, once there is one. Raises PlanError when there is none at
    all.
    """
    found: dict[Placement, Candidate] = {}
    bound = capped_bound(fleet, model)
    for source, placement in _all(fleet, model, options, warm):
        if placement and placement not in found:
            candidate = candidate_of(source, fleet, model, placement, bound)
            if candidate.tokens_per_s > 0:
                found[placement] = candidate
        if over is not None and found and over():
            break
    if not found:
        raise PlanError("empty", "no method finds a placement that reaches from end to end")
    return tuple(found.values())


def reordered(
    fleet: Fleet, model: ModelShape, candidate: Candidate, many: int, seed: int = 0
) -> tuple[Candidate, ...]:
    """The same stages in other orders that pass as much: what differs is how batches meet."""
    table = table_of(fleet, model)
    pool = StagePool(table, 1 / NARROW if table.links_bind else 1.0)
    chains, _ = chains_of(pool, candidate.placement)
    draw = random.Random(seed)
    found = dict[Placement, Candidate]()
    for i in range(many):
        shape = [
            [stage.machines for stage in _shuffled(pool, chain, draw)]
            for chain in chains
            if pool.flow(chain, 0.0) > 0
        ]
        placement = placement_of(pool, shape)
        if shape and placement != candidate.placement and placement not in found:
            source = f"{candidate.source}, order {i + 1}"
            found[placement] = candidate_of(source, fleet, model, placement, candidate.bound)
    return tuple(found.values())


def _shuffled(pool: StagePool, chain: Chain, draw: random.Random) -> Chain:
    """Exchange stages at random, each time only if the chain passes as much as it did at first."""
    chain, enough, n = chain[:], pool.flow(chain, 0.0) * (1 - 1e-6), len(chain)
    for _ in range(SWAPS * n):
        i, j = draw.randrange(n), draw.randrange(n)
        chain[i], chain[j] = chain[j], chain[i]
        if i != j and pool.flow(chain, enough) < 0:
            chain[i], chain[j] = chain[j], chain[i]
    return chain


def _all(
    fleet: Fleet, model: ModelShape, options: PoolOptions, warm: Sequence[Placement]
) -> Iterable[tuple[str, Placement]]:
    table = table_of(fleet, model)
    starts = list(warm)
    for i, placement in enumerate(warm):
        yield f"given {i + 1}", placement
    for source, placement in heuristics(fleet, model):
        starts.append(placement)
        yield source, placement
    if len(table.kinds) <= MOST_KINDS:
        for source, placement in _exact(fleet, model, options):
            starts.append(placement)
            yield source, placement
    headrooms = options.headrooms if table.links_bind else (1.0,)
    for penalty in options.depth_penalties:
        for headroom in headrooms:
            for seed in range(options.seeds if table.links_bind else 1):
                for one in (True, False):
                    search = ChainOptions(
                        options.seed + seed,
                        options.restarts,
                        options.evaluations,
                        penalty,
                        headroom,
                        one,
                    )
                    try:
                        plan = chain_search(fleet, model, search, warm=starts[-2:])
                    except PlanError:
                        continue
                    spare = f", links × {headroom:g}" if headroom > 1 else ""
                    yield f"chains, depth^-{penalty:g}{spare}", plan.placement


def heuristics(fleet: Fleet, model: ModelShape) -> list[tuple[str, Placement]]:
    """What Swarm, Petals and separate pipelines would do, where they can."""
    found = list[tuple[str, Placement]]()
    makers: tuple[tuple[str, Callable[[], Placement]], ...] = (
        ("swarm", lambda: swarm(fleet, model)),
        ("petals", lambda: petals(fleet, model)),
        ("separate", lambda: as_placement(separate_pipelines(fleet, model, mixed=True))),
    )
    for source, make in makers:
        try:
            found.append((source, make()))
        except PlanError:
            continue
    return found


def _exact(
    fleet: Fleet, model: ModelShape, options: PoolOptions
) -> Iterable[tuple[str, Placement]]:
    try:
        free = stage_patterns(fleet, model)
        yield f"{free.stages} stage patterns", free.placement
        limits = sorted({max(1, round(free.stages * s)) for s in options.stage_shares})
        for limit in limits:
            try:
                plan = stage_patterns(fleet, model, most_stages=limit)
            except PlanError:
                continue
            yield f"{plan.stages} stage patterns", plan.placement
            for share in options.quick_shares:
                enough = plan.tokens_per_s * share * (1 - 1e-9)
                try:
                    quick = quick_patterns(fleet, model, enough, most_stages=limit)
                except PlanError:
                    continue
                yield f"{plan.stages} quick patterns at {share:.0%}", quick
    except PlanError:
        pass
    for partial in (False, True):
        compact = solve_compact(fleet, model, partial=partial, node_limit=options.compact_nodes)
        if compact.placement:
            yield "coverage" if partial else "boundary flow", compact.placement
