"""What would pass if links were narrower, as they are in effect when prompts come in bursts?"""

from __future__ import annotations

from dataclasses import replace

from scheduler.fleet.fleet import Fleet, Link, Links


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
