"""What do placements of Helix's clusters serve in simulation, by the same trace and the same fill
of the KV caches?

Max flow is not it: the placements, and the flows that requests follow, are chosen by simulating
candidates with another seed, and then measured like Helix's own. Both are charged by the rules of
Helix's simulator. Beside Helix's router stand the others of its §6.7 on the same placement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.scheduler.measure.traces import lengths, reservation
from benchmarks.scheduler.peers.preflow import links_of
from benchmarks.scheduler.routers.others import others
from benchmarks.scheduler.worlds import cluster, shipped_placement
from benchmarks.table import Row
from scheduler.fleet.fleet import Fleet, ModelShape
from scheduler.fleet.workload import Arrival
from scheduler.search.candidate import Candidate
from scheduler.search.candidates import PoolOptions, candidates
from scheduler.search.rank import Limits, RankedWay, RankOptions, Round, iwrr, way_of
from scheduler.search.serve_plan import ServeOptions, plan_to_serve
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import ClosedLoop

CHUNK_TOKENS = 256
#: Ways to serve are chosen with other draws than they are measured with.
RANKING_SEED = 1
#: Mean latencies of two draws differ by some percent: what is chosen is to be so much better than
#: Helix's.
MARGIN = 0.99
#: How much requests may be kept off slow machines: latency for throughput.
HASTES = (3.0, 10.0, 16.0)
POOL = PoolOptions()


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, the window it is measured in, and what is to be reached with whole and with
    chunked prompts.

    ``rounds`` of the ranking warm up for as long as the measurement.
    """

    name: str
    warmup_s: float
    duration_s: float
    whole: float
    chunked: float
    rounds: tuple[Round, ...]


CASES = (
    Case("single24", 60, 600, 300, 397, (Round(60, 100, 4), Round(60, 300, 4))),
    Case("geo24", 60, 600, 148, 281, (Round(60, 100, 4), Round(60, 300, 4))),
    # What a cluster of many kinds serves falls for minutes while batches of prompts and decode
    # steps meet: nothing shorter tells.
    Case("het42", 150, 200, 824, 1026, (Round(150, 200, 4),)),
)
QUICK = {
    "CASES": (Case("single24", 5, 10, 300, 397, (Round(5, 10, 1),)),),
    "HASTES": (),
    "POOL": PoolOptions(depth_penalties=(0.0,), evaluations=10, stage_shares=(), compact_nodes=1),
}


def rows() -> list[Row]:
    """Whole prompts, chunked prompts, and what the placement of the largest flow serves."""
    trace = lengths()
    return [row for case in CASES for row in _case(case, trace)]


def _case(case: Case, trace: list[Arrival]) -> list[Row]:
    fleet, model = cluster(case.name)
    theirs = helix(case, fleet, model, trace)
    limits = limits_of(case, fleet, model, trace)
    pool = candidates(fleet, model, POOL)
    on_theirs = other_routers(case, fleet, model, trace)
    found = list[Row]()
    for chunk, reach in ((None, case.whole), (CHUNK_TOKENS, case.chunked)):
        options = window(case, chunk)
        chosen = choose(case, fleet, model, trace, pool, limits, options)
        report = _serve(fleet, model, chosen, trace, options)
        how = "whole prompts" if chunk is None else f"chunks of {chunk}"
        found.append(
            _row(f"served by {case.name}, 70B, {how}", reach, chosen, report, theirs, on_theirs)
        )
    if case.name == "single24":
        found.append(_deepest(fleet, model, pool, trace, window(case, CHUNK_TOKENS), chosen))
    return found


def window(case: Case, chunk_tokens: int | None) -> SimOptions:
    """What is measured."""
    return SimOptions(
        warmup_s=case.warmup_s,
        duration_s=case.duration_s,
        chunk_tokens=chunk_tokens,
        helix_rules=True,
    )


def helix(
    case: Case, fleet: Fleet, model: ModelShape, trace: list[Arrival], *, seed: int = 0
) -> SimReport:
    """Helix's placement with Helix's scheduler, whole prompts, messages in order."""
    placement, _ = shipped_placement(case.name, "helix", model)
    router = IwrrRouter.of(fleet, model, placement, links_of(fleet, model, placement))
    options = replace(window(case, None), decode_first=False, seed=seed)
    return simulate(fleet, model, placement, router, ClosedLoop(trace), options)


