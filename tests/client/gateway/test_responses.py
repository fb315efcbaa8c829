"""Are responses answered, streamed, kept and gone on from, through the official client?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

import client.gateway.stored_responses as stored
from client.gateway.errors import BadParameter
from client.gateway.openai.items import conversation_of
from tests.client.gateway.world import World

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "strict": True,
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'


class Person(BaseModel):
    name: str
    age: int


def test_a_text_is_answered_and_kept(client: openai.OpenAI, world: World) -> None:
    made = client.responses.create(
        model="toy", input="say:hello", instructions="Be kind.", max_output_tokens=32
    )
    assert made.output_text == "hello"
    assert made.status == "completed"
    assert made.usage is not None and made.usage.output_tokens == 6
    assert made.instructions == "Be kind."
    again = client.responses.retrieve(made.id)
    assert again.model_dump() == made.model_dump()
    items = client.responses.input_items.list(made.id).data
    assert [item.content for item in items] == ["say:hello"]  # type: ignore[union-attr]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    assert world.bank.total_units > 0


def test_a_conversation_goes_on_from_a_response(client: openai.OpenAI, world: World) -> None:
    first = client.responses.create(model="toy", input="say:one", instructions="x" * 50)
    second = client.responses.create(model="toy", input="say:two", previous_response_id=first.id)
    assert second.output_text == "two"
    third = client.responses.create(
        model="toy",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "say:three"}]}],
        previous_response_id=second.id,
    )
    assert third.previous_response_id == second.id
    asked = ["say:one", "one", "say:two", "two", "say:three"]
    roles = ["user", "assistant"] * 3
    messages = [{"role": role, "content": text} for role, text in zip(roles, asked, strict=False)]
    assert third.usage is not None
    assert third.usage.input_tokens == len(world.tokenizer.encode_chat(messages))


def test_what_is_not_to_be_kept_is_not(client: openai.OpenAI, world: World) -> None:
    made = client.responses.create(model="toy", input="say:secret", store=False)
    assert made.output_text == "secret"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as failed:
        client.responses.create(model="toy", input="x", previous_response_id=made.id)
    assert failed.value.param == "previous_response_id"
    kept = client.responses.create(model="toy", input="say:mine")
    with openai.OpenAI(base_url=world.base_url, api_key=world.new_key()) as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(kept.id)
        with pytest.raises(openai.BadRequestError):
            other.responses.create(model="toy", input="x", previous_response_id=kept.id)


def test_a_stream_tells_text_in_events_that_add_up(client: openai.OpenAI) -> None:
    with client.responses.stream(model="toy", input="say:in small pieces 🚀") as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == "in small pieces 🚀"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_an_answer_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    made = client.responses.create(model="toy", input="forever", max_output_tokens=5)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="toy", input="forever", max_output_tokens=5) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_a_function_is_called_and_its_output_answered(client: openai.OpenAI) -> None:
    made = client.responses.create(model="toy", input=f"say:Well.{CALL}{CALL}", tools=[ADD])
    assert [item.type for item in made.output] == ["message", "function_call", "function_call"]
    call = made.output[1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": 2}
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "say:it is 4"}
        for item in made.output
        if item.type == "function_call"
    ]
    after = client.responses.create(
        model="toy", input=outputs, previous_response_id=made.id, tools=[ADD]
    )
    assert after.output_text.startswith("it is 4")
    by_hand = client.responses.create(
        model="toy",
        input=[{"role": "user", "content": "x"}, *(o.model_dump() for o in made.output), *outputs],
        tools=[ADD],
    )
    assert by_hand.output_text.startswith("it is 4")


def test_a_stream_tells_calls(client: openai.OpenAI) -> None:
    with client.responses.stream(model="toy", input=f"say:{CALL}", tools=[ADD]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    (call,) = final.output
    assert call.type == "function_call" and call.name == "add"
    forced = client.responses.create(
        model="toy",
        input='say:{"name": "add", "arguments": {"a": 2}}',
        tools=[ADD],
        tool_choice={"type": "function", "name": "add"},
    )
    assert [item.type for item in forced.output] == ["function_call"]


def test_a_form_is_parsed(client: openai.OpenAI) -> None:
    asks = 'say:{"name": "Ann", "age": 31}'
    made = client.responses.parse(model="toy", input=asks, text_format=Person)
    assert made.output_parsed == Person(name="Ann", age=31)


def test_the_oldest_of_a_key_make_room_for_its_newest(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    monkeypatch.setattr(stored, "MOST_BYTES_OF_A_KEY", 4000)
    with openai.OpenAI(base_url=world.base_url, api_key=world.new_key()) as client:
        made = [client.responses.create(model="toy", input=f"say:{i}").id for i in range(6)]
        world.clock.ahead_s = 3600
        assert client.responses.retrieve(made[-1]).output_text == "5"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made[0])
        world.clock.ahead_s = stored.KEPT_FOR_S + 3600
        newest = client.responses.create(model="toy", input="say:new").id
        assert client.responses.retrieve(newest).output_text == "new"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made[-1])


@pytest.mark.parametrize("bound", ["MOST_TURNS", "MOST_CONVERSATION_BYTES"])
def test_a_conversation_that_is_too_long_is_not_read(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    thought: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "content": "x" * 9000}
    asks: Any = [thought, {"role": "user", "content": "say:x"}]
    monkeypatch.setattr(stored, bound, {"MOST_TURNS": 2, "MOST_CONVERSATION_BYTES": 30_000}[bound])
    last: Any = None
    for _ in range(3):
        last = client.responses.create(model="toy", input=asks, previous_response_id=last).id
    with pytest.raises(openai.BadRequestError, match="has more than") as failed:
        client.responses.create(model="toy", input="say:x", previous_response_id=last)
    assert failed.value.param == "previous_response_id"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "file_search_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "output": {}}]}, "input[0].output"),
        ({"input": "x", "instructions": 3}, "instructions"),
        ({"input": "x", "store": "no"}, "store"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "text": "json"}, "text"),
        ({"input": "x", "n": 2}, "n"),
    ],
)
def test_what_a_response_cannot_be_asked_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadParameter) as failed:
        conversation_of(body)
    assert failed.value.details["param"] == param


def test_embeddings_are_refused_with_the_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no stage gives embeddings"):
        client.embeddings.create(model="toy", input="x")
