"""Are calls and thoughts found in what models write, whatever they come in pieces of?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client.gateway.openai.dialects import TextParts, parts_of, texts_of, with_tools
from client.gateway.openai.tools import Tool, ToolUse
from core.engine.weights.tokenizer import Tokenizer
from devnet.models.tiny_models import write_tiny_tokenizer

ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {}, "b": {}}})
USE = ToolUse((ADD,), "auto", True)
ARGUMENTS = json.dumps({"a": 2, "b": [3, "}"]})
QWEN = "{{ tools }} <tool_call> <think> {{ messages }}"
LLAMA = "{{ tools }} <|python_tag|> {{ messages }}"
MISTRAL = "{{ tools }} [TOOL_CALLS] {{ messages }}"


def with_template(folder: Path, template: str) -> Tokenizer:
    write_tiny_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return Tokenizer(folder)


def taken(tokenizer: Tokenizer, text: str, size: int, prompt_end: str = "") -> TextParts:
    """All that an answer comes to, in pieces of this many characters."""
    parts = parts_of(tokenizer, prompt_end, USE, is_formed=False)
    found = [parts.push(text[at : at + size]) for at in range(0, len(text), size)]
    found.append(parts.finish())
    calls = tuple(call for part in found for call in part.calls)
    return TextParts("".join(p.text for p in found), "".join(p.thought for p in found), calls)


CALL = f'{{"name": "add", "arguments": {ARGUMENTS}}}'
ONE = (("add", ARGUMENTS),)
WRITTEN: list[tuple[str, str, TextParts]] = [
    (QWEN, f"<tool_call>\n{CALL}\n</tool_call>", TextParts(calls=ONE)),
    (QWEN, f"I add.\n<tool_call>\n{CALL}\n</tool_call>", TextParts("I add.\n", calls=ONE)),
    (QWEN, f"<tool_call>{CALL}</tool_call><tool_call>{CALL}", TextParts(calls=ONE * 2)),
    (QWEN, f"<think>\nso\n</think>\n\n<tool_call>{CALL}</tool_call>", TextParts("", "\nso\n", ONE)),
    (QWEN, "<think>a < b</think>\n\nyes", TextParts("yes", "a < b")),
    (QWEN, "no call, <b>only</b> text", TextParts("no call, <b>only</b> text")),
    (LLAMA, f"<|python_tag|>{CALL.replace('arguments', 'parameters')}", TextParts(calls=ONE)),
    (LLAMA, CALL.replace("arguments", "parameters"), TextParts(calls=ONE)),
    (LLAMA, 'An object is {"a": 1}.', TextParts('An object is {"a": 1}.')),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", TextParts(calls=ONE * 2)),
    (
        MISTRAL,
        f"[TOOL_CALLS]add[ARGS]{ARGUMENTS}[TOOL_CALLS]add{ARGUMENTS}",
        TextParts(calls=ONE * 2),
    ),
    ("{{ messages }}", f"<tool_call>{CALL}</tool_call>", TextParts(calls=ONE)),
]


@pytest.mark.parametrize("number", range(len(WRITTEN)))
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_thoughts_and_text_are_told_apart(tmp_path: Path, number: int, size: int) -> None:
    template, text, expected = WRITTEN[number]
    assert taken(with_template(tmp_path, template), text, size) == expected


def test_a_thought_may_begin_in_the_prompt(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, QWEN)
    found = taken(tokenizer, "so so</think>yes", 2, "<|im_start|>assistant\n<think>\n")
    assert found == TextParts("yes", "so so")


def test_a_template_that_knows_tools_gets_them_with_objects_as_arguments(tmp_path: Path) -> None:
    tokenizer = with_template(
        tmp_path, "{{ tools | tojson }}{{ messages[0].tool_calls[0].function.arguments.a }}"
    )
    function = {"name": "add", "arguments": ARGUMENTS}
    call: dict[str, Any] = {"id": "x", "type": "function", "function": function}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages, tools = with_tools(tokenizer, [said], USE)
    assert tokenizer.render_chat(messages, tools) == json.dumps([ADD.shown()]) + "2"
    assert list(texts_of([said])) == ["", ARGUMENTS]


def test_a_template_that_knows_none_is_told_in_words(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    function = {"name": "add", "arguments": "not JSON"}
    asked = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": function}]},
        {"role": "tool", "tool_call_id": "x", "content": "5"},
    ]
    messages, tools = with_tools(tokenizer, asked, USE)
    assert tools == []
    text = tokenizer.render_chat(messages)
    for part in (
        "Be brief.\n\nYou may call functions.",
        json.dumps(ADD.shown()["function"]),
        '<tool_call>\n{"name": "add", "arguments": "not JSON"}\n</tool_call>',
        "<tool_response>\n5\n</tool_response>",
    ):
        assert part in text
    plain, _ = with_tools(tokenizer, asked[1:2], USE)
    assert plain[0]["role"] == "system" and plain[0]["content"].startswith("You may call")
    assert with_tools(tokenizer, asked[:2], None)[0] == asked[:2]
