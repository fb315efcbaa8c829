"""Which (machine, segment) states can lie on a chain no dearer than this?

Through every state goes a cheapest chain. Its cost with every machine at its fastest and every hop
at its least is a bound that no load and no mask can lower, so it is computed once per table: a
query looks only at the states whose bound is below the cost it finds, and that proves the answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scheduler.fleet.arrays import Floats, Ints
from scheduler.routing import sweep
from scheduler.routing.hops import Factored, Hops
from scheduler.routing.layout import RoutingLayout, layout_of

#: States in the smallest layout; each larger one has a third more.
SMALLEST = 48
#: Hand-overs between states of neighbouring segments beyond which arrays beat lists.
MOST_PAIRS = 6_000
#: Pairs of states that are looked through for hand-overs, as a multiple of that.
LOOKED_THROUGH = 4


@dataclass(frozen=True, eq=False)
class Subset:
    """Machines with a state that matters, hops and lengths over them, those of each segment."""

    machines: Ints
    hops: Factored
    lengths: Floats
    holders: Sequence[Ints]


class Bounds:
    """States in order of their bound, and layouts of the cheapest ones."""

    def __init__(
        self,
        hops: Hops,
        lengths: Floats,
        layers: Sequence[int],
        tau: Floats,
        head: Floats,
        open_at: Callable[[], Sequence[frozenset[int] | None]],
    ) -> None:
        self._hops, self._layers, self._open_at = hops, layers, open_at
        ahead = sweep.forward(hops, lengths, tau, np.zeros_like(tau))
        behind = sweep.backward(hops, lengths, tau, head)
        held = np.isfinite(lengths)
        own = np.where(held, lengths, 0.0) * tau + 2 * hops.access
        bound = np.where(held, ahead + behind, np.inf) - own
        flat = bound.ravel()
        order = np.argsort(flat, kind="stable")
        finite = int(np.isfinite(flat[order]).sum())
        self._segment: Ints = order[:finite] // len(tau)
        self._machine: Ints = order[:finite] % len(tau)
        # Sums in another order differ in the last digits: a bound is taken a little lower than
        # computed.
        self.values: list[float] = (flat[order[:finite]] * (1 - 1e-9) - 1e-9).tolist()
        self.of_machine: Floats = bound.min(axis=0, initial=np.inf) * (1 - 1e-9) - 1e-9
        self._layouts: dict[int, RoutingLayout | None] = {}
        self._too_large: set[int] = set()
        self._subsets: dict[int, Subset] = {}
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def _open(self) -> Sequence[frozenset[int] | None]:
        return self._open_at()

    def states_within(self, cost: float) -> int:
        """How many states have a bound of at most this."""
        return bisect_right(self.values, cost)

    def next_bound(self, size: int) -> float:
        """The least bound of the states beyond the first `size`."""
        return self.values[size] if size < len(self.values) else float("inf")

    def size_for(self, states: int) -> int:
        """The smallest size of a layout with at least that number of states."""
        size = SMALLEST
        while size < states:
            size += size // 3
        return size

    def layout(self, size: int) -> RoutingLayout | None:
        """The layout of the first `size` states; None if a segment is empty or it is too big."""
        if size not in self._layouts:
            self._layouts[size] = self._built(size)
        return self._layouts[size]

    def subset(self, size: int) -> Subset:
        """The first `size` states for arrays."""
        if size not in self._subsets:
            segments, machines = self._segment[:size], self._machine[:size]
            chosen = np.unique(machines)
            holders = [np.sort(machines[segments == s]) for s in range(len(self._layers))]
            lengths: Floats = self._lengths[:, chosen]
            self._subsets[size] = Subset(chosen, self._hops.among(chosen), lengths, holders)
        return self._subsets[size]

    def is_too_large(self, size: int) -> bool:
        """Whether the first `size` states are too many for lists."""
        self.layout(size)
        return size in self._too_large

    def _built(self, size: int) -> RoutingLayout | None:
        machines, segments = self._machine[:size], self._segment[:size]
        counts = np.bincount(segments, minlength=len(self._layers))
        if int((counts[1:] * counts[:-1]).sum()) > LOOKED_THROUGH * MOST_PAIRS:
            self._too_large.add(size)
            return None
        if not counts.all():
            return None
        by_segment: list[list[int]] = [[] for _ in self._layers]
        for s, g in sorted(zip(segments.tolist(), machines.tolist(), strict=True)):
            by_segment[s].append(g)
        layout = layout_of(by_segment, self._layers, self._hops, self._open)
        if layout.pairs > MOST_PAIRS:
            self._too_large.add(size)
            return None
        return layout
