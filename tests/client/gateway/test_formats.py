"""Does an answer have the form that was asked for, through the official clients?"""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.client.gateway.world import World

ASK: list[Any] = [{"role": "user", "content": "say:Ann is 31 and lives in Köln"}]
ANN = '{"name": "Ann", "age": 31, "mood": "calm"}'


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["calm", "glad"]


def test_a_models_fields_come_back_parsed(client: openai.OpenAI) -> None:
    asks: list[Any] = [{"role": "user", "content": f"say:{ANN} and more"}]
    answer = client.chat.completions.parse(model="toy", messages=asks, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=31, mood="calm")
    assert answer.choices[0].message.content == ANN
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_of_it_is_the_same(client: openai.OpenAI) -> None:
    asks: list[Any] = [{"role": "user", "content": f"say:{ANN}"}]
    with client.chat.completions.stream(
        model="toy", messages=asks, response_format=Person
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion().choices[0].message
    assert final.parsed == Person(name="Ann", age=31, mood="calm")
    assert "".join(pieces) == ANN
    assert len(pieces) > 10


@pytest.mark.parametrize(
    ("outputs", "fits"),
    [
        ({"choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"regex": r"[a-f]{4}-\d\d"}, lambda text: len(text) == 7 and text[4] == "-"),
        ({"grammar": 'start: "x" "y"*'}, lambda text: set(text[1:]) <= {"y"}),
        ({"json": {"type": "array", "items": {"type": "null"}, "minItems": 1}}, json.loads),
    ],
)
def test_other_forms_are_asked_for_as_of_other_servers(
    client: openai.OpenAI, outputs: dict[str, Any], fits: Any
) -> None:
    answer = client.chat.completions.create(
        model="toy",
        messages=ASK,
        max_tokens=200,
        seed=1,
        extra_body={"structured_outputs": outputs},
    )
    assert fits(answer.choices[0].message.content)
    plain = client.completions.create(
        model="toy", prompt="x", max_tokens=200, seed=1, extra_body={"structured_outputs": outputs}
    )
    assert fits(plain.choices[0].text)


def test_several_answers_each_have_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=ASK, n=3, response_format={"type": "json_object"}, max_tokens=300
    )
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)


def test_a_form_that_takes_too_much_ends_the_answer_as_cut(client: openai.OpenAI) -> None:
    heavy = "start: " + " ".join(["a?"] * 1300) + '\na: "x"'
    answer = client.chat.completions.create(
        model="toy", messages=ASK, extra_body={"structured_outputs": {"grammar": heavy}}
    )
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("asked", "param", "why"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format", "type text"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "response_format",
            "grammar cannot be used",
        ),
        (
            {"structured_outputs": {"grammar": "start: nothing"}},
            "structured_outputs",
            "grammar cannot be used",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "grammar cannot be used"),
        (
            {"response_format": {"type": "json_object"}, "min_tokens": 3},
            "min_tokens",
            "must be left out",
        ),
    ],
)
def test_a_form_that_cannot_be_is_refused_and_costs_nothing(
    client: openai.OpenAI, world: World, asked: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(openai.BadRequestError) as failed:
        client.chat.completions.create(model="toy", messages=ASK, extra_body=asked)
    assert failed.value.param == param
    assert why in str(failed.value)
    assert world.bank.total_units == 0
