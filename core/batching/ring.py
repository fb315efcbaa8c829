"""How many microbatches of what size keep every stage of a ring busy? (DeServe §4.3)

A microbatch leaves the first stage, passes the others, and its tokens come home after the ring
time. With too few of them stages idle while all are on their way; with more than needed each is
smaller than it could be, and steps cost more per row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: A smaller number of microbatches is preferred to a rate better by less than this.
TOLERANCE = 0.03
#: A number that is in use stays while it is this much within, or without, that share: every change
#: makes stages wait once.
STAY = 0.01
#: Links and what is in between take this much longer than usual now and then, and a stage that
#: waits for them then has nothing to do. Steps do so as well, by a smaller share; no more is
#: allowed for them than links take, since without links nobody waits for them.
SLACK, STEP_SLACK = 0.35, 0.1
#: Guesses may make a round this much longer, should all of them be wrong.
SPARE = 0.1
#: Microbatches that wait run together if the step that this saves is at least such a share of how
#: long the first is held up by it.
JOIN = 0.2
MAX_TICKETS = 64
_SAMPLES = 32


@dataclass(frozen=True)
class MicrobatchChoice:
    """N microbatches of at most B rows."""

    tickets: int
    rows: int


def choose(
    stages: Sequence[Callable[[float], float]],
    latency_s: float,
    active: int,
    *,
    max_rows: int,
    jitter_s: float = 0.0,
    before: int | None = None,
) -> MicrobatchChoice:
    """The (N, B) that maximises N·B / max(N·max_s T_s(B), R(B)), with the smallest N within 3 %.

    `stages` give T_s in seconds for a batch of some rows, `latency_s` is all of the ring time R
    that no stage computes. SLACK of it is added to R, and STEP_SLACK of the steps: a ring that is
    just full idles whenever something is late. One more microbatch is there for a late one where
    the ring time varies by more than half of the slowest stage's step, and where full microbatches
    do not hold all that are active, unless it makes steps too small. The number `before` stays
    unless another is clearly better, because a stage waits half a round at each change.
    What each came to: `docs/engine.md`, "Where constants come from".
    """
    if active < 1 or max_rows < 1:
        raise ValueError(f"{active} active requests, batches of at most {max_rows} rows")
    rates, slowest_s = [], []
    for tickets in range(1, min(active, MAX_TICKETS) + 1):
        rows = min(-(-active // tickets), max_rows)
        times = [seconds(rows) for seconds in stages]
        slack_s = SLACK * latency_s + min(latency_s, STEP_SLACK * sum(times))
        rates.append(min(active, tickets * rows) / _round_s(times, latency_s + slack_s, tickets))
        slowest_s.append(max(times, default=0.0))
    enough = (1 - TOLERANCE) * max(rates)
    tickets = 1 + next(number for number, rate in enumerate(rates) if rate >= enough)
    is_late_now_and_then = tickets > 1 and jitter_s > slowest_s[tickets - 1] / 2
    some_wait = tickets * min(-(-active // tickets), max_rows) < active
    if tickets < len(rates) and (is_late_now_and_then or (some_wait and rates[tickets] >= enough)):
        tickets += 1
    if before is not None and before <= len(rates) and _stays(rates, before, tickets):
        tickets = before
    return MicrobatchChoice(tickets, min(-(-active // tickets), max_rows))


def _stays(rates: Sequence[float], before: int, tickets: int) -> bool:
    """Whether `before` microbatches are nearly as good as `tickets`.

    `rates` are those of 1, 2, 3, …

    Many fewer are good for something else: their steps are of sizes that should be seen.
    """
    best = max(rates)
    if rates[before - 1] < (1 - TOLERANCE - STAY) * best:
        return False
    is_smaller_as_good = rates[tickets - 1] >= (1 - TOLERANCE + STAY) * best
    return tickets > before or (tickets * 2 > before and not is_smaller_as_good)


def round_s(
    stages: Sequence[Callable[[float], float]],
    latency_s: float,
    choice: MicrobatchChoice,
    carried: int = 1,
) -> float:
    """Seconds from one token of a request to its next, above 0: max(N·max_s T_s, R), where each
    request has `carried` rows.
    """
    times = [seconds(choice.rows * carried) for seconds in stages]
    return _round_s(times, latency_s, choice.tickets)


def _round_s(times: Sequence[float], latency_s: float, tickets: int) -> float:
    return max(tickets * max(times, default=0.0), sum(times) + latency_s, 1e-9)


def spare_rows(
    stages: Sequence[Callable[[float], float]],
    latency_s: float,
    choice: MicrobatchChoice,
    most: int,
) -> int:
    """How many rows beside its own, at most `most`, each request may send round so that a round
    takes at most a tenth longer.

    That is what links leave idle: none where stages are busy all the time.
    """
    allowed_s = (1 + SPARE) * round_s(stages, latency_s, choice)
    return next(
        rows
        for rows in range(most, -1, -1)
        if not rows or round_s(stages, latency_s, choice, 1 + rows) <= allowed_s
    )


def joins(seconds: Callable[[float], float], rows: int, more: int) -> bool:
    """Whether `more` rows, which wait too, run in one step with `rows` that came before them.

    `seconds` is T of this stage.

    Small steps do, for they take as long as one. Of large ones each takes its own time, together or
    not, and the first would come home later.
    """
    together_s, first_s = seconds(rows + more), seconds(rows)
    saved_s = first_s + seconds(more) - together_s
    return saved_s >= JOIN * (together_s - first_s)


class Recent:
    """Seconds that something took in each of the last rounds."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_SAMPLES)

    def observe(self, seconds: float) -> None:
        """One round; what clocks make negative counts as nothing."""
        self._samples.append(max(0.0, seconds))

    @property
    def usual_s(self) -> float:
        """The median of the last rounds: a machine that slept does not make links longer."""
        return sorted(self._samples)[len(self._samples) // 2] if self._samples else 0.0

    @property
    def jitter_s(self) -> float:
        """The ninetieth percentile less the median of the last rounds; 0 for the first few."""
        if len(self._samples) < 8:
            return 0.0
        ordered = sorted(self._samples)
        return ordered[len(ordered) * 9 // 10] - ordered[len(ordered) // 2]
