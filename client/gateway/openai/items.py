"""How does a body of `/v1/responses` become a conversation, and which items does an answer become?

A body is read as the conversation that says the same (`fields`). Its items, and those of its
answer, are what a later body goes on from by `previous_response_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.gateway.errors import BadParameter

Json = dict[str, Any]
#: Fields that are told back in a response, with what they are where nothing is said.
_TOLD: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "user": None,
}
_REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "n": (1,),
}
_AS_IS = frozenset({"metadata", "parallel_tool_calls", "temperature", "top_p", "user"})
#: Said in another way to a conversation, or of no effect here.
_SILENT = ("input", "store", "include", "truncation", "reasoning", "stream_options")
_OURS = frozenset((*_TOLD, *_AS_IS, *_REFUSED, *_SILENT))
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")


@dataclass(frozen=True)
class ResponseAsked:
    """What a response tells of its request, and keeps of it."""

    told: Json
    items: tuple[Json, ...]  # of this request alone
    is_kept: bool

    def __repr__(self) -> str:  # what people say is private
        return f"ResponseAsked({len(self.items)} items)"


def conversation_of(
    body: Mapping[str, Any], earlier: Iterable[Json] = ()
) -> tuple[Json, ResponseAsked]:
    """The conversation that says what this body and the items before it do. Raises BadParameter."""
    for name, harmless in _REFUSED.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise BadParameter(name, "this gateway does not offer it")
    store = body.get("store")
    if store is not None and not isinstance(store, bool):
        raise BadParameter("store", "it must be true or false")
    items = _items(body.get("input"))
    messages = _messages([*earlier, *items])
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise BadParameter("instructions", "it must be a text")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    found: Json = {name: value for name, value in body.items() if name not in _OURS}
    found |= {name: body[name] for name in _AS_IS if body.get(name) is not None}
    found |= {
        "messages": messages,
        "max_completion_tokens": body.get("max_output_tokens"),
        "tools": _tools(body.get("tools")),
        "tool_choice": _tool_choice(body.get("tool_choice")),
        "response_format": _format(body.get("text")),
    }
    told = {name: value if body.get(name) is None else body[name] for name, value in _TOLD.items()}
    return found, ResponseAsked(told, tuple(items), store is not False)


def _items(asked: Any) -> list[Json]:
    if isinstance(asked, str):
        return [{"type": "message", "role": "user", "content": asked}]
    if not isinstance(asked, list) or not asked:
        raise BadParameter("input", "it must be a text, or a list of at least one item")
    for number, item in enumerate(asked):
        if not isinstance(item, dict):
            raise BadParameter(f"input[{number}]", "it must be an object")
    return [{"type": "message", **item} for item in asked]


def _messages(items: Sequence[Json]) -> list[Json]:
    found: list[Json] = []
    for number, item in enumerate(items):
        where, kind = f"input[{number}]", item["type"]
        if kind == "message":
            content = _text(f"{where}.content", item.get("content"))
            found.append({"role": item.get("role"), "content": content})
        elif kind == "function_call":
            call = _call(where, item)
            if not (found and found[-1].get("tool_calls")):
                if not (found and found[-1]["role"] == "assistant"):
                    found.append({"role": "assistant", "content": ""})
                found[-1]["tool_calls"] = []
            found[-1]["tool_calls"].append(call)
        elif kind == "function_call_output":
            output = _text(f"{where}.output", item.get("output"))
            named = str(item.get("call_id", ""))
            found.append({"role": "tool", "tool_call_id": named, "content": output})
        elif kind != "reasoning":  # what was thought is not said again
            raise BadParameter(f"{where}.type", "only messages, calls and their outputs are read")
    return found


def _call(where: str, item: Json) -> Json:
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise BadParameter(where, "a function_call has a name and arguments, as texts")
    function = {"name": name, "arguments": arguments}
    return {"id": str(item.get("call_id", "")), "type": "function", "function": function}


def _text(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadParameter(where, "it must be a text, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind else None
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise BadParameter(f"{where}[{index}]", "only parts of text are read by this model")
        texts.append(text)
    return "\n".join(texts)


def _tools(tools: Any) -> Any:
    """Functions as a conversation has them; what is no list is refused there."""
    if not isinstance(tools, list):
        return tools
    found = []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise BadParameter(f"tools[{number}].type", "only functions are offered to the model")
        about = {name: tool.get(name) for name in ("name", "description", "parameters")}
        found.append({"type": "function", "function": about})
    return found


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        tools = [{"function": tool} for tool in choice["tools"]]
        allowed = {"mode": choice.get("mode", "auto"), "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _format(text: Any) -> Any:
    if text is None:
        return None
    if not isinstance(text, dict):
        raise BadParameter("text", "it must be an object with a format")
    asked = text.get("format")
    if isinstance(asked, dict) and asked.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": asked}
    return asked
