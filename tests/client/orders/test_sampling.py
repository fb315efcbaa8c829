"""A body is parameters that mean what it says, or is refused by the name of a field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.orders.sampling import FIELDS, SamplingInvalid, sampling_of, sampling_of_flags
from core.protocol.errors import UsageError
from core.protocol.types import SamplingParams

BASE = SamplingParams()


def test_every_field_is_understood() -> None:
    body = {
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "seed": 3,
        "repetition_penalty": 1.1,
        "frequency_penalty": -0.5,
        "presence_penalty": 2,
        "logit_bias": {"50": -100, "7": 0.25},
        "stop": ["b", "a", "b"],
        "logprobs": True,
        "top_logprobs": 5,
    }
    assert sampling_of(body, BASE) == SamplingParams(
        temperature_micro=700_000,
        top_k=40,
        min_p_micro=50_000,
        max_new_tokens=9,
        seed=3,
        top_p_micro=950_000,
        repetition_penalty_micro=1_100_000,
        frequency_penalty_micro=-500_000,
        presence_penalty_micro=2_000_000,
        min_new_tokens=2,
        ignore_eos=True,
        n_logprobs=5,
        logit_bias=((7, 250_000), (50, -100_000_000)),
        stop=(b"a", b"b"),
    )
    others = {"max_completion_tokens", "response_format", "structured_outputs"}
    assert body.keys() | others == FIELDS


def test_what_is_not_said_is_the_bases_and_what_is_said_replaces_it() -> None:
    base = sampling_of({"stop": "x", "temperature": 1, "logprobs": 3, "logit_bias": {"1": 2}}, BASE)
    assert sampling_of(dict.fromkeys(FIELDS), base) == base
    changed = sampling_of({"stop": [], "temperature": 0, "logprobs": False, "logit_bias": {}}, base)
    assert changed == BASE
    assert sampling_of({"top_logprobs": 1}, base).n_logprobs == 1
    assert sampling_of({"logprobs": True}, base).n_logprobs == 3


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": False}, None),
        ({"logprobs": 0}, 0),
        ({"logprobs": 20}, 20),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({}, None),
    ],
)
def test_logprobs_are_true_or_a_number(body: dict[str, Any], expected: int | None) -> None:
    assert sampling_of(body, BASE).n_logprobs == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"top_p": 0}, "top_p must be from 1e-06 to 1"),
        ({"top_p": 1.01}, "top_p must be from 1e-06 to 1"),
        ({"top_p": float("nan")}, "top_p must be from"),
        ({"top_p": 10**400}, "top_p must be from"),
        ({"top_p": "0.9"}, "top_p must be a number"),
        ({"top_p": True}, "top_p must be a number"),
        ({"top_p": 0.12345678}, "top_p must be in steps of a millionth"),
        ({"min_p": -0.1}, "min_p must be from 0 to 1"),
        ({"temperature": 101}, "temperature must be from 0 to 100"),
        ({"repetition_penalty": 0}, "repetition_penalty must be from 0.1 to 10"),
        ({"frequency_penalty": 2.5}, "frequency_penalty must be from -2 to 2"),
        ({"presence_penalty": -3}, "presence_penalty must be from -2 to 2"),
        ({"min_tokens": -1}, "min_tokens must be a whole number from 0"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false"),
        ({"stop": ""}, "stop must be a text, or a list of texts, none of them empty"),
        ({"stop": ["a", 3]}, "stop must be a text"),
        ({"stop": {"a": 1}}, "stop must be a text"),
        ({"stop": [f"s{i}" for i in range(17)]}, "stop must hold at most 16 texts"),
        ({"stop": "é" * 129}, "stop must hold texts of at most 256 bytes"),
        ({"stop": "\ud800"}, "half of a surrogate pair"),
        ({"logit_bias": [1]}, "logit_bias must give at most 1024 token ids"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "at most 1024"),
        ({"logit_bias": {"-1": 0}}, "logit_bias must name token ids"),
        ({"logit_bias": {"x": 0}}, "logit_bias must name token ids"),
        ({"logit_bias": {"²": 0}}, "logit_bias must name token ids"),
        ({"logit_bias": {"1" * 5000: 0}}, "logit_bias must name token ids"),
        ({"logit_bias": {"4294967296": 0}}, "logit_bias must name token ids"),
        ({"logit_bias": {"1": 0, "01": 0}}, "each once"),
        ({"logit_bias": {"1": 101}}, "logit_bias must be from -100 to 100"),
        ({"logit_bias": {"1": None}}, "logit_bias must be a number"),
        ({"logprobs": 21}, "logprobs must be a whole number from 0 to 20"),
        ({"logprobs": "yes"}, "logprobs must be a whole number"),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs must be a whole number from 0 to 20",
        ),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs needs logprobs"),
        (
            {"ignore_eos": True, "response_format": {"type": "json_object"}},
            "ignore_eos must be left out",
        ),
        (
            {"min_tokens": 1, "structured_outputs": {"choice": ["a"]}},
            "min_tokens must be left out",
        ),
        (
            {"structured_outputs": {"grammar": "x" * 65_537}},
            "structured_outputs must come to at most 65536 bytes",
        ),
    ],
)
def test_a_field_out_of_range_is_named(body: dict[str, Any], why: str) -> None:
    with pytest.raises(SamplingInvalid) as caught:
        sampling_of(body, BASE)
    assert why in str(caught.value)
    assert caught.value.field in body


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**10), 10**10)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from([0.5, 1, 0, -1, 0.7]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("0123456789x", max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), anything))
def test_whatever_a_body_says_it_is_refused_or_gives_parameters_that_can_be_signed(
    body: dict[str, Any],
) -> None:
    try:
        found = sampling_of(body, BASE)
    except SamplingInvalid:
        return
    assert SamplingParams.read(found.canonical()) == found
    assert msgspec.convert(msgspec.to_builtins(found), SamplingParams) == found


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.integers(0, 10**8).map(lambda i: i / 10**6),
            "top_p": st.integers(1, 10**6).map(lambda i: i / 10**6),
            "frequency_penalty": st.integers(-2 * 10**6, 2 * 10**6).map(lambda i: i / 10**6),
        },
    )
)
def test_millionths_survive_json(body: dict[str, float]) -> None:
    found = sampling_of(json.loads(json.dumps(body)), BASE)
    for name, value in body.items():
        assert getattr(found, f"{name}_micro") == round(value * 10**6)


def test_flags_mean_what_fields_mean_and_name_the_option_that_is_wrong() -> None:
    flags = {
        "run": object(),
        "max_tokens": 16,
        "temperature": 0.7,
        "seed": 5,
        "top_p": None,
        "stop": ["a", "b"],
        "logit_bias": ["5=-100", "6=0.5"],
        "ignore_eos": False,
        "logprobs": 2,
    }
    assert sampling_of_flags(flags, BASE) == SamplingParams(
        700_000,
        0,
        0,
        16,
        5,
        n_logprobs=2,
        stop=(b"a", b"b"),
        logit_bias=((5, -100_000_000), (6, 500_000)),
    )
    assert sampling_of_flags({"stop": None, "logit_bias": None}, BASE) == BASE
    for bad, option in (
        ({"temperature": float("nan")}, "--temperature"),
        ({"temperature": 100.1}, "--temperature"),
        ({"top_p": 0.0}, "--top-p"),
        ({"repetition_penalty": 11.0}, "--repetition-penalty"),
        ({"logit_bias": ["5"]}, "--logit-bias 5"),
        ({"logit_bias": ["5=1", "5=2"]}, "--logit-bias 5=2"),
        ({"logit_bias": ["x=1"]}, "--logit-bias"),
    ):
        with pytest.raises(UsageError) as caught:
            sampling_of_flags(bad, BASE)
        assert option in caught.value.what
