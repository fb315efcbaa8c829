"""What could a placement pass, how deep is it, how long do prompts take in it?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.fleet.workload import Workload
from scheduler.flow.flow_graph import flow_graph
from scheduler.flow.max_flow import Flow, max_flow
from scheduler.stages.narrow import narrowed

#: Width of links in `Candidate.narrow_tokens_per_s`.
NARROW = 1 / 3


@dataclass(frozen=True)
class Candidate:
    """A placement, where it comes from, and what it could pass.

    Flows are maximum flows without and with partial inference, and with over links a third as wide:
    what passes when prompts come in bursts. ``stages`` is the mean number of machines on a token's
    way, ``prompt_s`` what a mean prompt takes on it with nobody in front, the time to put it on
    links left out.
    """

    source: str
    placement: Placement
    exact_tokens_per_s: float
    tokens_per_s: float
    narrow_tokens_per_s: float
    bound: float
    stages: float
    prompt_s: float


def candidate_of(
    source: str, fleet: Fleet, model: ModelShape, placement: Placement, bound: float
) -> Candidate:
    """A placement with its flows measured."""
    partial = max_flow(fleet, model, placement, partial=True)
    exact = max_flow(fleet, model, placement)
    narrow = max_flow(narrowed(fleet, NARROW), model, placement, partial=True)
    return Candidate(
        source,
        placement,
        exact.tokens_per_s,
        partial.tokens_per_s,
        narrow.tokens_per_s,
        bound,
        mean_stages(partial),
        mean_prompt_s(fleet, model, placement, partial),
    )


def mean_stages(flow: Flow) -> float:
    """Machines that a token of this flow passes on its way, on average."""
    if flow.tokens_per_s <= 0:
        return 0.0
    return sum(flow.by_machine.values()) / flow.tokens_per_s


def mean_prompt_s(fleet: Fleet, model: ModelShape, placement: Placement, flow: Flow) -> float:
    """What a mean prompt takes along this flow with nobody in front of it."""
    if flow.tokens_per_s <= 0:
        return 0.0
    graph = flow_graph(fleet, model, placement, partial=True)
    spent_ms = sum(
        ms * flow.links.get(ends, 0.0)
        for ends, ms in zip(
            graph.ends, graph.prompt_ms(round(Workload().input_tokens)), strict=True
        )
    )
    return spent_ms / flow.tokens_per_s / 1e3


def by_depth(found: Iterable[Candidate], many: int) -> tuple[Candidate, ...]:
    """The ``many`` most promising: of every depth the one with the most flow over narrow links for
    the time that prompts take, then of every depth the one with the most such flow, then the second
    ones, and so on.
    """
    depths: dict[int, list[Candidate]] = {}
    for candidate in found:
        depths.setdefault(round(candidate.stages), []).append(candidate)
    columns = [_in_turns(column) for _, column in sorted(depths.items())]
    turns = max((len(column) for column in columns), default=0)
    ordered = [column[turn] for turn in range(turns) for column in columns if turn < len(column)]
    return tuple(ordered[:many])


def _in_turns(column: list[Candidate]) -> list[Candidate]:
    quick = sorted(column, key=lambda c: -c.narrow_tokens_per_s / max(c.prompt_s, 1e-9))
    wide = sorted(column, key=lambda c: -c.narrow_tokens_per_s)
    return list(dict.fromkeys(c for pair in zip(quick, wide, strict=True) for c in pair))
