"""Which pipelines does one draft give: by locality with leftovers pooled, or all at once?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.fleet.connected import search_connected
from scheduler.fleet.fleet import Links, Machine, ModelShape
from scheduler.fleet.gap import relative_gap
from scheduler.fleet.kinds import most_layers_of_any
from scheduler.utility.coarse import coarsened
from scheduler.utility.hand_out import hand_out
from scheduler.utility.hops import TokenHops
from scheduler.utility.kinds import MachineKind, group
from scheduler.utility.scope import Effort, Solved, solve
from scheduler.utility.score import utility
from scheduler.utility.split import Built, EndChoices, build, build_in_order
from scheduler.utility.table import PatternTable

WHOLE_FLEET = "all localities"
#: Machines of a place whose hops stand for all of its.
SAMPLE = 12
#: So few machines are all planned as they are.
FEW = 12
#: Stands for the hop between places that nothing connects.
FAR_MS = 1e6


@dataclass(frozen=True, slots=True)
class UtilityOptions:
    """How to plan. ``beta``: 0 throughput, 0.5 both, 1 latency.

    ``floor`` is the share of the throughput bound that disjoint pipelines shall reach where they
    can: a plan below it is made again with less weight on latency. Up to ``global_up_to`` machines
    the fleet is also planned at once. Where there are more than ``kinds`` kinds of machine, near
    ones are planned as one.
    """

    beta: float = 0.5
    floor: float = 0.92
    global_up_to: int = 96
    kinds: int = 8
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope's Σ u of its patterns, and the bound of its relaxation over those listed."""

    name: str
    machines: int
    pipelines: int
    value: float
    bound: float

    @property
    def gap(self) -> float:
        return relative_gap(self.value, self.bound)


@dataclass
class Draft:
    """Pipelines so far, the scopes they came from and how they were found.

    ``utility`` is by the β that was asked for, whatever ``beta`` the patterns were chosen with.
    """

    built: list[Built]
    scopes: list[Scope]
    method: str
    beta: float
    asked: float

    @property
    def utility(self) -> float:
        theta, latency_ms = (
            np.array([one.theta for one in self.built]),
            np.array([one.latency_ms for one in self.built]),
        )
        return float(utility(theta, latency_ms, self.asked).sum())

    @property
    def throughput(self) -> float:
        return sum(one.theta for one in self.built)

    @property
    def gap(self) -> float:
        """Distance of all scopes together to their bounds."""
        value = sum(scope.value for scope in self.scopes)
        bound = sum(scope.bound for scope in self.scopes)
        return relative_gap(value, bound)


