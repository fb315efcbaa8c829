"""Is a token's distance from being the answer right, with every filter, and small for every honest
machine?
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.dispute.judging.margin import gain
from core.engine.sampling.filters import kept
from core.engine.sampling.noise import gumbel_noise, request_key
from core.protocol.types import SamplingParams
from tests.core.engine.draws import margin, sample

rows = st.lists(st.integers(-300, 300).map(lambda i: i / 32), min_size=1, max_size=40).map(
    lambda xs: np.array(xs, dtype=np.float32)
)
filtered = st.builds(
    SamplingParams,
    temperature_micro=st.integers(50_000, 3_000_000),
    top_k=st.integers(0, 45),
    top_p_micro=st.sampled_from([10**6, 1, 300_000, 900_000, 999_999]),
    min_p_micro=st.sampled_from([0, 1, 50_000, 500_000, 1_000_000]),
    seed=st.integers(0, 2**63 - 1),
)
penalised = st.builds(
    SamplingParams,
    temperature_micro=st.sampled_from([0, 300_000, 1_000_000, 2_000_000]),
    top_p_micro=st.sampled_from([10**6, 700_000]),
    seed=st.integers(0, 2**63 - 1),
    repetition_penalty_micro=st.sampled_from([500_000, 1_500_000, 4_000_000]),
    frequency_penalty_micro=st.sampled_from([0, 500_000]),
)


@given(rows, filtered, st.integers(0, 1000), st.data())
def test_margin_without_filters_is_the_gap_between_scores(
    row: np.ndarray, params: SamplingParams, step: int, data: st.DataObject
) -> None:
    plain = SamplingParams(temperature_micro=params.temperature_micro, seed=params.seed)
    token = data.draw(st.integers(0, len(row) - 1))
    scores = scores_of(row, plain, step)
    assert margin(row, token, plain, 3, step) == pytest.approx(
        max(scores) - scores[token], abs=1e-9
    )


@given(rows, filtered, st.integers(0, 1000), st.integers(0, 2**32 - 1))
def test_an_honest_machine_with_slightly_other_logits_has_a_small_margin(
    row: np.ndarray, params: SamplingParams, step: int, noise_seed: int
) -> None:
    error = 1e-3
    noise = np.random.default_rng(noise_seed).choice([-error, 0, error], len(row))
    chosen = sample(row + noise, params, 0, step)
    nats = error * 1e6 / params.temperature_micro
    assert margin(row, chosen, params, 0, step) <= 2 * nats + 1e-6


@given(rows, penalised, st.integers(0, 2**32 - 1), st.lists(st.integers(0, 39), max_size=20))
def test_penalties_let_an_honest_margin_grow_by_the_gain_at_most(
    row: np.ndarray, params: SamplingParams, noise_seed: int, produced: list[int]
) -> None:
    error = 1e-3
    produced = [i % len(row) for i in produced]
    noise = np.random.default_rng(noise_seed).choice([-error, 0, error], len(row))
    step = len(produced)
    chosen = sample(row + noise, params, 0, step, produced=produced)
    found = margin(row, chosen, params, 0, step, produced=produced)
    assert found <= 2 * error * gain(params) + 1e-6


def scores_of(row: np.ndarray, params: SamplingParams, step: int) -> list[float]:
    noise = gumbel_noise(np.arange(len(row)), request_key(params.seed, 3), step)
    return list(row.astype(np.float64) * (1e6 / params.temperature_micro) + noise)


def least_delta(row: np.ndarray, token: int, params: SamplingParams, step: int) -> float:
    """The margin by its definition: the least δ at which the token is not surely out and nobody
    surely in beats it by more.

    Sure is decided by the worst case for one token: everybody else moved by δ/2 one way, it the
    other way. Min-p goes by the likeliest token where it is, also for itself, as the chain's rule
    does.
    """
    scores = scores_of(row, params, step)
    inverse, row = 1e6 / params.temperature_micro, row.astype(np.float64)

    def is_in(who: int, delta: float) -> bool:
        moved = row.copy()
        moved[who] += delta / inverse
        if params.min_p_micro:
            below = (row.max() - row[who]) * inverse - delta
            if below > -math.log(params.min_p_micro / 1e6):
                return False
        return who in kept(moved, msgspec.structs.replace(params, min_p_micro=0)).ids

    def is_fault(delta: float) -> bool:
        if not is_in(token, delta + 1e-9):
            return True
        return any(
            scores[j] - scores[token] > delta and is_in(j, -delta - 1e-9) for j in range(len(row))
        )

    low, high = -1e-9, 1000.0
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if is_fault(middle) else (low, middle)
    return max(0.0, high)


@settings(max_examples=40)
@given(rows, filtered, st.integers(0, 50), st.data())
def test_with_top_k_or_min_p_the_margin_is_the_least_delta_of_the_definition(
    row: np.ndarray, params: SamplingParams, step: int, data: st.DataObject
) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    alone = msgspec.structs.replace(params, top_p_micro=10**6)
    expected = least_delta(row, token, alone, step)
    if expected < 900:
        assert margin(row, token, alone, 3, step) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40)
@given(rows, filtered, st.integers(0, 50), st.data())
def test_with_top_p_the_margin_is_no_more_than_moving_one_token_would_need(
    row: np.ndarray, params: SamplingParams, step: int, data: st.DataObject
) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    assert margin(row, token, params, 3, step) <= least_delta(row, token, params, step) + 1e-6


def test_a_token_well_outside_the_nucleus_is_far_from_the_answer() -> None:
    row = np.log(np.array([0.6, 0.3, 0.08, 0.02]))
    params = SamplingParams(temperature_micro=10**6, top_p_micro=500_000)
    step = next(n for n in range(100) if int(np.argmax(scores_of(row, params, n))) == 1)
    # Ahead of number 1 are odds of 0.6 to 0.4; they may be no more than even.
    assert margin(row, 1, params, 3, step) == pytest.approx(math.log(0.6 / 0.4), abs=1e-6)
    assert margin(row, 3, params, 3, step) > 2
    assert margin(row, 0, params, 3, step) == 0


def test_tokens_too_unlikely_for_a_part_make_nobody_a_fault() -> None:
    # Number 1 has 3,000 of the 4,295 parts that it would need to be drawn; 20,000 with half a part
    # each have none.
    parts = np.array([2.0**32, 3000, *[0.5] * 20_000])
    row = np.log(parts / 2**32)
    params = SamplingParams(temperature_micro=10**6, top_p_micro=999_999)
    step = 1_941_423  # in which the noise would make it number 1
    scores = scores_of(row, params, step)
    assert scores[1] - scores[0] > 0.9
    assert sample(row, params, 3, step) == 0
    assert margin(row, 0, params, 3, step) == 0


def test_of_what_it_takes_to_leave_a_token_out_a_lost_part_is_taken_off() -> None:
    row = np.array([0, 0.71875, 0.71875], dtype=np.float32)
    params = SamplingParams(temperature_micro=54_127, top_p_micro=999_999)
    # A rival needs 4,295 parts to be allowed, where 4,294.98 would do if they were not whole.
    found, least = margin(row, 0, params, 3, 0), least_delta(row, 0, params, 0)
    assert found <= least
    assert found == pytest.approx(least, abs=1 / 4000)


def test_a_token_that_the_filter_masks_has_the_distance_to_the_filter_as_margin() -> None:
    row = np.array([3.0, 2.0, 1.0, -50.0])
    params = SamplingParams(temperature_micro=1_000_000, top_k=2)
    assert margin(row, 3, params, 0, 0) >= 52.0
    assert margin(row, 2, params, 0, 0) >= 1.0


@given(rows)
def test_the_margin_of_a_greedy_request_is_in_logits(row: np.ndarray) -> None:
    worst = int(np.argmin(row))
    assert margin(row, worst, SamplingParams(), 0, 0) == pytest.approx(
        float(row.max()) - float(row.min())
    )


def test_an_end_that_came_too_early_is_infinitely_far() -> None:
    params = SamplingParams(min_new_tokens=3)
    row = np.array([5.0, 1.0, 0.0])
    assert sample(row, params, 0, 2, eos_ids={0}) == 1
    assert margin(row, 0, params, 0, 2, eos_ids={0}) == math.inf
    assert margin(row, 0, params, 0, 3, eos_ids={0}) == 0


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        margin(np.zeros(3), 3, SamplingParams(), 0, 0)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), 1),
        (SamplingParams(temperature_micro=2_000_000), 1),
        (SamplingParams(temperature_micro=250_000), 4),
        (SamplingParams(repetition_penalty_micro=500_000), 2),
        (SamplingParams(temperature_micro=500_000, repetition_penalty_micro=1_500_000), 3),
    ],
)
def test_the_gain_is_what_an_error_of_a_logit_can_grow_by(
    params: SamplingParams, expected: float
) -> None:
    assert gain(params) == pytest.approx(expected)
