"""Which chain is next, where chains are taken by turns over the flow that the machines pass?

Helix §5: a maximum flow over what serves now says how often each hop is taken, and machines over
the high-water mark of their KV cache are passed over. What is expected of each cache is what the
matcher has promised of it: prompt and answer of every request that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.fleet.fleet import Fleet, ModelShape, Pipeline, Placement
from scheduler.flow.max_flow import max_flow
from scheduler.simulate.dispatch.estimate import HIGH_WATER
from scheduler.simulate.dispatch.topology import Topology
from scheduler.simulate.dispatch.turns import WeightedTurns


@dataclass(frozen=True)
class PromisedCache:
    """A machine's KV room, and what of it is not promised, in tokens over all its layers."""

    room_tokens: int
    free_tokens: int

    def takes(self, tokens: int) -> bool:
        """Whether so many more stay under the mark. An idle machine takes all that it can hold."""
        used = self.room_tokens - self.free_tokens
        if used <= 0:
            return tokens <= self.free_tokens
        return used + tokens <= HIGH_WATER * self.room_tokens


class FlowTurns:
    """Turns over one placement. Loads begin at zero with each new one."""

    def __init__(
        self, fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool
    ) -> None:
        flow = max_flow(fleet, model, placement, partial=partial)
        topology = Topology.of(fleet, model, placement, partial=partial)
        self._turns = WeightedTurns(topology, flow.links)

    def next(self, requests: int, may_enter: Callable[[str], bool]) -> Pipeline | None:
        """The chain whose turn it is, for so many requests; None where turns lead nowhere."""
        way = self._turns.way(requests, may_enter)
        return None if way is None else tuple(hop.stage for hop in way if hop.stage is not None)
