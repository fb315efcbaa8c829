"""How fast is the utility plan, how near the throughput bound does it come, and how many stages
does a request visit?
"""

from __future__ import annotations

from functools import cache
from statistics import fmean

from benchmarks.scheduler.measure.entries import entries
from benchmarks.scheduler.measure.filled import serving_placement
from benchmarks.scheduler.worlds import median_ms, mixed
from benchmarks.table import Row
from scheduler.flow.flow_lp import solve_flow_lp
from scheduler.utility.plan import UtilityPlan, plan

REACH_MS = {64: 50.0, 256: 300.0, 1024: 1000.0}
NODES = (40, 64, 256, 1024)
#: Sizes whose flow is timed; of the last, the stages that a request visits.
FLOW_NODES = (64, 256)
GAP = 0.01
DISJOINT, FLOW = 0.92, 0.98
#: Parallax's greedy (sorted): share of the bound, mean ms per token.
GREEDY = {
    (64, "32b"): "78 %, 217 ms",
    (64, "70b"): "74 %, 488 ms",
    (256, "32b"): "78 %, 251 ms",
    (256, "70b"): "71 %, 561 ms",
    (1024, "32b"): "80 %, 237 ms",
    (1024, "70b"): "75 %, 553 ms",
}
QUICK = {"NODES": (40, 64), "FLOW_NODES": (64,)}
STAGES = {"32b": (2.9, "3.55 at 78 % load"), "70b": (6.5, "7.15 at 71 % load")}


def rows() -> list[Row]:
    """Plans, their throughput as disjoint pipelines and as a flow, the flow's own time, and stages
    per request.
    """
    cases = [(nodes, name) for nodes in NODES for name in ("32b", "70b")]
    found = [_planned(nodes, name) for nodes, name in cases if nodes in REACH_MS]
    for nodes, name in cases:
        found += _throughput(nodes, name)
    for nodes in FLOW_NODES:
        for name in ("32b", "70b"):
            found.append(_flow_time(nodes, name))
    return found + [_stages(name) for name in ("32b", "70b")]


@cache
def _plan(nodes: int, name: str) -> tuple[float, UtilityPlan]:
    fleet, model = mixed(nodes, name)
    return median_ms(lambda: plan(fleet, model), 5)


def _planned(nodes: int, name: str) -> Row:
    taken_ms, made = _plan(nodes, name)
    return Row(
        f"utility plan, {nodes} nodes, {name}",
        f"≤ {REACH_MS[nodes]:g} ms, gap ≤ {GAP:.0%}",
        f"{taken_ms:.0f} ms, gap {made.gap:.2%}, {fmean(made.latencies_ms):.0f} ms per token",
        "Helix 600–4,400 s at 24–42 nodes",
        "gap 0",
        taken_ms <= REACH_MS[nodes] and made.gap <= GAP,
    )


def _throughput(nodes: int, name: str) -> list[Row]:
    fleet, model = mixed(nodes, name)
    _, made = _plan(nodes, name)
    flow = solve_flow_lp(fleet, model, serving_placement(fleet, model, made))
    peer = GREEDY.get((nodes, name), "51–80 %")
    limit = f"{made.ub:,.0f} tok/s"
    return [
        Row(
            f"throughput, disjoint pipelines, {nodes} nodes, {name}",
            f"≥ {DISJOINT:.0%} of the bound",
            f"{made.throughput / made.ub:.1%}, {fmean(made.latencies_ms):.0f} ms (k "
            f"{len(made.pipelines)})",
            peer,
            limit,
            made.throughput >= DISJOINT * made.ub,
        ),
        Row(
            f"throughput, partial-slice flow, {nodes} nodes, {name}",
            f"≥ {FLOW:.0%} of the bound",
            f"{flow.tokens_per_s / made.ub:.1%}",
            peer,
            limit,
            flow.tokens_per_s >= FLOW * made.ub,
        ),
    ]


def _flow_time(nodes: int, name: str) -> Row:
    fleet, model = mixed(nodes, name)
    placement = serving_placement(fleet, model, _plan(nodes, name)[1])
    most_ms, _ = median_ms(lambda: solve_flow_lp(fleet, model, placement), 3)
    hops_ms, _ = median_ms(lambda: entries(fleet, model, placement), 3)
    return Row(
        f"flow over partial slices, {nodes} nodes, {name}",
        "max T ≤ 20 ms, fewest hops ≤ 400 ms",
        f"{most_ms:.1f} ms, {hops_ms:.0f} ms",
        "—",
        "—",
        most_ms <= 20 and hops_ms <= 400,
    )


def _stages(name: str) -> Row:
    nodes = FLOW_NODES[-1]
    fleet, model = mixed(nodes, name)
    _, made = _plan(nodes, name)
    reach, peer = STAGES[name]
    visited = {}
    for wide in (True, False):
        placement = serving_placement(fleet, model, made, wide=wide)
        most = solve_flow_lp(fleet, model, placement)
        share = 0.9 * most.ub / most.tokens_per_s
        visited[wide] = entries(fleet, model, placement, share)
    return Row(
        f"stages per request at 90 % load, {nodes} nodes, {name}",
        f"≤ {reach:g}",
        f"{visited[True]:.2f} (without the spare room filled {visited[False]:.2f})",
        peer,
        "1",
        visited[True] <= reach,
    )
