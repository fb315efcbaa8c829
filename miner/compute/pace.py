"""How long do steps take here and at the stages after, and how many microbatches and guesses follow
from it?

With the first request of every microbatch travels a trace: rows, microseconds of waiting and of
computing at each stage. What of the ring time no stage accounts for is the links' share.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from core.batching.ring import MicrobatchChoice, Recent, choose, joins, round_s, spare_rows
from core.batching.times import StepTimes
from core.protocol.wire import MAX_GUESSED

#: Numbers of one stage in a trace: rows (0: prompts ran too, the time is no measure), waited µs,
#: computed µs.
TRACE_NUMBERS = 3
_CHOOSE_EVERY_S = 0.5
_MAX_US = 2**32 - 1
_MAX_RINGS = 256
#: A ring in which steps wait for longer than this share of a round has no time to spare.
_BUSY_WAIT = 0.1


def entry(rows: int, waited_s: float, computed_s: float) -> list[int]:
    """What one stage adds to a trace."""
    return [rows, *(min(_MAX_US, max(0, int(s * 1e6))) for s in (waited_s, computed_s))]


class _Ring:
    __slots__ = ("active", "choice", "chosen_at_s", "latency", "later", "spare", "waited")

    def __init__(self) -> None:
        self.later: list[StepTimes] = []
        #: What of a round no stage accounts for: links, queues of the network, programs in between.
        self.latency = Recent()
        self.waited = Recent()  # in all stages together
        self.choice: MicrobatchChoice | None = None
        self.spare = 0
        self.active = 0
        self.chosen_at_s = float("-inf")


class Pace:
    """Measured times of one first stage and of the rings that begin there."""

    def __init__(self, *, max_rows: int) -> None:
        self.own = StepTimes()
        self._max_rows = max_rows
        self._rings: dict[Hashable, _Ring] = {}

    def heard(self, ring: Hashable, away_s: float, trace: Sequence[int]) -> None:
        """A microbatch came home `away_s` after its step; `trace` begins with this stage."""
        known = self._ring(ring)
        stages = [trace[at : at + 3] for at in range(TRACE_NUMBERS, len(trace) - 2, TRACE_NUMBERS)]
        while len(known.later) < len(stages):
            known.later.append(StepTimes())
        for times, (rows, _, computed_us) in zip(known.later, stages, strict=False):
            if rows:
                times.observe(rows, computed_us / 1e6)
        accounted_us = sum(waited + computed for _, waited, computed in stages)
        known.latency.observe(away_s - accounted_us / 1e6)
        known.waited.observe(sum(trace[1::TRACE_NUMBERS]) / 1e6)

    def choice(
        self, ring: Hashable, active: int, now_s: float, *, is_alone: bool
    ) -> MicrobatchChoice:
        """How many microbatches of how many rows; `is_alone` where this stage is the whole ring.

        Chosen anew twice a second, and when the number of active requests changes.
        """
        known = self._ring(ring)
        if (
            known.choice is None
            or known.active != active
            or now_s - known.chosen_at_s > _CHOOSE_EVERY_S
        ):
            known.choice = self._choose(known, active, is_alone)
            known.active, known.chosen_at_s = active, now_s
            known.spare = self._spare(known, known.choice, is_alone)
        return known.choice

    def joins(self, rows: int, more: int) -> bool:
        """Whether `more` rows run in one step with `rows` before them; unknown stages join."""
        return not self.own or joins(self.own.seconds, rows, more)

    def spare_rows(self, ring: Hashable) -> int:
        """Guesses that each request of a ring may send along and delay no other answer."""
        known = self._rings.get(ring)
        return known.spare if known is not None else 0

    def rings(self) -> dict[Hashable, tuple[MicrobatchChoice, float]]:
        """Of every ring: what was chosen, and the seconds that its links take."""
        return {
            name: (ring.choice, ring.latency.usual_s)
            for name, ring in self._rings.items()
            if ring.choice is not None
        }

    def _ring(self, name: Hashable) -> _Ring:
        ring = self._rings.get(name)
        if ring is None:
            while len(self._rings) >= _MAX_RINGS:
                del self._rings[next(iter(self._rings))]
            ring = self._rings[name] = _Ring()
        return ring

    def _choose(self, ring: _Ring, active: int, is_alone: bool) -> MicrobatchChoice:
        if is_alone:
            return MicrobatchChoice(1, min(active, self._max_rows))
        if not self._is_measured(ring):
            tickets = min(active, 2 + len(ring.later[1:]))
            return MicrobatchChoice(tickets, min(-(-active // tickets), self._max_rows))
        return choose(
            [times.hoped for times in (self.own, *ring.later)],
            ring.latency.usual_s,
            active,
            max_rows=self._max_rows,
            jitter_s=ring.latency.jitter_s,
            before=ring.choice.tickets if ring.choice is not None else None,
        )

    def _spare(self, ring: _Ring, choice: MicrobatchChoice, is_alone: bool) -> int:
        if is_alone or not self._is_measured(ring):
            return 0
        stages = [times.seconds for times in (self.own, *ring.later)]
        latency_s = ring.latency.usual_s
        if ring.waited.usual_s > _BUSY_WAIT * round_s(stages, latency_s, choice):
            return 0  # others have work for these stages
        return spare_rows(stages, latency_s, choice, MAX_GUESSED)

    def _is_measured(self, ring: _Ring) -> bool:
        return bool(self.own and ring.later and all(ring.later))
