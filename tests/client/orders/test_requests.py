"""Any line of text is a request or says why it is none; bad lines never disturb good ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.orders.requests import MAX_LINE_BYTES, parse_line, read_requests
from core.protocol.errors import LineInvalid
from core.protocol.types import SamplingParams

HELLO = [{"role": "user", "content": "hello"}]


def line(body: Any = None, **entry: Any) -> str:
    url = entry.pop("url", "/v1/chat/completions")
    return json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body, **entry})


def body(**fields: Any) -> str:
    return line({"messages": HELLO, **fields})


def why(text: str | bytes) -> str:
    with pytest.raises(LineInvalid) as caught:
        parse_line(7, text, SamplingParams())
    assert caught.value.details["line_number"] == 7
    return caught.value.why


def test_full_batch_line_is_read() -> None:
    text = body(model="m", max_tokens=9, temperature=0.7, top_k=40, min_p=0.05, seed=3, stream=True)
    request = parse_line(1, text, SamplingParams())
    assert request.custom_id == "a"
    assert [(m.role, m.content) for m in request.messages] == [("user", "hello")]
    assert request.sampling == SamplingParams(700_000, 40, 50_000, 9, 3)
    assert not request.is_plain


def test_body_alone_and_defaults() -> None:
    defaults = SamplingParams(max_new_tokens=11, temperature_micro=5, seed=6)
    request = parse_line(4, '{"prompt": "hi"}', defaults)
    assert request.custom_id == "line-4"
    assert request.sampling == SamplingParams(5, 0, 0, 11, 6)
    assert request.messages[0].role == "user"


def test_null_means_not_given() -> None:
    fields = dict.fromkeys(("max_tokens", "temperature", "top_k", "min_p", "seed", "n"))
    assert parse_line(1, body(**fields), SamplingParams()).sampling == SamplingParams()


def test_newer_name_of_max_tokens_wins() -> None:
    request = parse_line(1, body(max_tokens=5, max_completion_tokens=6), SamplingParams())
    assert request.sampling.max_new_tokens == 6


def test_prompt_at_the_completions_url_is_plain_text() -> None:
    request = parse_line(1, line({"prompt": "Once"}, url="/v1/completions"), SamplingParams())
    assert request.is_plain
    assert request.messages[0].content == "Once"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "a list"),
        ("null", "a NoneType"),
        ('"text"', "a str"),
        ("NaN", "a float"),
        ("{}", "either messages or prompt"),
        ('{"custom_id": 3, "prompt": "x"}', "custom_id must be"),
        ('{"custom_id": "", "prompt": "x"}', "custom_id must be"),
        ('{"custom_id": "' + "x" * 201 + '", "prompt": "x"}', "custom_id must be"),
        (line({"messages": HELLO}, url="/v1/embeddings"), "'/v1/embeddings' is not served"),
        (line({"messages": HELLO}, url=["/v1/chat/completions"]), "is not served"),
        (line({"messages": HELLO}, method="GET"), "'GET' is not POST"),
        (line(None), "no body object"),
        (line([]), "no body object"),
        (line({"messages": HELLO, "prompt": "x"}), "either messages or prompt"),
        (line({"prompt": "  "}), "non-empty string"),
        (line({"prompt": ["x"]}), "non-empty string"),
        (line({"messages": []}), "non-empty list"),
        (line({"messages": "hello"}), "non-empty list"),
        (line({"messages": ["hello"]}), "needs a role"),
        (line({"messages": [{"role": ["user"], "content": "x"}]}), "needs a role"),
        (line({"messages": [{"role": {}, "content": "x"}]}), "needs a role"),
        (line({"messages": [{"role": "tool", "content": "x"}]}), "needs a role"),
        (line({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "string content"),
        (body(tools=[]), "not supported: 'tools'"),
        (body(custom_id="b"), "not supported: 'custom_id'"),
        (body(n=2), "n must be 1"),
        (body(max_tokens=0), "max_tokens must be a whole number from 1"),
        (body(max_tokens=True), "max_tokens must be a whole number"),
        (body(max_tokens=1.0), "max_tokens must be a whole number"),
        (body(max_tokens="5"), "max_tokens must be a whole number"),
        (body(max_tokens=2**20 + 1), "max_tokens must be a whole number"),
        (body(max_tokens=10**4000), "max_tokens must be a whole number"),
        (body(seed=-1), "seed must be a whole number"),
        (body(seed=2**63), "seed must be a whole number"),
        (body(seed=False), "seed must be a whole number"),
        (body(top_k=False), "top_k must be a whole number"),
        (body(top_k=""), "top_k must be a whole number"),
        (body(min_p=1.5), "min_p must be from 0 to 1"),
        (body(min_p=[]), "min_p must be a number"),
        (body(temperature=True), "temperature must be a number"),
        (body(temperature="1"), "temperature must be a number"),
        (body(temperature=-0.1), "temperature must be from 0 to 100"),
        (body(temperature=0.0000005), "steps of a millionth"),
        (body(temperature=float("nan")), "temperature must be from 0 to 100"),
        (body(temperature=float("inf")), "temperature must be from 0 to 100"),
        (body(temperature=10**400), "temperature must be from 0 to 100"),
        ('{"prompt": "x", "seed": ' + "9" * 5000 + "}", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (r'{"prompt": "\ud800"}', "surrogate"),
        (r'{"prompt": "x", "\udfff": 1}', "surrogate"),
        ('{"prompt": "\ud800"}', "surrogate"),
        (b'{"prompt": "\xff"}', "not UTF-8 text: byte 13"),
        ('{"prompt": "' + "x" * MAX_LINE_BYTES + '"}', "longer than"),
    ],
)
def test_malformed_line_says_why(text: str | bytes, reason: str) -> None:
    assert reason in why(text)


def test_nesting_cannot_overflow_the_stack_of_a_whole_program() -> None:
    """A library that ours import raises the recursion limit to where the interpreter dies."""
    code = (
        "import client.jobs.wishes, client.orders.requests as r\n"
        "print(len(r.read_requests(['[' * 10**6, '{\"a\":' * 10**5], r.SamplingParams())[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n")


def test_unicode_beside_half_surrogates_is_kept() -> None:
    text = json.dumps({"prompt": "😀 \u2028 \x85 naïve"})  # written as surrogate pairs
    assert parse_line(1, text, SamplingParams()).messages[0].content == "😀 \u2028 \x85 naïve"


def test_bad_lines_leave_good_ones_alone() -> None:
    lines = ["", line({"prompt": "x"}), "oops", line({"prompt": "y"}), b"\xff", '{"prompt": "z"}']
    good, bad = read_requests(lines, SamplingParams())
    assert [(r.line_number, r.custom_id) for r in good] == [(2, "a"), (6, "line-6")]
    assert [e.details["line_number"] for e in bad] == [3, 4, 5]
    assert bad[1].details["custom_id"] == "a"
    assert "used before" in bad[1].why


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "custom_id",
        "url",
        "method",
        "body",
        "messages",
        "prompt",
        "n",
        "seed",
        "top_k",
        "min_p",
        "temperature",
        "max_tokens",
        "max_completion_tokens",
        "role",
        "content",
        "model",
    ]
)
near_requests = st.recursive(
    st.sampled_from(["user", "POST", "/v1/completions", "hi", True, 0, 1, 0.5, None, "\ud800"])
    | json_values,
    lambda inner: st.dictionaries(names, inner, max_size=5) | st.lists(inner, max_size=2),
    max_leaves=12,
)


def reads_or_refuses(text: str | bytes) -> None:
    good, bad = read_requests(
        [text, '{"prompt": "fine", "custom_id": "the good one"}'], SamplingParams()
    )
    assert good[-1].custom_id == "the good one"
    assert len(good) + len(bad) == (2 if text.strip() else 1)
    for request in good:
        assert SamplingParams.read(request.sampling.canonical()) == request.sampling
        json.dumps([request.custom_id, *(m.content for m in request.messages)]).encode()
    for error in bad:
        json.dumps(error.to_dict(), ensure_ascii=False).encode()


@given(st.text() | st.binary() | st.text(st.characters(codec=None)))
def test_any_text_is_a_request_or_a_reason(text: str | bytes) -> None:
    reads_or_refuses(text)


@given(json_values | near_requests)
def test_any_json_is_a_request_or_a_reason(value: Any) -> None:
    reads_or_refuses(json.dumps(value))
