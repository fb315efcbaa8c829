"""What does a hop cost, and at least between two localities with both ends' access?

The factored form lets a minimum over all predecessors go through the localities: O(R) instead of
R². Latencies given by region have it exactly. Measured pairs need not: then the form is a lower
bound, fitted so that it lies close beneath them, and `loose` names the blocks where the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scheduler.fleet.arrays import Flags, Floats, Ints
from scheduler.fleet.fleet import Link, Links, Machine, ModelShape

#: Beyond this many machines the exact matrix is never built.
MATRIX_MACHINES = 2048
#: Share of measured pairs from which localities come from the measurements instead of the declared
#: regions.
MEASURED_SHARE = 0.5
MOST_CLUSTERS = 8
#: Machines closer to a locality's first machine than this share of the fleet's width belong to it.
CLUSTER_SHARE = 0.15
#: Share of a block's pairs that may lie below its base, each paid for by its two machines' access.
LOW_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Factored:
    """base[l, l′] + access[g] + access[g′] for g in l, g′ in l′: the hop, or less as a bound."""

    locality: Ints  # [g], ascending
    starts: Ints  # [l] first machine of each locality
    base: Floats  # [l, l′]
    access: Floats  # [g]

    def among(self, chosen: Ints) -> Factored:
        """The same over some of the machines, in ascending order."""
        kept, locality = np.unique(self.locality[chosen], return_inverse=True)
        starts = np.searchsorted(locality, np.arange(len(kept)))
        base: Floats = self.base[np.ix_(kept, kept)]
        return Factored(locality, starts.astype(np.int64), base, self.access[chosen])


@dataclass(frozen=True, eq=False)
class Hops(Factored):
    """Hops between machines g in order of locality, and their factored form beneath them."""

    loose: Flags  # [l, l′] where the two differ
    regions: Ints  # [g] declared region
    by_region: (
        Floats  # [r, r′] latency and transfer, infinite where unknown and there is no default
    )
    known: Flags  # [r, r′] whether both ends' access counts too
    own_access: Floats  # [g] as announced
    pairs: dict[tuple[int, int], float]  # measured, directed, both directions filled

    @cached_property
    def is_exact(self) -> bool:
        """Whether the factored form is the hop itself."""
        return not self.loose.any()

    @cached_property
    def sources(self) -> dict[int, dict[int, float]]:
        """Measured hops by the machine they leave."""
        found: dict[int, dict[int, float]] = {}
        for (a, b), hop_ms in self.pairs.items():
            found.setdefault(a, {})[b] = hop_ms
        return found

    @cached_property
    def matrix(self) -> Floats:
        """Every hop; only for fleets of at most MATRIX_MACHINES."""
        everyone = np.arange(len(self.locality))
        return self._computed(everyone, everyone)

    def between(self, a: int, b: int) -> float:
        """The hop a → b as `costs.hop_ms`, 0 to itself, infinite where unreachable."""
        if a == b:
            return 0.0
        if self.pairs:
            measured = self.pairs.get((a, b))
            if measured is not None:
                return measured
        i, j = self.regions[a], self.regions[b]
        hop_ms = float(self.by_region[i, j])
        return (
            hop_ms + float(self.own_access[a] + self.own_access[b]) if self.known[i, j] else hop_ms
        )

    def block(self, a: Ints, b: Ints) -> Floats:
        """Hops from each of `a` to each of `b`."""
        if len(self.locality) <= MATRIX_MACHINES:
            hops: Floats = self.matrix[np.ix_(a, b)]
            return hops
        return self._computed(a, b)

    def _computed(self, a: Ints, b: Ints) -> Floats:
        cell = np.ix_(self.regions[a], self.regions[b])
        both = self.own_access[a][:, None] + self.own_access[b][None, :]
        hops: Floats = self.by_region[cell] + np.where(self.known[cell], both, 0.0)
        if self.pairs:
            column = {int(g): j for j, g in enumerate(b)}
            for i, g in enumerate(a.tolist()):
                for other, hop_ms in self.sources.get(g, {}).items():
                    j = column.get(other)
                    if j is not None:
                        hops[i, j] = hop_ms
        hops[a[:, None] == b[None, :]] = 0.0
        return hops

    @cached_property
    def is_metric(self) -> bool:
        """Whether no relay beats the direct hop, so that optimal switches lie on boundaries.

        Checked exactly for factored hops and small fleets; otherwise False, which only costs time.
        """
        if self.is_exact:
            relay = np.full(len(self.base), np.inf)
            np.minimum.at(relay, self.locality, 2 * self.access)
            return all(
                (self.base <= self.base[:, j, None] + self.base[None, j] + relay[j] + 1e-12).all()
                for j in range(len(self.base))
            )
        if len(self.locality) > 64:
            return False
        direct = self.matrix
        return all(
            (direct <= direct[:, j, None] + direct[None, j] + 1e-12).all()
            for j in range(len(direct))
        )


def localities_of(machines: Sequence[Machine], links: Links) -> list[str]:
    """A locality for each machine: its region, or a cluster where nearly all pairs are measured."""
    regions = [machine.region for machine in machines]
    n = len(machines)
    if not (24 <= n <= MATRIX_MACHINES) or len(links.pairs) < MEASURED_SHARE * n * (n - 1) / 2:
        return regions
    if len(set(regions)) > 1:
        return regions
    index = {machine.id: g for g, machine in enumerate(machines)}
    near = np.full((n, n), links.default_ms if links.default_ms is not None else 1e9)
    for (a, b), link in links.pairs.items():
        if a in index and b in index and math.isfinite(link.latency_ms):
            near[index[a], index[b]] = near[index[b], index[a]] = link.latency_ms
    np.fill_diagonal(near, 0.0)
    centres = [0]
    nearest, which = near[0].copy(), np.zeros(n, dtype=np.int64)
    while len(centres) < min(MOST_CLUSTERS, n):
        far = int(np.argmax(nearest))
        if nearest[far] <= CLUSTER_SHARE * near[0].max():
            break
        closer = near[far] < nearest
        which[closer], nearest = len(centres), np.minimum(nearest, near[far])
        centres.append(far)
    return [f"{c:02}" for c in which.tolist()]


def hops_of(
    machines: Sequence[Machine],
    localities: Sequence[str],
    links: Links,
    model: ModelShape,
    tokens: int = 1,
) -> Hops:
    """Hops between machines in order of locality; `tokens` activations cross each at once."""
    bits = tokens * model.activation_bytes_per_token * 8

    def time_ms(link: Link) -> float:
        mbit_s = link.bandwidth_mbit_s
        return link.latency_ms + (bits / (mbit_s * 1e3) if mbit_s else 0.0)

    names = sorted({machine.region for machine in machines})
    region = {name: r for r, name in enumerate(names)}
    nowhere = math.inf
    if links.default_ms is not None:
        nowhere = time_ms(Link(links.default_ms, links.default_mbit_s))
    by_region = np.full((len(names), len(names)), nowhere)
    known = np.zeros(by_region.shape, dtype=np.bool_)
    for (i, a), (j, b) in ((x, y) for x in enumerate(names) for y in enumerate(names)):
        link = links.regions.get((a, b)) or links.regions.get((b, a))
        if link is not None:
            by_region[i, j], known[i, j] = time_ms(link), True
    index = {machine.id: g for g, machine in enumerate(machines)}
    pairs: dict[tuple[int, int], float] = {}
    for (a, b), link in links.pairs.items():
        i, j = index.get(a, -1), index.get(b, -1)
        if i < 0 or j < 0 or i == j:
            continue
        pairs[i, j] = time_ms(link)
        if (b, a) not in links.pairs:
            pairs[j, i] = pairs[i, j]
    labels = sorted(set(localities))
    of = np.array([labels.index(label) for label in localities], dtype=np.int64)
    plain = Hops(
        locality=of,
        starts=np.searchsorted(of, np.arange(len(labels))).astype(np.int64),
        base=np.zeros((len(labels), len(labels))),
        access=np.zeros(len(machines)),
        loose=np.zeros((len(labels), len(labels)), dtype=np.bool_),
        regions=np.array([region[machine.region] for machine in machines], dtype=np.int64),
        by_region=by_region,
        known=known,
        own_access=np.array([machine.access_ms for machine in machines], dtype=np.float64),
        pairs=pairs,
    )
    return _with_bound(plain, labels == names)


def _with_bound(hops: Hops, by_region: bool) -> Hops:
    """The same with base and access fitted beneath the hops."""
    access = hops.own_access if hops.known.any() else np.zeros_like(hops.own_access)
    if not by_region or (hops.pairs and len(hops.locality) <= MATRIX_MACHINES):
        return _fitted(hops, access if by_region else None)
    most = np.zeros(len(hops.by_region))
    np.maximum.at(most, hops.regions, access)
    slack = np.where(hops.known, 0.0, most[:, None] + most[None, :])
    base = hops.by_region - slack
    loose = (slack > 0) & np.isfinite(base)
    if hops.pairs:
        # Too many machines for a matrix: every pair below the form is paid for by its two machines.
        access, low = access.copy(), np.zeros(len(access))
        for (a, b), hop_ms in hops.pairs.items():
            cell = hops.locality[a], hops.locality[b]
            loose[cell] = True
            if math.isinf(hop_ms):
                continue
            if math.isinf(base[cell]):
                base[cell] = max(0.0, hop_ms - access[a] - access[b])
            short = (base[cell] + access[a] + access[b] - hop_ms) / 2
            low[a], low[b] = max(low[a], short), max(low[b], short)
        access -= low
        lowered = np.unique(hops.locality[low > 0])
        loose[lowered, :] = loose[:, lowered] = True
    return replace(hops, base=base, access=access, loose=loose)


def _fitted(hops: Hops, access: Floats | None) -> Hops:
    """Base and access beneath the exact matrix."""
    real = hops.matrix
    n, localities = len(real), len(hops.base)
    if access is None:
        others = real.copy()
        np.fill_diagonal(others, np.inf)
        nearest = np.minimum(others.min(axis=0, initial=np.inf), others.min(axis=1, initial=np.inf))
        access = np.where(np.isfinite(nearest), nearest / 2, 0.0)
    rest = real - access[:, None] - access[None, :]
    np.fill_diagonal(rest, np.inf)
    base = np.full((localities, localities), np.inf)
    ends = [*hops.starts.tolist(), n]
    cells = [
        (i, j, (slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])))
        for i in range(localities)
        for j in range(localities)
    ]
    low = np.zeros(n)
    for i, j, cell in cells:
        finite = rest[cell][np.isfinite(rest[cell])]
        if finite.size:
            base[i, j] = np.quantile(finite, LOW_SHARE, method="lower")
            short = np.maximum(0.0, base[i, j] - rest[cell]) / 2
            low[cell[0]] = np.maximum(low[cell[0]], short.max(axis=1))
            low[cell[1]] = np.maximum(low[cell[1]], short.max(axis=0))
    access = access - low
    rest += low[:, None] + low[None, :]
    loose = np.zeros(base.shape, dtype=np.bool_)
    for i, j, cell in cells:
        if np.isfinite(base[i, j]):
            block = rest[cell]
            base[i, j] = block[np.isfinite(block)].min()
            off = np.ones(block.shape, dtype=np.bool_)
            if i == j:
                np.fill_diagonal(off, False)
            loose[i, j] = bool((block[off] > base[i, j] + 1e-12).any())
    return replace(hops, base=base, access=access, loose=loose)
