"""What does a plan come to: its chains, tokens per second and milliseconds per token?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from core.protocol.types import LayerRange
from scheduler.fleet.costs import hop_ms, link_tokens_per_s, pipeline_ms, tokens_per_s
from scheduler.fleet.fleet import Fleet, Located, ModelShape, Pipeline, Placement, Shard
from scheduler.flow.max_flow import Flow

#: Of a flow, what is less than this share of the whole is rounding.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class PlannedChain:
    """A way through the model: stages, the tokens/s it carries, a token's time through it alone."""

    stages: Pipeline
    tokens_per_s: float
    latency_ms: float


def chain_ms(stages: Pipeline, fleet: Fleet, model: ModelShape) -> float:
    """Time of a token through a chain at batch 1, from the coordinator and back if there is one."""
    time_ms = pipeline_ms(stages, fleet, model)
    if fleet.coordinator is not None:
        first, last = fleet.by_id[stages[0].machine_id], fleet.by_id[stages[-1].machine_id]
        time_ms += hop_ms(fleet.links, fleet.coordinator, first, model)
        time_ms += hop_ms(fleet.links, last, fleet.coordinator, model)
    return time_ms


def chains_of_pipelines(
    pipelines: Iterable[Pipeline], fleet: Fleet, model: ModelShape
) -> tuple[PlannedChain, ...]:
    """Disjoint pipelines as chains: each carries what its slowest stage or link does."""
    chains: list[PlannedChain] = []
    for stages in pipelines:
        machines = [fleet.by_id[shard.machine_id] for shard in stages]
        rate = min(
            tokens_per_s(machine, model, len(shard.layers))
            for machine, shard in zip(machines, stages, strict=True)
        )
        ends: list[Located] = [fleet.coordinator] if fleet.coordinator is not None else []
        for a, b in pairwise([*ends, *machines, *ends]):
            rate = min(rate, link_tokens_per_s(fleet.links, a, b, model))
        chains.append(PlannedChain(stages, rate, chain_ms(stages, fleet, model)))
    return tuple(chains)


def chains_of_flow(
    flow: Flow, placement: Placement, fleet: Fleet, model: ModelShape
) -> tuple[PlannedChain, ...]:
    """A flow taken apart into paths, widest first; their tokens per second add up to the flow.

    Where a path enters a shard in the middle, the stage begins there.
    """
    held = {shard.machine_id: shard.layers for shard in placement}
    left = {link: rate for link, rate in flow.links.items() if rate > 0}
    least = NEGLIGIBLE * max(flow.tokens_per_s, 1.0)
    chains: list[PlannedChain] = []
    while True:
        path = _widest_path(left, flow.coordinator_id)
        rate = min((left[link] for link in path), default=0.0)
        if rate <= least:
            return tuple(chains)
        for link in path:
            left[link] -= rate
            if left[link] <= least:
                del left[link]
        stages, start = list[Shard](), 0
        for _, machine_id in path[:-1]:
            stages.append(Shard(machine_id, LayerRange(start, held[machine_id].end)))
            start = held[machine_id].end
        chains.append(PlannedChain(tuple(stages), rate, chain_ms(tuple(stages), fleet, model)))


def _widest_path(links: Mapping[tuple[str, str], float], ends: str) -> list[tuple[str, str]]:
    """The path from the coordinator and back whose narrowest link is widest; ties to lower ids."""
    after: dict[str, list[tuple[str, float]]] = {}
    for (a, b), rate in sorted(links.items()):
        after.setdefault(a, []).append((b, rate))
    width: dict[str, float] = {ends: math.inf}
    came: dict[str, str] = {}
    done: set[str] = set()
    best_end, best = "", 0.0
    while True:
        at = min(
            (place for place in width if place not in done),
            key=lambda place: (-width[place], place),
            default=None,
        )
        if at is None:
            break
        done.add(at)
        for to, rate in after.get(at, ()):
            through = min(width[at], rate)
            if to == ends:
                if through > best:
                    best_end, best = at, through
            elif to not in done and through > width.get(to, 0.0):
                width[to], came[to] = through, at
    path, at = list[tuple[str, str]](), best_end
    if not best:
        return path
    path.append((best_end, ends))
    while at != ends:
        path.append((came[at], at))
        at = came[at]
    return path[::-1]
