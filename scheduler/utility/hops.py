"""How long is the hop between any two of a few machines?

Where nobody measured pairs, latency is region to region plus both machines' access: looked up once
per pair of regions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.fleet.arrays import Floats
from scheduler.fleet.costs import hop_ms
from scheduler.fleet.fleet import Links, Machine, ModelShape


class TokenHops:
    """`scheduler.fleet.costs.hop_ms` for one token, as matrices."""

    def __init__(self, links: Links, model: ModelShape) -> None:
        self.links, self.model = links, model
        self._between: dict[tuple[str, str], tuple[float, float]] = {}

    def matrix(self, machines: Sequence[Machine], to: Sequence[Machine] | None = None) -> Floats:
        """[from, to] hop in ms, infinite where there is no link, 0 to itself."""
        ends = machines if to is None else to
        if self.links.pairs:
            return np.array(
                [[hop_ms(self.links, a, b, self.model) for b in ends] for a in machines]
            )
        rows = []
        for a in machines:
            row = []
            for b in ends:
                base, access = self._between.get((a.region, b.region)) or self._look_up(a, b)
                row.append(0.0 if a.id == b.id else base + access * (a.access_ms + b.access_ms))
            rows.append(row)
        return np.array(rows)

    def _look_up(self, a: Machine, b: Machine) -> tuple[float, float]:
        """(ms without access, 1 where access is added) between the regions of two machines."""
        one, other = (Machine(f"{i}", 0, 1.0, 1.0, m.region) for i, m in enumerate((a, b)))
        known = (a.region, b.region) in self.links.regions or (
            b.region,
            a.region,
        ) in self.links.regions
        found = hop_ms(self.links, one, other, self.model), 1.0 if known else 0.0
        self._between[a.region, b.region] = found
        return found
