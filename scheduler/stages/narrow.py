"""What would pass if links were narrower, as they are in effect when prompts come in bursts?"""

from __future__ import annotations

from dataclasses import replace

from scheduler.fleet.fleet import Fleet, Link, Links


def narrowed(fleet: Fleet, factor: float) -> Fleet:
    """The same fleet with every known bandwidth times ``factor``."""

    def narrow(link: Link) -> Link:
        return replace(link, bandwidth_mbit_s=times(link.bandwidth_mbit_s))

    def times(mbit_s: float | None) -> float | None:
        return None if mbit_s is None else mbit_s * factor

    links = fleet.links
    return replace(
        fleet,
        links=Links(
            {pair: narrow(link) for pair, link in links.pairs.items()},
            {pair: narrow(link) for pair, link in links.regions.items()},
            links.default_ms,
            times(links.default_mbit_s),
        ),
    )