def other_routers(
    case: Case, fleet: Fleet, model: ModelShape, trace: list[Arrival]
) -> dict[str, float]:
    """Decode tokens/s of other routers on Helix's placement, fed and measured as Helix's own."""
    placement, _ = shipped_placement(case.name, "helix", model)
    options = replace(window(case, None), decode_first=False)
    served = others(fleet, model, placement, ClosedLoop(trace), options)
    return {router: report.decode_tokens_per_s for router, report in served.items()}


def limits_of(case: Case, fleet: Fleet, model: ModelShape, trace: list[Arrival]) -> Limits:
    """What prompts and decode steps may take on average, while ways to serve are ranked."""
    theirs = helix(case, fleet, model, trace, seed=RANKING_SEED)
    return Limits(MARGIN * theirs.prompt.mean_s, MARGIN * theirs.decode.mean_s)


def choose(
    case: Case,
    fleet: Fleet,
    model: ModelShape,
    trace: list[Arrival],
    pool: tuple[Candidate, ...],
    limits: Limits,
    options: SimOptions,
) -> RankedWay:
    """The way that decodes most with mean latencies within the limits."""
    sim = replace(options, seed=RANKING_SEED)
    ranking = RankOptions(sim, case.rounds, 20, limits)
    work = ClosedLoop(trace)
    return plan_to_serve(
        fleet, model, work, ServeOptions(rank=ranking, hastes=HASTES), pool=pool
    ).best.way


def _serve(
    fleet: Fleet, model: ModelShape, way: RankedWay, trace: list[Arrival], options: SimOptions
) -> SimReport:
    placement = way.candidate.placement
    router = iwrr(fleet, model, placement, way.flow)
    return simulate(fleet, model, placement, router, ClosedLoop(trace), options)


def _row(
    item: str,
    reach: float,
    way: RankedWay,
    report: SimReport,
    theirs: SimReport,
    on_theirs: dict[str, float],
) -> Row:
    chosen = way.candidate
    no_worse = (
        report.prompt.mean_s <= theirs.prompt.mean_s
        and report.decode.mean_s <= theirs.decode.mean_s
    )
    return Row(
        item,
        f"≥ {reach:g} decode tok/s, latencies no worse",
        f"{report.decode_tokens_per_s:.0f} (prompt {report.prompt.mean_s:.2f} s, decode "
        f"{report.decode.mean_s:.2f} s; flow {chosen.tokens_per_s:.0f}, {chosen.stages:.1f} "
        "stages, "
        f"{chosen.source}, haste {way.haste:g})",
        f"{theirs.decode_tokens_per_s:.0f} (Helix: {theirs.prompt.mean_s:.2f} s, "
        f"{theirs.decode.mean_s:.2f} s); other routers on its placement: "
        + ", ".join(f"{router} {rate:.0f}" for router, rate in on_theirs.items()),
        "; ".join(filter(None, (f"flow bound {chosen.bound:.0f}", reservation()))),
        report.decode_tokens_per_s >= max(reach, *on_theirs.values()) and no_worse,
    )


def _deepest(
    fleet: Fleet,
    model: ModelShape,
    pool: tuple[Candidate, ...],
    trace: list[Arrival],
    options: SimOptions,
    ranked: RankedWay,
) -> Row:
    """Does the placement of the largest flow serve less than the one chosen by simulation?"""
    most = max(pool, key=lambda candidate: (candidate.tokens_per_s, candidate.stages))
    by_flow = _serve(fleet, model, way_of(fleet, model, most), trace, options)
    by_rank = _serve(fleet, model, ranked, trace, options)
    ours = ranked.candidate
    return Row(
        "served by single24, 70B, ranked instead of the largest flow",
        "more than the largest flow serves",
        f"{by_rank.decode_tokens_per_s:.0f} at flow {ours.tokens_per_s:.0f}, {ours.stages:.1f} "
        "stages",
        f"{by_flow.decode_tokens_per_s:.0f} at flow {most.tokens_per_s:.0f}, {most.stages:.1f} "
        "stages",
        f"flow bound {most.bound:.0f}",
        by_rank.decode_tokens_per_s > by_flow.decode_tokens_per_s,
    )
