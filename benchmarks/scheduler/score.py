"""How fast is Parallax's own phase-1 score solved to a proven optimum, from 4 to 10,000 machines?

The timed part is all of the planning from a prepared fleet: machines grouped by capacity, and the
solve, to k, s*(k), the score and the pipelines by pattern. Building the concrete pipelines out of
them (hand-out, order, layer split) is a row of its own, and so is the fleet whose machines all
differ.
"""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.scheduler.worlds import median_ms, mixed
from benchmarks.table import Row
from scheduler.fleet.kinds import pool_of
from scheduler.parallax.allocate import AllocateOptions, allocate, best_cover
from scheduler.parallax.objective import objective_for
from scheduler.parallax.parallax_allocate import Objective

#: What may be taken at most; None where nothing is asked of the time.
REACH_MS = {4: 0.3, 16: None, 64: None, 256: 8.0, 1024: 20.0, 10_000: 100.0}
PEERS = {
    4: "paper 0.10 ms, its code 0.21 ms",
    64: "its DP > 300 s",
    256: "paper 8.55 ms; greedy 21–48 ms, k 71, score 20.0 (32b)",
}
SCORE = Objective(1.0, 0.0, 1.0)
QUICK = {"REACH_MS": {4: 0.3, 64: None}}


def rows() -> list[Row]:
    """One row per size and model, one for Z(k), one for assembling and one for machines that all
    differ.
    """
    found = [
        _solved(nodes, name, reach_ms)
        for nodes, reach_ms in REACH_MS.items()
        for name in ("32b", "70b")
    ]
    return [*found, _z(), _assembled(), _all_different()]


def _solved(nodes: int, name: str, reach_ms: float | None) -> Row:
    fleet, model = mixed(nodes, name)
    machines = fleet.machines
    taken_ms, cover = median_ms(lambda: best_cover(pool_of(machines, model), SCORE), 9)
    k, stages = len(cover.patterns), sum(map(len, cover.patterns))
    return Row(
        f"k²/stages, {nodes} nodes, {name} (grouping + solve)",
        "proven optimum" + (f", ≤ {reach_ms:g} ms" if reach_ms else ""),
        f"{cover.z:.3f} (k {k}, {stages} stages), gap {cover.gap:.2%}, {taken_ms:.2f} ms",
        PEERS.get(nodes, "—"),
        f"{cover.z_at_most:.3f}",
        cover.gap <= 1e-12 and (reach_ms is None or taken_ms <= reach_ms),
    )


def _z() -> Row:
    """Z(k) with T_comp and r_RTT of the fleets themselves, at every size and three α."""
    gaps, slowest = [], 0.0
    for nodes in REACH_MS:
        for name in ("32b", "70b"):
            fleet, model = mixed(nodes, name)
            for alpha in (0.5, 1.0, 2.0):
                objective = objective_for(fleet.machines, fleet.links, model, alpha)
                pool = pool_of(fleet.machines, model)
                taken_ms, cover = median_ms(lambda p=pool, o=objective: best_cover(p, o), 1)
                gaps.append(cover.gap)
                slowest = max(slowest, taken_ms)
    return Row(
        "Z(k), α 0.5, 1, 2, all sizes and models (solve)",
        "proven optimum",
        f"{sum(gap <= 1e-12 for gap in gaps)} of {len(gaps)} proven, slowest {slowest:.1f} ms",
        "α, T_comp, r_RTT unused in its code",
        "gap 0",
        max(gaps) <= 1e-12,
    )


def _assembled() -> Row:
    fleet, model = mixed(256, "32b")
    options = AllocateOptions(scope="global", method="patterns")
    taken_ms, plan = median_ms(lambda: allocate(fleet, model, options), 3)
    return Row(
        "concrete pipelines for the score's plan, 256 nodes, 32b (whole allocation)",
        "validated",
        f"{len(plan.pipelines)} pipelines in {taken_ms:.0f} ms",
        "—",
        "—",
        bool(plan.pipelines),
    )


def _all_different() -> Row:
    fleet, model = mixed(64, "32b")
    draw = random.Random(1)
    machines = [
        replace(m, memory_bytes=int(m.memory_bytes * draw.uniform(0.7, 1.2)))
        for m in fleet.machines
    ]
    taken_ms, cover = median_ms(lambda: best_cover(pool_of(machines, model), SCORE), 1)
    return Row(
        "k²/stages, 64 nodes of 42 capacities, 32b",
        "gap stated",
        f"{cover.z:.3f} (k {len(cover.patterns)}), gap {cover.gap:.2%}, {taken_ms:.0f} ms",
        "its DP > 300 s",
        f"{cover.z_at_most:.3f}",
        cover.gap <= 0.01,
    )
