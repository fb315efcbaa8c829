"""Are rates what the token times say, with and without ragged ends?"""

from __future__ import annotations

import pytest

from benchmarks.engine.rig.rates import rate_without_bubbles, steady_rate, token_s
from benchmarks.engine.rig.steps import Step


def _every(step_s: float, count: int, start_s: float = 0.0) -> list[float]:
    return [start_s + i * step_s for i in range(count)]


def test_one_sequence_has_the_rate_of_its_intervals() -> None:
    assert steady_rate([_every(0.1, 21)]) == pytest.approx(10)
    assert token_s(_every(0.1, 21)) == pytest.approx(0.1)


def test_only_the_time_counts_in_which_every_sequence_is_answered() -> None:
    early, late = _every(0.1, 41), _every(0.1, 41, start_s=1.0)
    assert steady_rate([early, late]) == pytest.approx(20, rel=0.05)


def test_sequences_one_after_another_have_the_rate_of_the_whole() -> None:
    first, second = _every(0.1, 10), _every(0.1, 10, start_s=1.0)
    assert steady_rate([first, second]) == pytest.approx(10)


def test_one_slow_interval_does_not_move_the_median() -> None:
    times = _every(0.1, 10) + _every(0.1, 10, start_s=5.0)
    assert token_s(times) == pytest.approx(0.1)


def test_without_bubbles_the_busiest_stage_sets_the_rate() -> None:
    times = [_every(0.2, 11), _every(0.2, 11)]  # 10 tokens a second
    quick = [Step(0.2 * i + 0.05, 0.05, 0.05, 2, 0, "a") for i in range(10)]
    busy = [Step(0.2 * i + 0.15, 0.1, 0.1, 2, 0, "a") for i in range(10)]
    assert rate_without_bubbles(times, [quick, busy]) == pytest.approx(20)
    assert steady_rate(times) == pytest.approx(10)
