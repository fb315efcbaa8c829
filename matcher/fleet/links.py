"""How far apart are machines, and what do the links between them carry, by the word of both ends?

A machine may say what it likes of its links, so of two words the worse one counts: it can make its
own links look bad, and no link better than the other end finds it. Where only one end has measured,
its word counts up to what others have seen of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median_low

from core.protocol.records import MinerRecord
from scheduler.fleet.fleet import UNMEASURED_RHO_MS, Link, Links

#: What a link counts as, at most, of whose one end alone speaks and has been measured by nobody.
UNPROVEN_MB_S = 12.5
#: A link that is said to carry less, or nothing, counts as this.
LEAST_MB_S = 1e-3
#: By operator what it says of peers; operators are spelt as in the fleet.
Said = Mapping[str, Mapping[str, float]]


def said_of(records: Iterable[tuple[str, MinerRecord]]) -> tuple[Said, Said]:
    """What machines (operator, record) say of each other: ρ in ms, and megabytes a second."""
    records = tuple(records)
    # Looked up, not checksummed anew: there may be as many latencies as pairs of machines.
    here = {operator.lower(): operator for operator, _ in records}

    def known(own: str, told: Mapping[str, float]) -> dict[str, float]:
        found = ((here.get(peer.lower()), value) for peer, value in told.items())
        return {
            peer: value
            for peer, value in found
            if peer is not None and peer != own and math.isfinite(value) and value >= 0
        }

    rho_ms = {operator: known(operator, record.rho_ms) for operator, record in records}
    mb_s = {operator: known(operator, record.link_mb_s) for operator, record in records}
    return rho_ms, mb_s


def agreed_mb_s(said: Said) -> dict[tuple[str, str], float]:
    """The speed of every measured link, each way round, in megabytes a second."""
    seen: dict[str, list[float]] = {}
    for told in said.values():
        for peer, mb_s in told.items():
            seen.setdefault(peer, []).append(mb_s)
    proven = {peer: median_low(found) for peer, found in seen.items()}
    agreed: dict[tuple[str, str], float] = {}
    for a, told in said.items():
        for b, mb_s in told.items():
            back = said.get(b, {}).get(a)
            bound = proven.get(a, UNPROVEN_MB_S) if back is None else back
            agreed[a, b] = agreed[b, a] = max(LEAST_MB_S, min(mb_s, bound))
    return agreed


def links_of(rho_ms: Said, mb_s: Said) -> Links:
    """Links between machines with these words; pairs that nobody measured get what is assumed.

    A pair whose distance is known and whose speed is not counts as fast as the slower of the two
    ends is at its best; one of unknown distance as fast as the links in the middle of all known.
    """
    speeds = agreed_mb_s(mb_s)
    best: dict[str, float] = {}
    for (a, _), speed in speeds.items():
        best[a] = max(best.get(a, 0.0), speed)
    pairs: dict[tuple[str, str], Link] = {}
    for a, told in rho_ms.items():
        for b, ms in told.items():
            back = rho_ms.get(b, {}).get(a, 0.0)
            speed = speeds.get((a, b), min(best.get(a, math.inf), best.get(b, math.inf)))
            pairs[a, b] = Link(max(ms, back), _mbit_s(speed))
    usual = _mbit_s(median_low(speeds.values())) if speeds else None
    return Links(pairs, default_ms=UNMEASURED_RHO_MS, default_mbit_s=usual)


def _mbit_s(mb_s: float) -> float | None:
    return 8 * mb_s if math.isfinite(mb_s) else None
