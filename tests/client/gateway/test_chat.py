"""Does the official client get conversations and completions as it knows them, unmodified?"""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.client.gateway.toy import IN_UNITS, OUT_UNITS
from tests.client.gateway.world import World

HELLO: list[Any] = [{"role": "user", "content": "say:hello there"}]


def test_a_conversation_is_answered_with_usage_cost_receipt_and_route(
    client: openai.OpenAI, world: World
) -> None:
    raw = client.chat.completions.with_raw_response.create(model="toy", messages=HELLO)
    answer = raw.parse()
    assert answer.choices[0].message.content == "hello there"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("hello there") + 1
    expected = answer.usage.prompt_tokens * IN_UNITS + answer.usage.completion_tokens * OUT_UNITS
    assert raw.headers["x-cost-units"] == str(expected)
    assert raw.headers["x-cost"].endswith("usd")
    assert raw.headers["x-receipt-id"].startswith("rcpt_")
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["x-route"].count("mnr_") == 3
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert answer.system_fingerprint
    assert world.bank.total_units == expected


def test_a_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(
    client: openai.OpenAI,
) -> None:
    stream = client.chat.completions.create(
        model="toy", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "hello there"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert all(c.usage is None for c in chunks[:-1])
    assert {c.id for c in chunks} == {chunks[0].id}


def test_text_is_cut_only_at_whole_characters(client: openai.OpenAI) -> None:
    said = "🚀 naïve 水 🧑‍🚀 ende"
    stream = client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": f"say:{said}"}], stream=True
    )
    pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
    assert "".join(pieces) == said
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_answer_that_is_cut_in_a_character_ends_before_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "say:ab🚀"}], max_tokens=4
    )
    assert answer.choices[0].message.content == "ab"
    assert answer.choices[0].finish_reason == "length"


def test_n_answers_differ_and_are_the_same_again_for_the_same_seed(client: openai.OpenAI) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "go"}], n=4, seed=7, max_tokens=60
        )
        assert [c.index for c in answer.choices] == [0, 1, 2, 3]
        return [c.message.content for c in answer.choices]

    first = ask()
    assert len(set(first)) == 4
    assert ask() == first


def test_n_streams_in_one(client: openai.OpenAI) -> None:
    texts = {0: "", 1: ""}
    ends = 0
    for chunk in client.chat.completions.create(
        model="toy", messages=HELLO, n=2, stream=True, max_tokens=5
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += choice.finish_reason == "length"
    assert texts == {0: "hello", 1: "hello"}
    assert ends == 2


def test_stop_strings_end_the_text_before_them(client: openai.OpenAI) -> None:
    for stop in ("o th", ["zzz", "o th"]):
        answer = client.chat.completions.create(model="toy", messages=HELLO, stop=stop)
        assert answer.choices[0].message.content == "hell"
        assert answer.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(model="toy", messages=HELLO, stop=stop, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "hell"


def test_logprobs_come_with_each_token_of_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=HELLO, logprobs=True, top_logprobs=3
    )
    told = answer.choices[0].logprobs
    assert told is not None and told.content is not None
    assert "".join(entry.token for entry in told.content) == "hello there"
    assert all(len(entry.top_logprobs) == 3 for entry in told.content)
    stream = client.chat.completions.create(
        model="toy", messages=HELLO, logprobs=True, top_logprobs=3, stream=True
    )
    streamed = [
        entry.token
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs and choice.logprobs.content
        for entry in choice.logprobs.content
    ]
    assert "".join(streamed) == "hello there"


def test_logit_bias_min_tokens_and_ignore_eos_reach_the_model(client: openai.OpenAI) -> None:
    ids: Any = dict.fromkeys(range(60, 75), -100)  # of h, e, l, l, o among others
    biased = client.chat.completions.create(model="toy", messages=HELLO, logit_bias=ids)
    assert biased.choices[0].message.content != "hello there"
    more = client.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=20, extra_body={"min_tokens": 15}
    )
    assert more.usage is not None and more.usage.completion_tokens == 16
    on = client.chat.completions.create(
        model="toy", messages=HELLO, max_tokens=20, extra_body={"ignore_eos": True}
    )
    assert on.usage is not None and on.usage.completion_tokens == 20
    assert on.choices[0].finish_reason == "length"


