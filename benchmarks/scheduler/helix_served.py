"""What do placements of Helix's clusters serve in simulation, by the same trace and the same fill of the KV caches?

Max flow is not it: the placements are chosen by simulating candidates in a short window with another seed, and then
measured like Helix's own. Both are charged by the rules of Helix's simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.scheduler.worlds import SHARED, cluster, shipped_placement
from benchmarks.table import Row
from scheduler.dispatch.iwrr import IwrrRouter
from scheduler.fleet import Fleet, ModelShape
from scheduler.helix.bounds import capped_bound
from scheduler.helix.max_flow import max_flow
from scheduler.placement.candidates import Candidate, candidate_of, candidates
from scheduler.placement.rank import RankOptions, Round, flow_to_follow, iwrr
from scheduler.placement.serve_plan import ServeOptions, plan_to_serve
from scheduler.simulate.options import SimOptions
from scheduler.simulate.report import SimReport
from scheduler.simulate.simulation import simulate
from scheduler.simulate.traces import poisson, read_trace
from scheduler.simulate.work import ClosedLoop
from scheduler.workload import Arrival

CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, its measured window, the probe's figure for Helix, and what is to be reached."""

    name: str
    warmup_s: float
    duration_s: float
    whole: float
    chunked: float
    rounds: tuple[Round, ...]


CASES = (
    Case("single24", 60, 600, 300, 397, (Round(40, 80, 5), Round(60, 300, 3))),
    Case("geo24", 60, 600, 148, 281, (Round(40, 80, 5), Round(60, 300, 3))),
    Case("het42", 150, 200, 824, 1026, (Round(80, 60, 5), Round(150, 150, 3))),
)


def rows() -> list[Row]:
    """Whole prompts, chunked prompts, and what the placement of the largest flow serves."""
    trace = lengths()
    return [row for case in CASES for row in _case(case, trace)]


def lengths() -> list[Arrival]:
    """Request lengths of the published trace, else of a synthetic one with its statistics."""
    published = SHARED / "azure_conversation.csv"
    if published.exists():
        return read_trace(published.read_text())
    return poisson(0, 16_657)


def _case(case: Case, trace: list[Arrival]) -> list[Row]:
    fleet, model = cluster(case.name)
    placement, _ = shipped_placement(case.name, "helix", model)
    window = SimOptions(
        warmup_s=case.warmup_s, duration_s=case.duration_s, chunk_tokens=None, helix_rules=True
    )
    theirs = simulate(
        fleet,
        model,
        placement,
        IwrrRouter.of(fleet, model, placement, max_flow(fleet, model, placement).links),
        ClosedLoop(trace),
        _with(window, decode_first=False),
    )
    pool = candidates(fleet, model)
    found = list[Row]()
    for chunk, reach in ((None, case.whole), (CHUNK_TOKENS, case.chunked)):
        options = _with(window, chunk_tokens=chunk)
        chosen = _choose(case, fleet, model, trace, pool, theirs, options)
        report = _serve(fleet, model, chosen, trace, options)
        how = "whole prompts" if chunk is None else f"chunks of {chunk}"
        found.append(_row(f"served by {case.name}, 70B, {how}", reach, chosen, report, theirs))
    if case.name == "single24":
        found.append(_deepest(fleet, model, pool, trace, window, theirs, chosen))
    return found


def _choose(
    case: Case,
    fleet: Fleet,
    model: ModelShape,
    trace: list[Arrival],
    pool: tuple[Candidate, ...],
    theirs: SimReport,
    options: SimOptions,
) -> Candidate:
    sim = _with(
        options,
        seed=1,
        prompt_limit_s=4 * theirs.prompt.mean_s,
        decode_limit_s=3 * theirs.decode.mean_s,
    )
    plan = plan_to_serve(
        fleet,
        model,
        ClosedLoop(trace),
        ServeOptions(rank=RankOptions(sim, case.rounds, 16), finalists=3, orders=5),
        pool=pool,
    )
    no_worse = [
        ranked.candidate
        for ranked in plan.ranked
        if ranked.report.prompt.mean_s <= theirs.prompt.mean_s
        and ranked.report.decode.mean_s <= theirs.decode.mean_s
    ]
    return no_worse[0] if no_worse else plan.best.candidate


def _serve(
    fleet: Fleet, model: ModelShape, chosen: Candidate, trace: list[Arrival], options: SimOptions
) -> SimReport:
    flow = flow_to_follow(fleet, model, chosen)
    router = iwrr(fleet, model, chosen.placement, flow)
    return simulate(fleet, model, chosen.placement, router, ClosedLoop(trace), options)


def _row(item: str, reach: float, chosen: Candidate, report: SimReport, theirs: SimReport) -> Row:
    no_worse = (
        report.prompt.mean_s <= theirs.prompt.mean_s
        and report.decode.mean_s <= theirs.decode.mean_s
    )
    return Row(
        item,
        f"≥ {reach:g} decode tok/s, latencies no worse",
        f"{report.decode_tokens_per_s:.0f} (prompt {report.prompt.mean_s:.2f} s, decode "
        f"{report.decode.mean_s:.2f} s; flow {chosen.tokens_per_s:.0f}, {chosen.stages:.1f} stages, "
        f"{chosen.source})",
        f"{theirs.decode_tokens_per_s:.0f} (Helix: {theirs.prompt.mean_s:.2f} s, "
        f"{theirs.decode.mean_s:.2f} s)",
        f"flow bound {chosen.bound:.0f}",
        report.decode_tokens_per_s >= reach and no_worse,
    )


def _deepest(
    fleet: Fleet,
    model: ModelShape,
    pool: tuple[Candidate, ...],
    trace: list[Arrival],
    options: SimOptions,
    theirs: SimReport,
    ranked: Candidate,
) -> Row:
    """Does the placement of the largest flow serve less than the one chosen by simulation?"""
    most = max(pool, key=lambda candidate: (candidate.tokens_per_s, candidate.stages))
    deep = candidate_of(most.source, fleet, model, most.placement, capped_bound(fleet, model))
    by_flow = _serve(fleet, model, deep, trace, options)
    by_rank = _serve(fleet, model, ranked, trace, options)
    return Row(
        "served by single24, 70B, ranked instead of the largest flow",
        "more than the largest flow serves",
        f"{by_rank.decode_tokens_per_s:.0f} at flow {ranked.tokens_per_s:.0f}, {ranked.stages:.1f} stages",
        f"{by_flow.decode_tokens_per_s:.0f} at flow {deep.tokens_per_s:.0f}, {deep.stages:.1f} stages",
        f"flow bound {deep.bound:.0f}",
        by_rank.decode_tokens_per_s > by_flow.decode_tokens_per_s,
    )


def _with(options: SimOptions, **changed: object) -> SimOptions:
    return replace(options, **changed)  # type: ignore[arg-type]
