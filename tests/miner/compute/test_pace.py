"""The program's own choice of microbatches fills the bubbles, in a ring whose time is simulated."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from core.batching.lineup import Lineup
from core.batching.ring import SLACK, MicrobatchChoice
from core.batching.step import RequestStep
from miner.compute.pace import Pace, entry

MAX_ROWS = 16
Curve = Callable[[float], float]


def line(fixed_ms: float, row_ms: float) -> Curve:
    return lambda rows: (fixed_ms + row_ms * rows) / 1000


def uneven(stages: Sequence[Curve], seed: int) -> list[Curve]:
    """The same stages on machines that are now faster, now slower for a few steps."""
    random, drift = Random(seed), [0.0] * len(stages)

    def seconds(stage: int, rows: float) -> float:
        drift[stage] = 0.8 * drift[stage] + 0.6 * random.gauss(0, 0.15)
        return stages[stage](rows) * max(0.7, 1 + drift[stage])

    return [partial(seconds, stage) for stage in range(len(stages))]


class Everybody:
    def try_admit(self, request: Hashable) -> bool:
        return True

    def release(self, request: Hashable) -> None:
        pass


class Ring:
    """Stages in a row with links of one latency; every request decodes for ever.

    The real line-ups and the real pace.
    """

    def __init__(
        self,
        curves: list[Curve],
        one_way_s: float,
        sequences: int,
        fixed: MicrobatchChoice | None = None,
        *,
        guesses: bool = False,
    ) -> None:
        """With `guesses` every step carries as many as the pace allows, and none is ever right."""
        self.curves, self.one_way_s, self.fixed, self.guesses = curves, one_way_s, fixed, guesses
        self.most_guessed = 0
        self.paces = [Pace(max_rows=MAX_ROWS) for _ in curves]
        self.pace = self.paces[0]
        self.lines = [
            Lineup[RequestStep](Everybody(), gated=stage == 0, max_rows=MAX_ROWS, joins=pace.joins)
            for stage, pace in enumerate(self.paces)
        ]
        self.now_s, self.tokens = 0.0, 0
        self.busy = [False] * len(curves)
        self.busy_s = [0.0] * len(curves)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._traces: dict[int, list[int]] = {}
        self._left_at: dict[int, float] = {}
        self._came_at: dict[tuple[int, int], float] = {}
        self._guessed: dict[int, int] = {}
        for request in range(sequences):
            for lineup in self.lines:
                lineup.open(request, request % 4, "ring")
            self._arrive(0, [request], 5)

    def run(self, seconds: float) -> float:
        """Tokens per second over the last half."""
        half, tokens = self.now_s + seconds / 2, 0
        end = self.now_s + seconds
        while self._events and self._events[0][0] <= end:
            self.now_s, _, act = heapq.heappop(self._events)
            if self.now_s <= half:
                tokens = self.tokens
            act()
        return (self.tokens - tokens) / (seconds / 2)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), act))

    def _arrive(self, stage: int, requests: list[int], at: int) -> None:
        for request in requests:
            self._came_at[stage, request] = self.now_s
            if not stage:
                self._guessed[request] = self.pace.spare_rows("ring") if self.guesses else 0
                self.most_guessed = max(self.most_guessed, self._guessed[request])
            guessed = self._guessed[request]
            leads = request in self._traces
            step = RequestStep(
                request, at, at + 1 + guessed, request % 4, guessed=guessed, leads=leads
            )
            self.lines[stage].add(step)
        self._later(0.0, lambda: self._start(stage))

    def _start(self, stage: int) -> None:
        if self.busy[stage]:
            return
        if stage == 0:
            for name, tickets in self.lines[0].rings():
                chosen = self.fixed or self.pace.choice(
                    name, len(tickets.members), self.now_s, is_alone=False
                )
                tickets.tickets, tickets.rows = chosen.tickets, chosen.rows
        batch = self.lines[stage].form()
        if batch is None:
            return
        self.busy[stage] = True
        requests: list[Any] = [step.request for step in batch.decodes]
        rows = sum(step.tokens for step in batch.decodes)
        started_s, at = self.now_s, batch.decodes[0].first
        self._later(
            self.curves[stage](rows), lambda: self._end(stage, requests, rows, at, started_s)
        )

    def _end(self, stage: int, requests: list[int], rows: int, at: int, started_s: float) -> None:
        took_s = self.now_s - started_s
        self.busy[stage] = False
        self.busy_s[stage] += took_s
        tracer = requests[0]
        if stage == 0:
            self._traces[tracer] = []
            self._left_at[tracer] = self.now_s
        self.paces[stage].own.observe(rows, took_s)
        for request in requests:
            if request in self._traces:
                waited_s = started_s - self._came_at[stage, request]
                self._traces[request] += entry(rows, waited_s, took_s)
        following = (stage + 1) % len(self.curves)
        self._later(self.one_way_s, lambda: self._hand_over(following, requests, at))
        self._start(stage)

    def _hand_over(self, stage: int, requests: list[int], at: int) -> None:
        if stage == 0:
            self.tokens += len(requests)
            at += 1
            for request in requests:
                trace = self._traces.pop(request, None)
                if trace is not None:
                    self.pace.heard("ring", self.now_s - self._left_at[request], trace)
        self._arrive(stage, requests, at)


GEMMA = [line(40, 2.2), line(38, 2.3)]


@pytest.mark.parametrize(("one_way_ms", "kept"), [(16, 0.97), (64, 0.97), (256, 0.96)])
def test_links_cost_next_to_nothing_when_there_are_sequences_enough(
    one_way_ms: float, kept: float
) -> None:
    near = Ring(GEMMA, 0.0, 320).run(30)
    far = Ring(GEMMA, one_way_ms / 1000, 320)
    assert far.run(30) >= kept * near
    (choice, latency_s) = far.pace.rings()["ring"]
    assert latency_s == pytest.approx(2 * one_way_ms / 1000, abs=0.002)
    assert choice.tickets <= (1 + SLACK) * 2 * one_way_ms / 75 + 4


def test_two_fixed_microbatches_lose_what_the_choice_keeps() -> None:
    fixed = Ring(GEMMA, 0.256, 320, MicrobatchChoice(2, MAX_ROWS)).run(30)
    chosen = Ring(GEMMA, 0.256, 320).run(30)
    assert fixed < 0.35 * chosen


@pytest.mark.parametrize(
    ("one_way_ms", "sequences"),
    [(16, 8), (16, 64), (64, 64), (64, 240), (256, 160), (256, 240), (256, 400)],
)
def test_smaller_steps_are_tried_although_nobody_has_seen_any(
    one_way_ms: float, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring that begins with two large microbatches finds the number that is best."""
    monkeypatch.setattr("tests.miner.compute.test_pace.MAX_ROWS", 256)
    stages = [line(5, 1.75), line(6, 1.8)]
    chosen = Ring(stages, one_way_ms / 1000, sequences).run(30)
    fixed = (
        Ring(
            stages,
            one_way_ms / 1000,
            sequences,
            MicrobatchChoice(tickets, -(-sequences // tickets)),
        )
        for tickets in range(1, min(sequences, 16) + 1)
    )
    assert chosen >= 0.95 * max(ring.run(15) for ring in fixed)


@pytest.mark.parametrize("one_way_ms", [0, 16, 256])
@pytest.mark.parametrize("seed", range(3))
def test_what_small_steps_took_when_nobody_else_computed_is_not_believed_for_ever(
    one_way_ms: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps take now more, now less, and a stage that joins what waits never runs the small ones
    that were quick once.
    """
    monkeypatch.setattr("tests.miner.compute.test_pace.MAX_ROWS", 256)
    stages = [line(12, 1.2), line(15, 1.9)]
    ring = Ring(uneven(stages, seed), one_way_ms / 1000, 480)
    for rows in (16, 32):
        ring.pace.own.observe(rows, 0.6 * stages[0](rows))
        quick = [*entry(rows, 0.0, 0.6 * stages[0](rows)), *entry(rows, 0.0, 0.6 * stages[1](rows))]
        ring.pace.heard("ring", 2 * one_way_ms / 1000 + 0.6 * stages[1](rows), quick)
    ring.run(40)
    chosen = []
    for _ in range(20):
        ring.run(1)
        chosen.append(ring.pace.rings()["ring"][0].tickets)
    # Of sixty rows each as many tokens come as of a hundred; of twenty or thirty they did not.
    assert sorted(chosen)[10] <= 3 + one_way_ms / 50


def test_microbatches_that_queue_are_kept_apart_where_joining_them_saves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Joined, the first of them is as late as the last, and the ring runs dry behind them."""

    def tokens() -> float:
        stages = [line(5, 1.5)] * 3
        return sum(Ring(uneven(stages, seed), 0.064, 480).run(40) for seed in range(4))

    monkeypatch.setattr("tests.miner.compute.test_pace.MAX_ROWS", 256)
    apart = tokens()
    monkeypatch.setattr("core.batching.ring.JOIN", -1.0)
    assert apart > 1.02 * tokens()


def test_one_microbatch_leaves_a_stage_idle_and_the_choice_does_not() -> None:
    alone = Ring(GEMMA, 0.0, 16, MicrobatchChoice(1, 16))
    chosen = Ring(GEMMA, 0.0, 16)
    assert chosen.run(20) > 1.25 * alone.run(20)
    assert min(chosen.busy_s) > 0.9 * 20
    assert max(alone.busy_s) < 0.6 * 20


@pytest.mark.parametrize("stages", [[line(60, 4), line(10, 1)], [line(10, 1), line(60, 4)]])
def test_the_slowest_of_unequal_stages_is_never_idle(stages: list[Curve]) -> None:
    ring = Ring(stages, 0.05, 48)
    ring.run(20)
    slowest = max(range(2), key=lambda stage: stages[stage](16))
    assert ring.busy_s[slowest] > 0.93 * 20


def test_three_stages_are_kept_busy() -> None:
    ring = Ring([line(30, 1)] * 3, 0.02, 96)
    ring.run(20)
    assert min(ring.busy_s) > 0.9 * 20


def test_a_single_request_goes_round_as_fast_as_steps_and_links_allow() -> None:
    ring = Ring(GEMMA, 0.064, 1)
    physical_s = GEMMA[0](1) + GEMMA[1](1) + 0.128
    assert ring.run(20) == pytest.approx(1 / physical_s, rel=0.02)


@pytest.mark.parametrize("one_way_ms", [0, 4, 16, 64, 256])
@pytest.mark.parametrize("sequences", [1, 4, 16, 64, 320])
def test_guesses_that_are_never_right_delay_nobody(one_way_ms: float, sequences: int) -> None:
    plain = Ring(GEMMA, one_way_ms / 1000, sequences)
    guessing = Ring(GEMMA, one_way_ms / 1000, sequences, guesses=True)
    assert guessing.run(30) >= 0.87 * plain.run(30)  # a tenth, and what a choice may be off


def test_long_links_leave_room_for_guesses_and_full_stages_none() -> None:
    far = [Ring(GEMMA, 0.256, sequences, guesses=True) for sequences in (1, 4, 16, 320)]
    for ring in far:
        ring.run(20)
    settled = [ring.pace.spare_rows("ring") for ring in far]
    assert settled == sorted(settled, reverse=True)
    assert settled[1] >= 3 and settled[2] >= 1
    assert far[3].most_guessed == 0
    near = Ring(GEMMA, 0.0, 64, guesses=True)
    near.run(20)
    assert near.most_guessed == 0


def test_a_ring_whose_stages_have_other_work_has_nothing_to_spare() -> None:
    """Steps wait at the second stage for those of rings that begin elsewhere."""
    pace = Pace(max_rows=16)
    for rows in (1, 4, 16):
        pace.own.observe(rows, 0.01)
    for waited_s, spare in ((0.0, 7), (0.5, 0)):
        for _ in range(40):
            trace = [*entry(4, 0.0, 0.01), *entry(4, waited_s, 0.01)]
            pace.heard("ring", 0.21 + waited_s, trace)
            pace.heard("ring", 0.21 + waited_s, [*entry(16, 0.0, 0.01), *entry(16, waited_s, 0.01)])
        pace.choice("ring", 4, 0.0 if spare else 10.0, is_alone=False)
        assert pace.spare_rows("ring") == spare
    assert pace.spare_rows("unknown") == 0


def test_what_a_stranger_writes_into_a_trace_breaks_nothing() -> None:
    pace = Pace(max_rows=16)
    pace.own.observe(4, 0.04)
    for trace in ([], [1], [4, 0, 9], [4, 0, 9, 1], [4, 0, 9] + [2**32 - 1] * 3, [0] * 96):
        pace.heard("ring", 0.1, trace)
        choice = pace.choice("ring", 20, 0.0, is_alone=False)
        assert 1 <= choice.tickets <= 20
        assert choice.rows <= 16
    for number in range(1000):
        pace.heard(number, 0.1, [4, 0, 9, 4, 0, 9])
    assert len(pace._rings) <= 256