def test_typed_text_parts_and_developer_messages_are_read(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy",
        messages=[
            {"role": "developer", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "say:parts"}]},
        ],
    )
    assert answer.choices[0].message.content == "parts"


def test_text_completions_take_text_lists_and_token_ids(
    client: openai.OpenAI, world: World
) -> None:
    ids = world.tokenizer.encode("say:ids")
    assert client.completions.create(model="toy", prompt="say:one").choices[0].text == "one"
    both = client.completions.create(model="toy", prompt=["say:one", "say:two"])
    assert [c.text for c in both.choices] == ["one", "two"]
    assert client.completions.create(model="toy", prompt=ids).choices[0].text == "ids"
    lists = client.completions.create(model="toy", prompt=[ids, ids], n=2)
    assert [c.text for c in lists.choices] == ["ids"] * 4
    assert lists.usage is not None and lists.usage.prompt_tokens == 2 * len(ids)


def test_text_completions_stream_with_legacy_logprobs(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="toy", prompt="say:abc", stream=True, logprobs=2)
    chunks = [c for c in stream if c.choices]
    assert "".join(c.choices[0].text for c in chunks) == "abc"
    told = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
    assert [t.tokens for t in told] == [["a"], ["b"], ["c"]]
    assert [t.text_offset for t in told] == [[0], [1], [2]]
    whole = client.completions.create(model="toy", prompt="say:abc", logprobs=0)
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.tokens == ["a", "b", "c"]


def test_fields_that_would_change_the_answer_are_refused_by_name(client: openai.OpenAI) -> None:
    refused: list[dict[str, Any]] = [
        {"functions": [{"name": "f"}]},
        {"n": 5},
        {"temperature": "hot"},
        {"logit_bias": {"x": 1}},
        {"top_logprobs": 2},
        {"max_tokens": 0},
        {"stop": ""},
    ]
    for extra in refused:
        with pytest.raises(openai.BadRequestError) as failed:
            client.chat.completions.create(model="toy", messages=HELLO, extra_body=extra)
        assert failed.value.param == next(iter(extra)), extra
        assert failed.value.response.headers["x-should-retry"] == "false"
        assert failed.value.type == "invalid_request_error"
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError) as failed:
        client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": image}],  # type: ignore[list-item]
        )
    assert failed.value.param == "messages[0].content[0].type"


def test_unknown_fields_are_warned_of_and_ignored(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy",
        messages=HELLO,
        store=True,
        user="me",
        metadata={"a": "b"},
        extra_body={"a_field_of_tomorrow": 1},
    )
    warnings = answer.model_extra["warnings"]  # type: ignore[index]
    assert len(warnings) == 2
    assert any("a_field_of_tomorrow" in w for w in warnings) and any("store" in w for w in warnings)


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as failed:
        client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "x" * 5000}]
        )
    assert failed.value.code == "context_length_exceeded"
    assert "4096" in failed.value.message


def test_an_unknown_model_names_close_ones(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as failed:
        client.chat.completions.create(model="toi", messages=HELLO)
    assert failed.value.code == "model_not_found"
    assert "toy" in failed.value.message


def test_models_say_price_context_precision_weights_and_miners(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    shown = model.model_dump()
    assert shown["id"] == "toy" and shown["context_length"] == 4096 and shown["miners"] == 3
    assert shown["quantization"] == "float32" and shown["weights_hash"].startswith("0x")
    assert shown["pricing"]["output"] == "80usd/Mtok"
    assert shown["pricing"]["output_units_per_mtok"] == "80000000"
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