class World:
    """What all drafts of a plan share: kinds, patterns, localities and latencies between them."""

    def __init__(
        self,
        usable: Sequence[Machine],
        places: tuple[tuple[Machine, ...], ...],
        links: Links,
        model: ModelShape,
        options: UtilityOptions,
    ) -> None:
        self.places, self.links, self.model, self.options = places, links, model, options
        self.usable = usable
        self.hops = TokenHops(links, model)
        self.known: dict[tuple[MachineKind, ...], EndChoices] = {}
        self.solved: dict[tuple[bytes, float, float], Solved] = {}
        exact = group(usable, model)
        self.kind_of: dict[str, MachineKind] = {m: exact.kinds[t] for m, t in exact.kind_of.items()}
        self.grouped, best = coarsened(exact, max(options.kinds, FEW if len(usable) <= FEW else 0))
        self.rate_bound = sum(self.kind_of[m.id].best_rate for m in usable) / model.layers
        self.place_of = {m.id: p for p, inside in enumerate(places) for m in inside}
        self.between = _between_ms(places, self.hops)
        most = [len(members) for members in self.grouped.members]
        if len(usable) > options.global_up_to and places:
            by_place = [[0] * len(most) for _ in places]
            for m in usable:
                by_place[self.place_of[m.id]][self.grouped.kind_of[m.id]] += 1
            most = [max(counts) for counts in zip(*by_place, strict=True)]
        self.table = PatternTable(self.grouped, most, options.effort.rows) if usable else None
        twin = replace(self.grouped, kinds=best)
        coarse = usable and best != self.grouped.kinds
        self.twin = PatternTable(twin, most, options.effort.rows) if coarse else None
        # What coarse kinds give away is more than further searches would find.
        searches = options.effort.searches[: 1 if coarse else None]
        self.effort = replace(options.effort, searches=searches)

    def draft(self, beta: float, at_once: bool, to_beat: float = 0.0) -> Draft:
        """One plan: all at once, or by locality with leftovers pooled; empty if out of reach."""
        made = Draft([], [], "patterns", beta, self.options.beta)
        if at_once or len(self.places) < 2:
            self._extend(made, WHOLE_FLEET, range(len(self.places)), list(self.usable), to_beat)
            if to_beat and not made.built:
                return made
        else:
            left: list[tuple[tuple[int, ...], list[Machine]]] = []
            for p, inside in enumerate(self.places):
                left.append(((p,), self._extend(made, f"locality {p}", (p,), list(inside))))
            while len(left) > 1:
                a, b = min(
                    ((i, j) for i in range(len(left)) for j in range(i)),
                    key=lambda pair: (self._apart(left[pair[0]][0], left[pair[1]][0]), pair),
                )
                (of_a, in_a), (of_b, in_b) = left[a], left[b]
                del left[a], left[b]
                both, pool = tuple(sorted(of_a + of_b)), in_a + in_b
                name = WHOLE_FLEET if not left else "localities " + ", ".join(map(str, both))
                left.append((both, self._extend(made, name, both, pool)))
        self._connect(made)
        return made

    def _apart(self, a: Sequence[int], b: Sequence[int]) -> float:
        return min(self.between[i][j] for i in a for j in b)

    def _hop_ms(self, places: Sequence[int], machines: Sequence[Machine]) -> float:
        """A hop as expected in a scope: half of them inside one place, half between places."""
        count = dict.fromkeys(places, 0)
        for m in machines:
            count[self.place_of[m.id]] += 1
        some = [(p, n) for p, n in count.items() if n]
        many = max(1, len(machines))
        inside = sum(n * self.between[p][p] for p, n in some) / many
        mixed = sum(n * k * self.between[p][q] for p, n in some for q, k in some) / many**2
        return (inside + min(mixed, FAR_MS)) / 2

    def _extend(
        self,
        made: Draft,
        name: str,
        places: Sequence[int],
        machines: list[Machine],
        to_beat: float = 0.0,
    ) -> list[Machine]:
        """Add this scope's best pipelines to the draft; the machines it leaves."""
        caps = [self.kind_of[m.id].capacities for m in machines]
        if most_layers_of_any(caps, self.model.layers) < self.model.layers:
            return machines
        assert self.table is not None
        grouped = self.grouped
        members: list[list[Machine]] = [[] for _ in grouped.kinds]
        for m in machines:
            members[grouped.kind_of[m.id]].append(m)
        supply = np.array([len(shelf) for shelf in members])
        hop_ms = self._hop_ms(places, machines)
        beta = made.beta
        asked = (supply.tobytes(), beta, hop_ms)
        effort, solved = self.effort, self.solved.get(asked)
        if solved is None:
            solved = solve(self.table, supply, beta, hop_ms, effort, to_beat)
            if not to_beat:
                self.solved[asked] = solved
        bound = solved.bound
        if self.twin is not None:  # nothing is planned with the best twins, they only bound
            bound = max(bound, solve(self.twin, supply, beta, hop_ms, effort, math.inf).bound)
        groups = self._groups(self.table, solved, members)
        used: set[str] = set()
        for chosen in groups:
            kinds = [self.kind_of[m.id] for m in chosen]
            one = build(chosen, kinds, self.model.layers, self.hops, beta, self.known)
            if one is not None:
                made.built.append(one)
                used |= {m.id for m in chosen}
        made.scopes.append(Scope(name, len(machines), len(groups), solved.value, bound))
        return [m for m in machines if m.id not in used]

    def _groups(
        self, table: PatternTable, solved: Solved, members: list[list[Machine]]
    ) -> list[list[Machine]]:
        order = sorted(
            range(len(solved.rows)), key=lambda r: (-table.theta[solved.rows[r]], solved.rows[r])
        )
        patterns = []
        for r in order:
            column = table.counts[:, solved.rows[r]]
            pattern = {int(t): int(column[t]) for t in np.flatnonzero(column)}
            patterns += [pattern] * int(solved.times[r])
        speed = {m.id: self.kind_of[m.id].best_rate for shelf in members for m in shelf}
        return hand_out(patterns, members, speed, self.place_of, self.between)

    def _connect(self, made: Draft) -> None:
        """Where links or patterns are missing, still one pipeline if any chain holds the model."""
        if made.built:
            return
        order = search_connected(list(self.usable), self.model, self.links)
        if order is None:
            return
        kinds = [self.kind_of[m.id] for m in order]
        one = build_in_order(order, kinds, self.model.layers, self.hops)
        if one is not None:
            made.built.append(one)
            made.method = "connected chain"


def _between_ms(places: Sequence[Sequence[Machine]], hops: TokenHops) -> list[list[float]]:
    """Mean hop between a few machines of two places; infinite where none is connected."""
    few = [inside[:: -(-len(inside) // SAMPLE)] for inside in places]
    rows = []
    for i, a in enumerate(few):
        row = []
        for j, b in enumerate(few):
            ways = hops.matrix(a, b)
            good = ways[np.isfinite(ways) & (ways > 0)] if i == j else ways[np.isfinite(ways)]
            row.append(float(good.mean()) if good.size else 0.0 if i == j else math.inf)
        rows.append(row)
    return rows
