"""Which machines stand in for a part of a chain whose others stay?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from core.protocol.types import LayerRange
from scheduler.fleet.arrays import Flags, Floats
from scheduler.routing.live import LiveRouter
from scheduler.routing.parallax_route import Answer, no_route, priced_route
from scheduler.routing.partial import best_everywhere, edges_within
from scheduler.routing.whole import sweep_whole


@dataclass(frozen=True, slots=True)
class _Between:
    """What machines cost between two neighbours that stay; None: the client, near to any."""

    live: LiveRouter
    before: str | None
    after: str | None
    ends: bool

    def one(self, g: int) -> tuple[float, float]:
        tau_ms, head_ms = self.live.one(g)
        return tau_ms, head_ms if self.ends else 0.0

    def stage_ms(self, g: int) -> tuple[float, float]:
        return self.live.stage_ms(g)

    def edge_ms(self, g: int) -> tuple[float, float]:
        index, hops = self.live.table.index, self.live.table.hops
        before = index.get(self.before or "", -1)
        after = index.get(self.after or "", -1)
        enter = hops.between(before, g) if before >= 0 else 0.0
        return enter, hops.between(g, after) if after >= 0 else 0.0

    def all(self) -> tuple[Floats, Floats]:
        tau, head = self.live.all()
        return tau, head if self.ends else np.zeros_like(head)

    def edges(self) -> tuple[Floats, Floats]:
        many = range(len(self.live.table.machines))
        both = np.array([self.edge_ms(g) for g in many]).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def masked(self) -> Flags:
        return self.live.masked()


def bridge(
    live: LiveRouter,
    span: LayerRange,
    before: str | None,
    after: str | None,
    kv_needed_tokens: int = 0,
    excluded: Collection[str] = (),
) -> Answer:
    """The best chain over these layers, from the machine before to the one after (None: client).

    A machine that stays is not used a second time. Exact, and the router's own state is as before.
    """
    table = live.table
    live.can_hold(kv_needed_tokens)
    prices = _Between(live, before, after, span.end == table.model.layers)
    stays = [machine_id for machine_id in (before, after) if machine_id is not None]
    with live.without({*excluded, *stays}):
        if live.partial:
            edges = edges_within(table, span)
            found = best_everywhere(table, edges, prices)
            if not isinstance(found, int):
                found = [(g, edges[first], edges[end]) for g, first, end in found]
        else:
            tau, head = prices.all()
            enter, leave = prices.edges()
            found = sweep_whole(table, span, tau, enter, head + leave)
        if isinstance(found, int):
            return no_route(table, span, prices, found)
        return priced_route(table, prices, found)
