"""How much is left when a tenth of the machines vanish and nobody loads anything?"""

from __future__ import annotations

import random

from benchmarks.scheduler.worlds import mixed
from benchmarks.table import Row
from scheduler.fleet.fleet import Shard
from scheduler.flow.flow_lp import solve_flow_lp
from scheduler.live.holdings import is_whole
from scheduler.live.standby import with_standby
from scheduler.utility.plan import plan

NODES = 256
LOST_SHARE = 0.10
SEEDS = range(10)
REACH = 0.87
QUICK = {"NODES": 40, "SEEDS": range(2)}
PEER = {"32b": "55 % on its fixed pipelines", "70b": "38 % on its fixed pipelines"}


def left(model_name: str) -> list[tuple[float, float]]:
    """By seed: share of the original bound that is left, and what of it any placement could serve
    now.
    """
    fleet, model = mixed(NODES, model_name)
    holding = {i: s for pipeline in plan(fleet, model).pipelines for i, s in pipeline}
    holding = with_standby(fleet, model, holding).holding
    placement = tuple(Shard(i, layers) for i, layers in sorted(holding.items()))
    before = solve_flow_lp(fleet, model, placement).ub
    ids = [machine.id for machine in fleet.machines]
    found = []
    for seed in SEEDS:
        gone = set(random.Random(seed).sample(ids, round(LOST_SHARE * NODES)))
        rest = fleet.subset(m for m in fleet.machines if m.id not in gone)
        kept = {i: layers for i, layers in holding.items() if i not in gone}
        if not is_whole(rest, model, kept):
            found.append((0.0, 0.0))
            continue
        shards = tuple(Shard(i, layers) for i, layers in sorted(kept.items()))
        flow = solve_flow_lp(rest, model, shards)
        found.append((flow.tokens_per_s / before, flow.ub / before))
    return found


def rows() -> list[Row]:
    """The worst of ten draws for both models."""
    table = []
    for model_name, peer in PEER.items():
        found = left(model_name)
        worst, mean = min(found)[0], sum(share for share, _ in found) / len(found)
        ideal = sum(limit for _, limit in found) / len(found)
        table.append(
            Row(
                f"10 % of {NODES} nodes lost, {model_name}",
                f"≥ {REACH:.0%} of the original bound",
                f"worst of {len(found)} draws {worst:.1%}, mean {mean:.1%}",
                peer,
                f"{ideal:.1%}",
                worst >= REACH,
            )
        )
    return table
