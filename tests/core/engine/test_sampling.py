"""Can anybody draw the same token again, and is the distance to another one measured right?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.sampling import gumbel_noise, margin, philox, request_key, sample
from core.protocol.types import SamplingParams

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: tuple, key: tuple, expected: str) -> None:
    assert " ".join(f"{int(word):08x}" for word in philox(counter, key)) == expected


def test_philox_of_many_counters_is_philox_of_each() -> None:
    ids = np.array([0, 1, 2, 77, 49151, ONES])
    together = philox((5, ids, 0, 0), (123, 456))
    for column, token in enumerate(ids):
        alone = philox((5, int(token), 0, 0), (123, 456))
        assert [int(w[column]) for w in together] == [int(w) for w in alone]


def slow_scores(
    row: np.ndarray, params: SamplingParams, request_index: int, step: int
) -> list[float]:
    """Scores as `docs/protocol.md` §5 writes them, one token at a time, −inf where masked."""
    scaled = [float(x) / (params.temperature_micro / 1e6) for x in row]
    order = sorted(range(len(row)), key=lambda i: (-scaled[i], i))
    kept = set(order[: params.top_k] if params.top_k else order)
    if params.min_p_micro:
        floor = scaled[order[0]] + math.log(params.min_p_micro / 1e6)
        kept &= {i for i in order if scaled[i] >= floor}
    key = request_key(params.seed, request_index)
    scores = []
    for token, value in enumerate(scaled):
        word = int(philox((step, token, 0, 0), key)[0])
        noise = -math.log(-math.log((word + 0.5) / 2**32))
        scores.append(value + noise if token in kept else -math.inf)
    return scores


rows = st.lists(st.integers(-300, 300).map(lambda i: i / 32), min_size=1, max_size=60).map(
    lambda xs: np.array(xs, dtype=np.float32)
)
parameters = st.builds(
    SamplingParams,
    temperature_micro=st.integers(10_000, 3_000_000),
    top_k=st.integers(0, 70),
    min_p_micro=st.sampled_from([0, 1, 50_000, 500_000, 1_000_000]),
    seed=st.integers(0, 2**63 - 1),
)


@given(rows, parameters, st.integers(0, 2**32 - 1), st.integers(0, 2**20))
def test_fast_sampling_is_the_written_rule(
    row: np.ndarray, params: SamplingParams, request_index: int, step: int
) -> None:
    scores = slow_scores(row, params, request_index, step)
    chosen = sample(row, params, request_index, step)
    assert scores[chosen] == pytest.approx(max(scores), abs=1e-9)
    assert chosen == sample(row, params, request_index, step)
    assert margin(row, chosen, params, request_index, step) == 0.0


@given(rows, parameters, st.integers(0, 1000), st.data())
def test_margin_without_filters_is_the_gap_between_scores(
    row: np.ndarray, params: SamplingParams, step: int, data: st.DataObject
) -> None:
    plain = SamplingParams(temperature_micro=params.temperature_micro, seed=params.seed)
    token = data.draw(st.integers(0, len(row) - 1))
    scores = slow_scores(row, plain, 3, step)
    assert margin(row, token, plain, 3, step) == pytest.approx(
        max(scores) - scores[token], abs=1e-9
    )


@given(rows, parameters, st.integers(0, 1000), st.integers(0, 2**32 - 1))
def test_an_honest_machine_with_slightly_other_logits_has_a_small_margin(
    row: np.ndarray, params: SamplingParams, step: int, noise_seed: int
) -> None:
    error = 1e-4
    noise = np.random.default_rng(noise_seed).uniform(-error, error, len(row))
    chosen = sample(row + noise, params, 0, step)
    nats = error * 1e6 / params.temperature_micro
    assert margin(row, chosen, params, 0, step) <= 4 * nats + 1e-9


@given(rows, st.integers(0, 100))
def test_greedy_takes_the_lowest_id_among_the_best(row: np.ndarray, step: int) -> None:
    chosen = sample(row, SamplingParams(seed=step), 0, step)
    assert row[chosen] == row.max()
    assert not (row[:chosen] == row.max()).any()
    worst = int(np.argmin(row))
    assert margin(row, worst, SamplingParams(), 0, step) == pytest.approx(
        float(row.max()) - float(row.min())
    )


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1]))
    params = SamplingParams(temperature_micro=1_000_000, seed=7)
    draws = [sample(logits, params, 0, step) for step in range(4000)]
    assert np.bincount(draws, minlength=4) / 4000 == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.03)


def test_request_index_step_and_seed_each_change_the_draw() -> None:
    logits = np.zeros(500)

    def draws(seed: int, request_index: int) -> list[int]:
        params = SamplingParams(temperature_micro=1_000_000, seed=seed)
        return [sample(logits, params, request_index, step) for step in range(8)]

    assert len(set(draws(1, 0))) > 1
    assert draws(1, 0) != draws(2, 0)
    assert draws(1, 0) != draws(1, 1)


def test_a_token_that_the_filter_masks_has_the_distance_to_the_filter_as_margin() -> None:
    row = np.array([3.0, 2.0, 1.0, -50.0])
    params = SamplingParams(temperature_micro=1_000_000, top_k=2)
    assert margin(row, 3, params, 0, 0) >= 52.0
    assert margin(row, 2, params, 0, 0) >= 1.0


def test_noise_never_exceeds_what_pruning_assumes() -> None:
    from core.engine.sampling import _MAX_NOISE

    largest = (2.0**32 - 1 + 0.5) / 2.0**32
    assert -math.log(-math.log(largest)) <= _MAX_NOISE
    noise = gumbel_noise(np.arange(100_000), (1, 2), 0)
    assert noise.max() < _MAX_NOISE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_refused(bad: float) -> None:
    row = np.array([1.0, bad, 0.0])
    with pytest.raises(ValueError, match="NaN or infinity"):
        sample(row, SamplingParams(), 0, 0)
    with pytest.raises(ValueError, match="vocabulary"):
        margin(np.zeros(3), 3, SamplingParams(), 0, 0)
