"""How does a model write calls and thoughts, and what is left of its text?

By its chat template. transformers' `ResponseParser` finds the parts as the text comes. A model
whose template knows no tools is told of them in a system message, and asked to write as most
models do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from client.gateway.openai.tools import ToolUse, call_of

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_parser import ResponseParser

    from core.engine.weights.tokenizer import Tokenizer

Message = Mapping[str, Any]
_THOUGHT = {"open": "<think>", "close": "</think>"}
_BETWEEN = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True}
#: Marks of a template, and how a model that it is of writes calls. The first that fits counts.
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "[TOOL_CALLS]",
        {"open": "[TOOL_CALLS]", "close_pattern": r"(?=\[TOOL_CALLS\])", "repeats": True},
    ),
    ("<tool_call>", _BETWEEN),
    (
        "<|python_tag|>",
        {
            "open_pattern": r'<\|python_tag\|>|(?=\{"(?:name|type|function)")',
            "close_pattern": r"<\|eom_id\|>|;(?=\s*\{)",
            "repeats": True,
        },
    ),
)
_HOW_TO_CALL = """\
You may call functions. Each is described by a JSON object within <tools></tools>:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": "a_function", "arguments": {{"an_argument": 1}}}}
</tool_call>"""


@dataclass(frozen=True)
class TextParts:
    """A piece of an answer: what is said, what is thought, and calls by name and arguments."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, str], ...] = ()


class PlainParts:
    """An answer that is all text."""

    def push(self, text: str) -> TextParts:
        """What this piece of text adds."""
        return TextParts(text)

    def finish(self) -> TextParts:
        """What was held back."""
        return TextParts()


class FormedParts:
    """An answer that its grammar makes a call, or else what the caller asked for."""

    def __init__(self, use: ToolUse) -> None:
        self._use, self._text = use, ""

    def push(self, text: str) -> TextParts:
        """Nothing: what it is shows at its end."""
        self._text += text
        return TextParts()

    def finish(self) -> TextParts:
        """All of it."""
        calls = self._use.called(self._text)
        return TextParts(self._text) if calls is None else TextParts(calls=tuple(calls))


class WrittenParts:
    """An answer in which the model writes calls or thoughts as it was taught."""

    def __init__(self, parser: ResponseParser, use: ToolUse | None) -> None:
        self._parser, self._use = parser, use
        self._raw, self._has_text, self._has_called = "", False, False

    def push(self, text: str) -> TextParts:
        """What this piece of text completes; nothing while a mark may begin in it."""
        return self._parts(self._parser.feed(text))

    def finish(self) -> TextParts:
        """What was held back: a call that was not ended is one if it can be read."""
        return self._parts(self._parser.finalize()[1])

    def _parts(self, events: Sequence[Mapping[str, Any]]) -> TextParts:
        texts, thoughts, calls = list[str](), list[str](), list[tuple[str, str]]()
        for event in events:
            field, kind = event["field"], event["type"]
            if field == "tool_calls":
                if kind == "region_close":
                    found = self._read(self._raw)
                    texts += [] if found else [self._raw]
                    calls += found
                    self._raw = ""
                elif kind == "region_chunk":
                    self._raw += event["text"]
            elif kind == "region_chunk":
                (thoughts if field == "thought" else texts).append(event["text"])
        if self._use is not None and not self._use.is_parallel:
            calls = [] if self._has_called else calls[:1]
        text = "".join(texts)
        if not self._has_text:  # blanks between marks are not said
            text = text.lstrip()
        self._has_text |= bool(text)
        self._has_called |= bool(calls)
        return TextParts(text, "".join(thoughts), tuple(calls))

    def _read(self, raw: str) -> list[tuple[str, str]]:
        """The calls in what stands at the place of one; none where it cannot be read."""
        name, brace, _ = raw.partition("{")
        name = name.removesuffix("[ARGS]").strip()
        try:
            if name and brace and "[" not in name:  # NAME{…}, as newer Mistral models write
                entries: Any = [{"name": name, "arguments": json.loads(raw[raw.index("{") :])}]
            else:
                entries = json.loads(raw)
        except (ValueError, RecursionError):
            return []
        found = [call_of(one) for one in (entries if isinstance(entries, list) else [entries])]
        return [call for call in found if call is not None]


AnswerParts = PlainParts | FormedParts | WrittenParts


def parts_of(
    tokenizer: Tokenizer, prompt_end: str, use: ToolUse | None, *, is_formed: bool
) -> AnswerParts:
    """What takes an answer to pieces. `is_formed`: its grammar lets calls come, or forces them.

    `prompt_end` is what the chat template puts before the answer: it may have begun a thought.
    """
    if use is not None and is_formed:
        return FormedParts(use)
    template = tokenizer.template_text or ""
    thinks = "<think>" in template and not is_formed
    if use is None and not thinks:
        return PlainParts()
    from transformers.utils.chat_parsing.response_parser import ResponseParser

    begun = "<think>" if thinks and prompt_end.rstrip().endswith("<think>") else ""
    return WrittenParts(ResponseParser(_form(template, use is not None, thinks), begun), use)


def with_tools(
    tokenizer: Tokenizer, messages: Sequence[Message], use: ToolUse | None
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Messages and tools as the model's chat template takes them."""
    shown = [tool.shown() for tool in use.tools] if use is not None else []
    if "tools" in (tokenizer.template_text or ""):
        return [_for_template(message) for message in messages], shown
    folded = [_folded(message) for message in messages]
    if shown:
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in shown)
        how = _HOW_TO_CALL.format(tools=listed)
        if folded and folded[0]["role"] == "system":
            said = folded[0]["content"]
            folded[0] = {"role": "system", "content": f"{said}\n\n{how}"}
        else:
            folded.insert(0, {"role": "system", "content": how})
    return folded, []


def texts_of(messages: Sequence[Message]) -> Iterator[str]:
    """What messages say, arguments of calls included."""
    for message in messages:
        yield message["content"]
        for call in message.get("tool_calls") or ():
            yield call["function"]["arguments"]


def _for_template(message: Message) -> Message:
    """Arguments as objects, which is how templates take them."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _arguments(call)}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _folded(message: Message) -> Message:
    """A message as a template that knows nothing of tools takes it."""
    role, content = message["role"], message["content"]
    if role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        json.dumps({"name": call["function"]["name"], "arguments": _arguments(call)})
        for call in message.get("tool_calls") or ()
    ]
    texts = [content] if content else []
    texts += [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return {"role": role, "content": "\n".join(texts)}


def _arguments(call: Mapping[str, Any]) -> Any:
    arguments = call["function"]["arguments"]
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


@cache
def _form(template: str, calls: bool, thinks: bool) -> Any:
    """How an answer is written, as `ResponseParser` takes it."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    as_is = {"content": "text", "content_args": {"strip": False}, "repeats": True}
    fields: dict[str, Any] = {"text": as_is}
    if calls:
        marks = next((how for mark, how in _CALLS if mark in template), _BETWEEN)
        fields["tool_calls"] = as_is | marks
    if thinks:
        fields["thought"] = as_is | _THOUGHT
    return load_response_template({"start_anchor": "\0", "fields": fields})
