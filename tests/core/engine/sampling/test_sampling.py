"""Can anybody draw the same token again, and is the distance to another one measured right?"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engine.sampling.noise import (
    MAX_NOISE,
    gumbel,
    gumbel_noise,
    least_word,
    philox,
    request_key,
    words,
)
from core.engine.sampling.sampling import Sampler, TokenChoice, largest_there, sample_batch
from core.protocol.errors import CheckFailed
from core.protocol.types import SamplingParams
from tests.core.engine.draws import margin, sample

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


@given(
    st.lists(st.integers(0, ONES), min_size=1, max_size=50),
    st.tuples(st.integers(0, ONES), st.integers(0, ONES)),
    st.integers(0, ONES),
)
def test_words_with_constants_worked_out_once_are_philox(
    tokens: list[int], key: tuple[int, int], step: int
) -> None:
    ids = np.array(tokens)
    assert (words(ids, key, step) == philox((step, ids, 0, 0), key)[0]).all()


@given(st.floats(-3, 22))
def test_a_word_below_the_least_gives_no_such_noise(noise: float) -> None:
    word = int(least_word(noise))
    below = np.array([max(word - 1, 0)], dtype=np.uint64)
    assert word == 0 or gumbel(below)[0] <= noise
    assert gumbel(np.array([min(word + 16, ONES)], dtype=np.uint64))[0] >= min(noise, 19.3) - 1e-9


def slow_edits(
    row: np.ndarray,
    params: SamplingParams,
    step: int,
    prompt: Sequence[int] = (),
    produced: Sequence[int] = (),
    eos_ids: Collection[int] = (),
) -> list[float]:
    """Bias, penalties and early ends as `docs/protocol.md` §5 writes them, one token at a time."""
    logits = [float(x) for x in row]
    bias = dict(params.logit_bias)
    before = list(prompt)[len(prompt) - params.first_step :] if params.first_step else []
    made = before + list(produced)
    seen = {*prompt, *produced}
    repetition = params.repetition_penalty_micro / 1e6
    for token in range(len(logits)):
        if token in bias:
            logits[token] += bias[token] / 1e6
        if token in seen and repetition != 1:
            x = logits[token]
            logits[token] = x / repetition if x > 0 else x * repetition
        logits[token] -= params.frequency_penalty_micro / 1e6 * made.count(token)
        logits[token] -= params.presence_penalty_micro / 1e6 * (token in made)
        if token in eos_ids and params.first_step + step < params.min_new_tokens:
            logits[token] = -math.inf
    return logits


def slow_kept(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """The ids that the filters leave, likeliest first, by sums of whole numbers."""
    scaled = [float(x) * (1e6 / params.temperature_micro) for x in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.top_k:
        order = order[: params.top_k]
    best = scaled[order[0]]
    mass = {i: math.floor(math.exp(scaled[i] - best) * 2**32) for i in order}
    if params.top_p_micro < 10**6:
        total, ahead, nucleus = sum(mass.values()), 0, []
        for i in order:
            if ahead * 10**6 >= params.top_p_micro * total:
                break
            nucleus.append(i)
            ahead += mass[i]
        order = nucleus
    if params.min_p_micro:
        order = [i for i in order if scaled[i] >= best + math.log(params.min_p_micro / 1e6)]
    return order


def slow_scores(
    logits: Sequence[float], params: SamplingParams, request_index: int, step: int
) -> list[float]:
    """Scores as `docs/protocol.md` §5 writes them, one token at a time, −inf where masked."""
    index = request_index if params.key_index is None else params.key_index
    key = request_key(params.seed, index)
    scores = [-math.inf] * len(logits)
    for token in slow_kept(logits, params):
        word = int(philox((params.first_step + step, token, 0, 0), key)[0])
        noise = -math.log(-math.log((word + 0.5) / 2**32))
        scores[token] = float(logits[token]) * (1e6 / params.temperature_micro) + noise
    return scores


rows = st.lists(st.integers(-300, 300).map(lambda i: i / 32), min_size=1, max_size=60).map(
    lambda xs: np.array(xs, dtype=np.float32)
)
tokens = st.lists(st.integers(0, 59), max_size=12)
biases = st.dictionaries(st.integers(0, 70), st.integers(-(10**7), 10**7), max_size=5).map(
    lambda found: tuple(sorted(found.items()))
)
parameters = st.builds(
    SamplingParams,
    temperature_micro=st.integers(10_000, 3_000_000),
    top_k=st.integers(0, 70),
    top_p_micro=st.sampled_from([10**6, 10**6, 1, 300_000, 900_000, 999_999]),
    min_p_micro=st.sampled_from([0, 1, 50_000, 500_000, 1_000_000]),
    seed=st.integers(0, 2**63 - 1),
    key_index=st.none() | st.integers(0, 9),
    first_step=st.integers(0, 3),
    repetition_penalty_micro=st.sampled_from([10**6, 10**6, 1_300_000, 800_000]),
    frequency_penalty_micro=st.sampled_from([0, 500_000, -250_000]),
    presence_penalty_micro=st.sampled_from([0, 1_500_000]),
    min_new_tokens=st.integers(0, 5),
    logit_bias=biases,
)
filtered = st.builds(
    SamplingParams,
    temperature_micro=st.integers(10_000, 3_000_000),
    top_k=st.integers(0, 70),
    top_p_micro=st.sampled_from([10**6, 1, 300_000, 900_000, 999_999]),
    min_p_micro=st.sampled_from([0, 1, 50_000, 500_000, 1_000_000]),
    seed=st.integers(0, 2**63 - 1),
)


def in_vocabulary(ids: Sequence[int], row: np.ndarray) -> list[int]:
    return [i % len(row) for i in ids]


@given(rows, parameters, tokens, tokens, st.integers(0, 2**32 - 1))
def test_fast_sampling_is_the_written_rule(
    row: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    produced: list[int],
    request_index: int,
) -> None:
    prompt, produced = in_vocabulary([*prompt, 1, 2, 3], row), in_vocabulary(produced, row)
    eos = {0} if len(row) > 1 else set()
    step = len(produced)
    history = {"prompt": prompt, "produced": produced, "eos_ids": eos}
    logits = slow_edits(row, params, step, **history)
    scores = slow_scores(logits, params, request_index, step)
    chosen = sample(row, params, request_index, step, **history)
    assert scores[chosen] == pytest.approx(max(scores), abs=1e-9)
    assert chosen == sample(row, params, request_index, step, **history)
    assert margin(row, chosen, params, request_index, step, **history) <= 1e-9


@given(rows, parameters, tokens)
def test_greedy_takes_the_largest_edited_logit(
    row: np.ndarray, params: SamplingParams, produced: list[int]
) -> None:
    greedy = msgspec.structs.replace(params, temperature_micro=0, min_new_tokens=0)
    produced, prompt = in_vocabulary(produced, row), in_vocabulary([1, 2, 3], row)
    logits = slow_edits(row, greedy, len(produced), prompt, produced)
    chosen = sample(row, greedy, 0, len(produced), prompt=prompt, produced=produced)
    assert chosen == int(np.argmax(logits))


@given(st.lists(st.tuples(rows, parameters, tokens), min_size=1, max_size=6))
def test_a_batch_draws_for_each_what_it_would_be_given_alone(
    requests: list[tuple[np.ndarray, SamplingParams, list[int]]],
) -> None:
    samplers, alone = [], []
    for i, (row, params, produced) in enumerate(requests):
        prompt, produced = in_vocabulary([1, 2, 3], row), in_vocabulary(produced, row)
        sampler = Sampler(params, i, prompt)
        for token in produced:
            sampler.take(token)
        samplers.append(sampler)
        alone.append(sample(row, params, i, len(produced), prompt=prompt, produced=produced))
    logits = [row for row, *_ in requests]
    assert [choice.token for choice in sample_batch(logits, samplers)] == alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_of_every_width_are_rows(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    params = [
        SamplingParams(),
        SamplingParams(temperature_micro=700_000),
        SamplingParams(temperature_micro=900_000, top_p_micro=800_000),
    ]
    choices = sample_batch(logits, [Sampler(one, 4) for one in params])
    expected = [
        sample(row, one, 4, 0) for row, one in zip(logits.double().numpy(), params, strict=True)
    ]
    assert [choice.token for choice in choices] == expected


def test_only_plainly_greedy_rows_are_answered_where_they_lie() -> None:
    logits = torch.zeros(5, 9)
    logits[0, 4] = logits[0, 6] = 2.0
    logits[1, 3] = torch.nan
    params = [
        SamplingParams(),
        SamplingParams(),
        SamplingParams(n_logprobs=0),
        SamplingParams(logit_bias=((1, 5),)),
        SamplingParams(temperature_micro=5),
    ]
    samplers = [Sampler(one, 0) for one in params]
    assert largest_there(logits, samplers) == {0: 4}
    assert largest_there(logits[2:], samplers[2:]) == {}


def test_a_broken_row_spoils_no_other() -> None:
    logits = np.zeros((3, 5), dtype=np.float32)
    logits[1, 2] = np.nan
    hot = SamplingParams(temperature_micro=10**6)
    for params in (SamplingParams(), hot):
        first, second, third = sample_batch(logits, [Sampler(params, i) for i in range(3)])
        assert isinstance(first, TokenChoice)
        assert isinstance(second, CheckFailed)
        assert isinstance(third, TokenChoice)


@pytest.mark.parametrize("vocab", [40_000, 150_000])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 12.0])
def test_drawing_from_a_large_vocabulary_leaves_out_no_winner(vocab: int, spread: float) -> None:
    rng = np.random.default_rng(vocab)
    for step in range(4):
        row = (rng.standard_normal(vocab) * spread).astype(np.float32)
        for tau in (300_000, 1_000_000, 1_700_000):
            params = SamplingParams(temperature_micro=tau, seed=step)
            noise = gumbel_noise(np.arange(vocab), request_key(step, 2), step)
            scores = row.astype(np.float64) * (1e6 / tau) + noise
            assert sample(row, params, 2, step) == int(np.argmax(scores))


def test_a_continued_answer_draws_what_the_undisturbed_one_would() -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((12, 80)) * 2
    whole = SamplingParams(
        temperature_micro=900_000,
        seed=5,
        repetition_penalty_micro=1_200_000,
        frequency_penalty_micro=300_000,
        presence_penalty_micro=-100_000,
        min_new_tokens=8,
        max_new_tokens=12,
    )
    prompt = [3, 1, 4, 1, 5]
    undisturbed = Sampler(whole, 7, prompt, {0})
    answer = []
    for row in logits:
        (choice,) = sample_batch(row[None], [undisturbed])
        undisturbed.take(choice.token)
        answer.append(choice.token)
    rest = msgspec.structs.replace(whole, key_index=7, first_step=5, max_new_tokens=7)
    continued = Sampler(rest, 0, prompt + answer[:5], {0})
    for row, expected in zip(logits[5:], answer[5:], strict=True):
        (choice,) = sample_batch(row[None], [continued.fork()])
        assert choice.token == expected
        continued.take(choice.token)


def test_a_fork_stands_after_the_drafted_tokens_and_leaves_the_original_alone() -> None:
    params = SamplingParams(frequency_penalty_micro=2_000_000)
    sampler = Sampler(params, 0, [1])
    fork = sampler.fork([2, 2, 9])
    assert (sampler.step, fork.step) == (0, 3)
    assert sampler.edited(np.zeros(10)).tolist() == [0.0] * 10
    assert fork.edited(np.zeros(10)).tolist() == [0, 0, -4, 0, 0, 0, 0, 0, 0, -2]


def test_logprobs_are_of_the_models_own_logits() -> None:
    row = torch.tensor([2.0, 1.0, 0.0, 2.0, -torch.inf])
    params = SamplingParams(n_logprobs=3, logit_bias=((2, 90_000_000),))
    (choice,) = sample_batch(row[None], [Sampler(params, 0)])
    own = torch.log_softmax(row, 0)
    assert choice.token == 2
    assert choice.logprob == pytest.approx(float(own[2]), abs=1e-6)
    assert [i for i, _ in choice.top] == [0, 3, 1]
    assert [value for _, value in choice.top] == pytest.approx(own[[0, 3, 1]].tolist(), abs=1e-6)
    only = SamplingParams(n_logprobs=0)
    (choice,) = sample_batch(row[None], [Sampler(only, 0)])
    assert choice.logprob == pytest.approx(float(own[0]), abs=1e-6)
    assert choice.top == ()
    forced = SamplingParams(n_logprobs=20, logit_bias=((4, 0),))
    (choice,) = sample_batch(row[None], [Sampler(forced, 0)])
    assert choice.top[-1] == (4, -9999.0)
    (choice,) = sample_batch(row[None], [Sampler(SamplingParams(), 0)])
    assert choice.logprob is None


@given(rows, st.integers(0, 100))
def test_greedy_takes_the_lowest_id_among_the_best(row: np.ndarray, step: int) -> None:
    chosen = sample(row, SamplingParams(seed=step), 0, step)
    assert row[chosen] == row.max()
    assert not (row[:chosen] == row.max()).any()


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


def test_noise_never_exceeds_what_pruning_assumes() -> None:
    largest = (2.0**32 - 1 + 0.5) / 2.0**32
    assert -math.log(-math.log(largest)) <= MAX_NOISE
    noise = gumbel_noise(np.arange(100_000), (1, 2), 0)
    assert noise.max() < MAX_NOISE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_refused(bad: float) -> None:
    row = np.array([1.0, bad, 0.0])
    with pytest.raises(ValueError, match="NaN or infinity"):
        sample(row, SamplingParams(), 0, 0)
    with pytest.raises(ValueError, match="NaN or infinity"):
        sample(row, SamplingParams(temperature_micro=10**6), 0, 0)
