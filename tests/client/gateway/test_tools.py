"""Does an agent's loop of calls and results work, through the official clients?"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from client.gateway.errors import BadParameter
from client.gateway.openai.tools import tool_use_of
from tests.client.gateway.world import World

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/whole"}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"whole": {"type": "integer"}},
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def asks(text: str) -> list[Any]:
    return [{"role": "user", "content": f"say:{text}"}]


def test_a_call_comes_back_and_its_result_is_answered(client: openai.OpenAI) -> None:
    messages = asks(f"Let me see.\n{CALL}")
    answer = client.chat.completions.create(model="toy", messages=messages, tools=[ADD, NOW])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "").strip() == "Let me see."
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function" and call.id.startswith("call_")
    assert call.function.name == "add"
    assert json.loads(call.function.arguments) == {"a": 2, "b": 3}
    result = {"role": "tool", "tool_call_id": call.id, "content": "say:it is 5"}
    messages += [choice.message, result]
    answer = client.chat.completions.create(model="toy", messages=messages, tools=[ADD, NOW])
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.choices[0].message.content or "").startswith("it is 5")


def test_a_stream_tells_calls_as_deltas(client: openai.OpenAI) -> None:
    second = CALL.replace('"a": 2', '"a": 4')
    with client.chat.completions.stream(
        model="toy", messages=asks(f"Both:{CALL}{second}"), tools=[ADD], logprobs=True
    ) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion().choices[0]
    assert "".join(texts) == "Both:"
    assert final.finish_reason == "tool_calls"
    found = [json.loads(call.function.arguments)["a"] for call in final.message.tool_calls or ()]
    assert found == [2, 4]
    assert len({call.id for call in final.message.tool_calls or ()}) == 2
    assert final.logprobs is not None and len(final.logprobs.content or ()) > 100


def test_one_call_where_only_one_may_be(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=asks(CALL + CALL), tools=[ADD], parallel_tool_calls=False
    )
    assert len(answer.choices[0].message.tool_calls or ()) == 1
    assert answer.choices[0].message.content is None


def test_what_is_no_call_is_text(client: openai.OpenAI) -> None:
    for text in ("<tool_call>{not JSON}</tool_call>", "a <tool", "2 < 3 and {}", '{"name": 3}'):
        answer = client.chat.completions.create(model="toy", messages=asks(text), tools=[ADD])
        message, plain = answer.choices[0].message, text.replace("<tool_call>", "")
        assert message.tool_calls is None
        assert message.content == plain.replace("</tool_call>", "")
    answer = client.chat.completions.create(
        model="toy", messages=asks(CALL), tools=[ADD], tool_choice="none"
    )
    assert answer.choices[0].message.content == CALL


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_an_answer_that_must_call_does_by_its_functions_schema(
    client: openai.OpenAI, choice: Any
) -> None:
    for seed in range(4):
        answer = client.chat.completions.create(
            model="toy",
            messages=asks("I will not"),
            tools=[ADD, NOW],
            tool_choice=choice,
            seed=seed,
            max_tokens=2000,
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        for call in answer.choices[0].message.tool_calls or ():
            assert call.function.name in ("add", "now")
            if call.function.name == "add":
                assert json.loads(call.function.arguments).keys() == {"a", "b"}
    named = isinstance(choice, dict)
    assert not named or [c.function.name for c in answer.choices[0].message.tool_calls] == ["add"]


def test_tools_beside_a_form_are_called_or_the_form_is_kept(client: openai.OpenAI) -> None:
    form = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    format_ = {"type": "json_schema", "json_schema": {"name": "it", "schema": form}}
    kinds = set()
    for seed in range(24):
        choice = client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": f"seed {seed}"}],
            tools=[ADD],
            response_format=format_,  # type: ignore[arg-type]
            seed=seed,
            max_tokens=1500,
        ).choices[0]
        if choice.finish_reason == "tool_calls":
            kinds.add("called")
        elif choice.finish_reason == "stop":
            kinds.add("said")
            assert isinstance(json.loads(choice.message.content or "")["sum"], int)
    assert kinds == {"called", "said"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [ADD] * 2}, "tools"),
        ({"tools": [ADD] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "description": 1}}]},
            "tools[0].function.description",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
            "tools[0].function.parameters",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "description": "x" * 2**18}}
                ]
            },
            "tools",
        ),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice",
        ),
        ({"tools": [ADD], "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)
def test_tools_that_cannot_be_are_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadParameter) as failed:
        tool_use_of(body)
    assert failed.value.details["param"] == param


def test_allowed_tools_are_the_only_ones_offered() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    use = tool_use_of({"tools": [ADD, NOW], "tool_choice": choice})
    assert use is not None
    assert [tool.name for tool in use.tools] == ["now"]
    assert use.choice == "required"
    assert tool_use_of({"tools": [ADD], "tool_choice": "none"}) is None
    assert tool_use_of({"tools": []}) is None


def test_calls_in_messages_are_refused_where_they_mean_nothing(
    client: openai.OpenAI, world: World
) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    for bad, param in (
        ({"role": "user", "content": "x", "tool_calls": [call]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": {}, "content": None}, "messages[0].content"),
        ({"role": "tool", "tool_call_id": "x"}, "messages[0].content"),
    ):
        with pytest.raises(openai.BadRequestError) as failed:
            client.chat.completions.create(
                model="toy",
                messages=[bad],  # type: ignore[list-item]
                tools=[ADD],
            )
        assert failed.value.param == param
    assert world.bank.total_units == 0


def test_langchain_binds_tools_and_reads_calls(world: World) -> None:
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return f"say:the sum is {a + b}"

    chat = ChatOpenAI(base_url=world.base_url, api_key=world.new_key(), model="toy").bind_tools(
        [add]
    )  # type: ignore[arg-type]
    said = chat.invoke(f"say:{CALL}")
    (call,) = said.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 2, "b": 3})
    result = ToolMessage(add.invoke(call["args"]), tool_call_id=call["id"])
    final = chat.invoke([("user", f"say:{CALL}"), said, result])
    assert str(final.content).startswith("the sum is 5")
