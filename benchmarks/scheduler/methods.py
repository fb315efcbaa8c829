"""Does the default serve as much as each paper's method, fed alike in simulation?

A method is its placement, as the matcher would tell it, with the router that goes with it. For the
papers' that is turns over a flow: Helix says so, and fixed pipelines in turn amount to it. What
their placements serve with the default's router is set beside. KV room is the only limit on
requests at once; conversations come as fast as caches stay filled.
"""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.scheduler.worlds import mixed
from benchmarks.table import Row
from matcher.planning.plan_file import WhatIf
from matcher.planning.simulated import Routing, SimulatedPlan, play_method
from matcher.planning.trace_file import built_in
from scheduler.fleet.errors import FleetError
from scheduler.simulate.options import SimOptions

WORLDS = ((16, "32b"), (64, "32b"), (64, "70b"))
PAPERS = ("regions", "helix", "memory", "petals")
WINDOW_S = (40.0, 60.0)
LIMIT_S = 20.0
QUICK = {"WORLDS": ((16, "32b"),), "PAPERS": ("regions",), "WINDOW_S": (5.0, 5.0)}


def rows() -> list[Row]:
    """One row a fleet and method."""
    return [row for nodes, name in WORLDS for row in _world(nodes, name)]


def _world(nodes: int, name: str) -> list[Row]:
    fleet, model = mixed(nodes, name)
    machines = tuple(replace(machine, max_concurrent=2**31) for machine in fleet.machines)
    world = WhatIf(f"mixed_{nodes}", replace(fleet, machines=machines), model)
    ours = _played(world, "auto", "fastest")
    assert ours is not None, "the utility plan finds pipelines in every published fleet"
    found = list[Row]()
    for method in PAPERS:
        theirs, routed = _played(world, method, "iwrr"), _played(world, method, "fastest")
        item = f"served by {nodes} nodes, {name}: auto, fastest, and {method}, iwrr"
        reach = "as much as theirs"
        if theirs is None or routed is None:
            found.append(Row(item, reach, _said(ours), "has no plan", "—", True))
            continue
        peer = f"{_said(theirs)}; with our router {_said(routed)}"
        reached = ours.report.decode_tokens_per_s >= theirs.report.decode_tokens_per_s
        found.append(Row(item, reach, _said(ours), peer, "—", reached))
    return found


def _played(world: WhatIf, method: str, routing: Routing) -> SimulatedPlan | None:
    warmup_s, window_s = WINDOW_S
    options = SimOptions(warmup_s=warmup_s, duration_s=window_s)
    work = built_in(None, warmup_s + window_s)
    try:
        return play_method(world, method, work, options, time.monotonic, LIMIT_S, routing)
    except FleetError:
        return None


def _said(played: SimulatedPlan) -> str:
    report = played.report
    return (
        f"{report.decode_tokens_per_s:,.0f} tokens/s, {1e3 * report.decode.mean_s:.0f} ms a token"
    )
