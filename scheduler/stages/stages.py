"""How fast is a stage by layer count, and how many layers does every stage of a chain take?

A stage is a set of machines that hold the same layers; a chain is an ordered list of stages. Given
the order, the layer counts follow greedily: start every stage at its most layers and take layers
from the slowest until they add up to L. That is optimal for the chain, because a stage only gets
faster by holding less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import repeat

from scheduler.flow.arc_flow import largest
from scheduler.stages.table import StageTable

#: Curves kept before the pool of stages starts afresh, so that a long search stays small.
MOST_STAGES = 200_000
#: Flow through a chain is counted in 2^-16 tokens/s.
UNITS_PER_TOKEN = 2**16
#: Layers that a link without any capacity is counted as; doubling a stage to widen a link costs
#: about half of that.
LINK_PRICE = 5.0
NOT_YET: dict[tuple[int, int], float] = {}


@dataclass(slots=True, eq=False)
class PlannedStage:
    """Machines that hold the same layers. Curves are −R(k), rising: a bisection counts layers.

    R(k) is the most that the stage passes with k layers or more: a machine may hold layers it has
    no use for.
    """

    machines: tuple[int, ...]
    plain: list[float]
    first: list[float]
    last: list[float]
    both: list[float]
    #: Limits towards the next stage by both layer counts; None where the link never binds.
    next: dict[PlannedStage, dict[tuple[int, int], float] | None] = field(
        init=False, default_factory=dict
    )


class StagePool:
    """Every stage that a search has met, made once.

    With ``headroom`` h a link counts as 1/h of what it carries: prompts come in bursts, and a link
    that is just wide enough for the mean makes them wait.
    """

    def __init__(self, table: StageTable, headroom: float = 1.0) -> None:
        self.table = table
        self.links = tuple(tuple(limit / headroom for limit in row) for row in table.links)
        self.links_bind = headroom > 1.0 or table.links_bind
        self.ends_matter = table.ends_matter
        self.cap = table.capped_bound
        capacity = sum(max(kind.fits) * len(kind.members) for kind in table.kinds)
        #: May the machines hold the model more than once?
        self.several = capacity >= 2 * table.model.layers
        self._stages: dict[tuple[int, ...], PlannedStage] = {}
        self._curves: dict[tuple[int, ...], tuple[list[float], ...]] = {}

    def stage(self, machines: Sequence[int]) -> PlannedStage:
        """The stage of these machines."""
        key = tuple(sorted(machines))
        stage = self._stages.get(key)
        if stage is None:
            if len(self._stages) > MOST_STAGES:
                self._stages.clear()
            kind_of = self.table.kind_of
            kinds = tuple(sorted([kind_of[m] for m in key]))
            curves = self._curves.get(kinds)
            if curves is None:
                curves = self._curves[kinds] = self._curves_of(kinds)
            stage = self._stages[key] = PlannedStage(key, *curves)
        return stage

    def _curves_of(self, kinds: tuple[int, ...]) -> tuple[list[float], ...]:
        members = [self.table.kinds[kind] for kind in kinds]
        curves = []
        for at in ("plain", "first", "last", "both"):
            most = min(getattr(kind.fits, at) for kind in members)
            curve, best = [], 0.0
            for k in range(most, 0, -1):
                best = max(best, sum(kind.rates[k - 1] for kind in members))
                curve.append(-best)
            curves.append(curve[::-1])
        return tuple(curves)

    def link(self, a: PlannedStage, b: PlannedStage, k: int, j: int) -> float:
        """Tokens/s from stage a with k layers to b with j; the capped bound if no link binds.

        What the machines at either end pass counts: a wide link to a slow machine is of no use.
        Exact when one of the stages is one machine, otherwise at most too high.
        """
        limits = a.next.get(b, NOT_YET)
        if limits is NOT_YET:
            rows, cap = self.links, self.cap
            slow = any(rows[m][n] < cap for m in a.machines for n in b.machines)
            limits = a.next[b] = {} if slow else None
        if limits is None:
            return self.cap
        found = limits.get((k, j))
        if found is None:
            found = limits[k, j] = self._link(a, b, k, j)
        return found

    def _link(self, a: PlannedStage, b: PlannedStage, k: int, j: int) -> float:
        rows, rate = self.links, self._rate
        out = sum(min(rate(m, k), sum(rows[m][n] for n in b.machines)) for m in a.machines)
        into = sum(min(rate(n, j), sum(rows[m][n] for m in a.machines)) for n in b.machines)
        return min(out, into)

    def _rate(self, machine: int, k: int) -> float:
        return max(self.table.kinds[self.table.kind_of[machine]].rates[k - 1 :], default=0.0)

    def links_allow(self, chain: Sequence[PlannedStage], counts: Sequence[int]) -> list[float]:
        """Limits along a chain below the capped bound, with the coordinator at both ends."""
        table, cap, link = self.table, self.cap, self.link
        found = [
            sum([table.entry[m] for m in chain[0].machines]),
            sum([table.exit[m] for m in chain[-1].machines]),
        ]
        before, k = chain[0], counts[0]
        for stage, j in zip(chain[1:], counts[1:], strict=True):
            limits = before.next.get(stage, NOT_YET)
            if limits is not None:
                limit = limits.get((k, j))
                found.append(link(before, stage, k, j) if limit is None else limit)
            before, k = stage, j
        return [limit for limit in found if limit < cap]

    def curves(self, chain: Sequence[PlannedStage]) -> list[list[float]]:
        """The curve of each stage in its position."""
        found = [stage.plain for stage in chain]
        if self.ends_matter:
            if len(chain) == 1:
                return [chain[0].both]
            found[0], found[-1] = chain[0].first, chain[-1].last
        return found

    def flow(self, chain: Sequence[PlannedStage], enough: float) -> float:
        """The chain's flow if at least ``enough``, else negative (also when it cannot hold L)."""
        total = self.table.model.layers
        if not chain or len(chain) > total:
            return -1.0
        curves = self.curves(chain)
        counts = list(map(bisect_right, curves, repeat(-enough)))
        spare = sum(counts) - total
        if spare < 0 or 0 in counts:
            return -1.0
        flow = min(self.cap, _trim(curves, counts, spare))
        if self.links_bind:
            flow = min([flow, *self.links_allow(chain, counts)])
            if flow >= enough:
                flow = min(flow, self.exact(chain, counts))
        return flow if flow >= enough else -1.0

    def exact(self, chain: Sequence[PlannedStage], counts: Sequence[int]) -> float:
        """Max flow along a chain, machine by machine and link by link."""
        table, rate = self.table, self._rate
        arcs = list[tuple[int, int, int]]()
        vertex, before = 2, list[tuple[int, int]]()
        for stage, k in zip(chain, counts, strict=True):
            here = list[tuple[int, int]]()
            for m in stage.machines:
                arcs.append((vertex, vertex + 1, round(UNITS_PER_TOKEN * rate(m, k))))
                limits = (
                    [(out, self.links[n][m]) for n, out in before]
                    if before
                    else [(0, table.entry[m])]
                )
                arcs += [
                    (tail, vertex, round(UNITS_PER_TOKEN * min(self.cap, limit)))
                    for tail, limit in limits
                    if limit > 0
                ]
                here.append((m, vertex + 1))
                vertex += 2
            before = here
        arcs += [
            (out, 1, round(UNITS_PER_TOKEN * min(self.cap, table.exit[m]))) for m, out in before
        ]
        return largest(vertex, arcs, 0, 1).value / UNITS_PER_TOKEN

    def lacks(self, chain: Sequence[PlannedStage], target: float, enough: float) -> float:
        """What a chain misses for ``target``: layers, and link capacity at LINK_PRICE.

        Above ``enough`` the figure may be cut short. The chain has one to L stages.
        """
        counts = list(map(bisect_right, self.curves(chain), repeat(-target)))
        short = float(self.table.model.layers - sum(counts))
        lack = (short if short > 0.0 else 0.0) + counts.count(0)
        if self.links_bind and lack <= enough:
            for limit in self.links_allow(chain, counts):
                if limit < target:
                    lack += LINK_PRICE * (1.0 - limit / target)
            if lack <= 0.0:
                flow = self.flow(chain, 0.0)
                if flow < target:
                    lack += LINK_PRICE * (1.0 - flow / target)
        return lack

    def layer_counts(self, chain: Sequence[PlannedStage]) -> list[int]:
        """Layers of each stage, L in all, for the largest flow. The chain must hold the model."""
        curves = self.curves(chain)
        counts = [len(curve) for curve in curves]
        _trim(curves, counts, sum(counts) - self.table.model.layers)
        return counts


def _trim(curves: list[list[float]], counts: list[int], spare: int) -> float:
    """Take ``spare`` layers from the slowest stages, in place, to 1 each; the flow that is left."""
    heap = [(-curve[k - 1], i) for i, (curve, k) in enumerate(zip(curves, counts, strict=True))]
    heapify(heap)
    stuck = None
    while spare:
        rate, i = heap[0]
        k = counts[i]
        if k == 1:  # the slowest stage of all: what the others hold no longer matters
            stuck = rate if stuck is None else min(stuck, rate)
            heapreplace(heap, (float("inf"), i))
            continue
        counts[i] = k - 1
        spare -= 1
        heapreplace(heap, (-curves[i][k - 2], i))
    return heap[0][0] if stuck is None else min(stuck, heap[0][0])
