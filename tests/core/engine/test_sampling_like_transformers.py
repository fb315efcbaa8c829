"""Do penalties, biases and filters do what the processors of the same names in transformers do?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from core.engine.sampling.filters import kept
from core.engine.sampling.sampling import Sampler
from core.protocol.types import SamplingParams

VOCABULARY = 200
logits = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal(VOCABULARY) * 3
)
ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)


def theirs(processors: LogitsProcessorList, history: list[int], row: np.ndarray) -> np.ndarray:
    return processors(torch.tensor([history]), torch.from_numpy(row)[None])[0].numpy()


@settings(deadline=None)
@given(logits, ids, ids, st.sampled_from([500_000, 1_100_000, 1_800_000]), st.integers(0, 199))
def test_bias_then_repetition_penalty_then_early_ends_are_theirs(
    row: np.ndarray, prompt: list[int], produced: list[int], repetition: int, biased: int
) -> None:
    params = SamplingParams(
        repetition_penalty_micro=repetition,
        logit_bias=((biased, 3_500_000),),
        min_new_tokens=len(produced) + 1,
    )
    sampler = Sampler(params, 0, prompt, {7, 11})
    for token in produced:
        sampler.take(token)
    history = prompt + produced
    expected = theirs(
        LogitsProcessorList(
            [
                SequenceBiasLogitsProcessor([[[biased], 3.5]]),
                RepetitionPenaltyLogitsProcessor(repetition / 1e6),
                MinNewTokensLengthLogitsProcessor(len(prompt), len(produced) + 1, [7, 11], "cpu"),
            ]
        ),
        history,
        row,
    )
    np.testing.assert_allclose(sampler.edited(row), expected, rtol=1e-6)


@settings(deadline=None)
@given(
    logits,
    st.sampled_from([300_000, 1_000_000, 1_700_000]),
    st.sampled_from([0, 1, 40, 199, 200, 5000]),
    st.sampled_from([1_000_000, 1000, 500_000, 900_000, 990_000]),
    st.sampled_from([0, 10_000, 100_000, 1_000_000]),
)
def test_the_filters_leave_what_theirs_leave(
    row: np.ndarray, temperature: int, top_k: int, top_p: int, min_p: int
) -> None:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature / 1e6)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1_000_000:
        warpers.append(TopPLogitsWarper(top_p / 1e6))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p / 1e6))
    params = SamplingParams(
        temperature_micro=temperature, top_k=top_k, top_p_micro=top_p, min_p_micro=min_p
    )
    found = theirs(warpers, [0], row)
    ours = kept(row, params)
    assert set(ours.ids.tolist()) == set(np.flatnonzero(np.isfinite(found)).tolist())
    np.testing.assert_allclose(ours.scaled, found[ours.ids], rtol=1e-9)


def test_frequency_and_presence_count_produced_tokens_alone() -> None:
    params = SamplingParams(
        frequency_penalty_micro=500_000, presence_penalty_micro=250_000, first_step=1
    )
    sampler = Sampler(params, 0, [1, 1, 2])
    sampler.take(3)
    sampler.take(3)
    changed = sampler.edited(np.zeros(5))
    assert changed.tolist() == pytest.approx([0, 0, -0.75, -1.25, 0])
