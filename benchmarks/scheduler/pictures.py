"""What does each method's plan of Helix's 42-node cluster look like? `python -m
benchmarks.scheduler.pictures FOLDER`

One SVG a method: a bar per machine over the layers it holds, coloured by the share of time it
computes while all are fed the same requests in chunks of 256 tokens; and one that sets all methods
side by side.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.scheduler.helix_served import (
    CASES,
    CHUNK_TOKENS,
    choose,
    lengths,
    limits_of,
    window,
)
from benchmarks.scheduler.worlds import cluster, shipped_placement
from matcher.planning.pictures import DrawnPlan, figures, overview_svg, plan_svg
from scheduler.flow.max_flow import max_flow
from scheduler.methods.methods import plan_by
from scheduler.search.candidate import mean_stages
from scheduler.search.candidates import candidates
from scheduler.simulate.dispatch.iwrr import IwrrRouter
from scheduler.simulate.simulation import simulate
from scheduler.simulate.work import ClosedLoop

CLUSTER = "het42"
#: File, name, what it looks for.
METHODS = (
    ("headrace", "Headrace", "candidates of different depth, ranked by what they serve"),
    ("helix", "Helix", "the largest flow, by a mixed-integer program"),
    ("swarm", "Swarm", "equal stages of equal power"),
    ("petals", "Petals", "each machine where the model is thinnest"),
    ("separate", "Separate pipelines", "one for each kind of machine, the rest mixed"),
)


def plans() -> list[DrawnPlan]:
    """Every method's plan, served alike: the same trace, chunks, fill and rules."""
    fleet, model = cluster(CLUSTER)
    trace = lengths()
    case = next(case for case in CASES if case.name == CLUSTER)
    options = window(case, CHUNK_TOKENS)
    found = list[DrawnPlan]()
    for file, name, idea in METHODS:
        if file == "headrace":
            limits = limits_of(case, fleet, model, trace)
            way = choose(case, fleet, model, trace, candidates(fleet, model), limits, options)
            placement, flow = way.candidate.placement, way.flow
        else:
            placement = (
                plan_by("separate+", fleet, model).placement
                if file == "separate"
                else shipped_placement(CLUSTER, file, model)[0]
            )
            flow = max_flow(fleet, model, placement, partial=file == "petals")
        router = IwrrRouter.of(fleet, model, placement, flow.links)
        report = simulate(fleet, model, placement, router, ClosedLoop(trace), options)
        stages, most = mean_stages(flow), flow.tokens_per_s
        found.append(DrawnPlan(file, name, idea, placement, stages, most, report))
    return found


def draw(folder: Path) -> None:
    """Write the pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    fleet, model = cluster(CLUSTER)
    drawn = plans()
    for plan in drawn:
        picture = plan_svg(plan, fleet, model, CLUSTER)
        (folder / f"{CLUSTER}-{plan.file}.svg").write_text(picture, encoding="utf-8")
        print(plan.name, *(f"{figure} {what};" for figure, what in figures(plan)), flush=True)
    (folder / f"{CLUSTER}-all.svg").write_text(overview_svg(drawn, CLUSTER), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
