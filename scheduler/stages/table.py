"""What do searches read about a fleet: rates by layers, alike machines, links that bind?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduler.fleet.costs import Capacities, capacities, link_tokens_per_s, tokens_per_s
from scheduler.fleet.fleet import Fleet, Machine, ModelShape
from scheduler.flow.bounds import capped_bound


@dataclass(frozen=True, slots=True)
class StageKind:
    """Machines that a planner need not tell apart: same rates T(k), capacities and region."""

    rates: tuple[float, ...]
    fits: Capacities
    region: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class StageTable:
    """A fleet in numbers. Machines are indices in order of id; those that hold nothing are out.

    ``links[a][b]`` and the coordinator's ``entry`` and ``exit`` are in tokens per second.
    """

    model: ModelShape
    machines: tuple[Machine, ...]
    kinds: tuple[StageKind, ...]
    kind_of: tuple[int, ...]
    fleet: Fleet

    @cached_property
    def links(self) -> tuple[tuple[float, ...], ...]:
        """Tokens per second from machine a to machine b."""
        between, model = self.fleet.links, self.model
        return tuple(
            tuple(link_tokens_per_s(between, a, b, model) for b in self.machines)
            for a in self.machines
        )

    @cached_property
    def entry(self) -> tuple[float, ...]:
        """Tokens per second from the coordinator to each machine; endless without a coordinator."""
        at = self.fleet.coordinator
        if at is None:
            return (math.inf,) * len(self.machines)
        return tuple(link_tokens_per_s(self.fleet.links, at, m, self.model) for m in self.machines)

    @cached_property
    def exit(self) -> tuple[float, ...]:
        """Tokens per second from each machine back to the coordinator."""
        at = self.fleet.coordinator
        if at is None:
            return (math.inf,) * len(self.machines)
        return tuple(link_tokens_per_s(self.fleet.links, m, at, self.model) for m in self.machines)

    @cached_property
    def capped_bound(self) -> float:
        """No placement passes more; 0 when the machines together cannot hold the model."""
        return capped_bound(self.fleet, self.model)

    @cached_property
    def links_bind(self) -> bool:
        """Can any link hold back what its two machines could pass at one layer each?"""
        best = [kind.rates[0] for kind in self.kinds]
        cap = self.capped_bound
        for a, row in enumerate(self.links):
            most = min(cap, best[self.kind_of[a]])
            if min(self.entry[a], self.exit[a]) < most:
                return True
            if any(limit < min(most, best[self.kind_of[b]]) for b, limit in enumerate(row)):
                return True
        return False

    @cached_property
    def ends_matter(self) -> bool:
        """Does a stage at either end of the model hold fewer layers than one inside?"""
        return any(min(kind.fits) < kind.fits.plain for kind in self.kinds)


def table_of(fleet: Fleet, model: ModelShape) -> StageTable:
    """The table of a fleet. Rates are T(k) of `costs`, for each k that fits anywhere."""
    found: dict[tuple[tuple[float, ...], Capacities, str], list[int]] = {}
    rates_of: dict[tuple[object, ...], tuple[float, ...]] = {}
    machines: list[Machine] = []
    for machine in fleet.machines:
        fits = capacities(machine, model)
        most = max(fits)
        if not most:
            continue
        same = (
            id(machine.profile),
            machine.tflops,
            machine.bandwidth_gb_s,
            machine.tau_ms_per_layer,
            machine.tau_batch,
            most,
        )
        rates = rates_of.get(same)
        if rates is None:
            rates = tuple(tokens_per_s(machine, model, k) for k in range(1, most + 1))
            rates_of[same] = rates
        found.setdefault((rates, fits, machine.region), []).append(len(machines))
        machines.append(machine)
    kinds = tuple(StageKind(*key, tuple(members)) for key, members in found.items())
    kind_of = [0] * len(machines)
    for index, kind in enumerate(kinds):
        for member in kind.members:
            kind_of[member] = index
    return StageTable(model, tuple(machines), kinds, tuple(kind_of), fleet)


def fits_at(kind: StageKind, start: int, layers: int, total: int) -> bool:
    """May a machine of this kind hold [start, start + layers) of a model of `total` layers?"""
    return 0 < layers <= kind.fits.at(start, start + layers, total)


def region_order(table: StageTable, regions: Sequence[str]) -> list[int]:
    """Machines region by region, inside a region the fastest kinds first."""
    rank = {region: i for i, region in enumerate(regions)}
    return sorted(
        range(len(table.machines)),
        key=lambda m: (rank[table.machines[m].region], -table.kinds[table.kind_of[m]].rates[0], m),
    )
