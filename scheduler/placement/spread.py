"""Which maximum flow uses links and machines evenly, so that requests that follow it meet the least traffic?

Many flows have the same value. A plain one may push all traffic between two regions through one link that is just wide
enough, where prompts then queue. This one finds the narrowest links, all by the same factor, through which (nearly) the
maximum still fits, and among the flows there takes one of least latency.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.fleet import Fleet, Link, Links, ModelShape, Placement
from scheduler.helix.max_flow import Flow, least_latency_flow, max_flow

#: Share of the maximum that the even flow keeps.
KEPT = 0.98
#: Halvings of the interval in which the factor lies.
STEPS = 8


def spread_flow(
    fleet: Fleet, model: ModelShape, placement: Placement, *, partial: bool = False
) -> Flow:
    """A flow of at least KEPT times the maximum over links as narrow as can be, of least latency among those."""
    most = max_flow(fleet, model, placement, partial=partial).tokens_per_s
    enough = most * KEPT
    low, high, best = 0.0, 1.0, fleet
    for _ in range(STEPS):
        factor = (low + high) / 2
        narrow = narrowed(fleet, factor)
        if max_flow(narrow, model, placement, partial=partial).tokens_per_s >= enough:
            high, best = factor, narrow
        else:
            low = factor
    return least_latency_flow(best, model, placement, partial=partial)


def narrowed(fleet: Fleet, factor: float) -> Fleet:
    """The same fleet with every known bandwidth times ``factor``."""

    def narrow(link: Link) -> Link:
        bandwidth = link.bandwidth_mbit_s
        return link if bandwidth is None else replace(link, bandwidth_mbit_s=bandwidth * factor)

    links = fleet.links
    return replace(
        fleet,
        links=Links(
            {pair: narrow(link) for pair, link in links.pairs.items()},
            {pair: narrow(link) for pair, link in links.regions.items()},
            links.default_ms,
        ),
    )
