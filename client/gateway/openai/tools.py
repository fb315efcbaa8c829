"""Which functions may an answer call, must it call one, and what did it call?

Where it must, or must else be of a form, its grammar is a JSON schema of the calls. Else the model
decides, and its calls are found in its text (`dialects`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from client.gateway.errors import BadParameter

Json = dict[str, Any]
MOST_TOOLS, MOST_TOOL_BYTES = 128, 2**18
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


@dataclass(frozen=True)
class Tool:
    """A function that the caller offers."""

    name: str
    description: str
    parameters: Json  # a JSON schema of an object

    def shown(self) -> Json:
        """As chat templates take it."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}


@dataclass(frozen=True)
class ToolUse:
    """The functions of a request, and what it says of calling them."""

    tools: tuple[Tool, ...]
    choice: Literal["auto", "required"]
    is_parallel: bool

    def schema(self, else_schema: Json | None = None) -> Json:
        """Of an answer that calls them, or follows `else_schema` where that is given."""
        parts = {f"tool_{i}": tool.parameters for i, tool in enumerate(self.tools)}
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "arguments": {"$ref": f"#/$defs/tool_{i}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for i, tool in enumerate(self.tools)
        ]
        answers: list[Json] = calls
        if self.is_parallel:
            answers = [{"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": 16}]
        if else_schema is not None:
            parts["answer"] = else_schema
            answers = [{"$ref": "#/$defs/answer"}, *answers]
        placed = {name: _placed(part, f"#/$defs/{name}") for name, part in parts.items()}
        return {"anyOf": answers, "$defs": placed}

    def called(self, text: str) -> list[tuple[str, str]] | None:
        """Names and arguments, as JSON, of the calls that a text by `schema` is; None for none."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        entries = value if isinstance(value, list) else [value]
        known = {tool.name for tool in self.tools}
        for entry in entries:
            is_call = isinstance(entry, dict) and entry.keys() == {"name", "arguments"}
            if not is_call or entry["name"] not in known:
                return None
        return [call for entry in entries if (call := call_of(entry))] or None


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer makes; `arguments` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str

    def json(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def call_id(answer: str, number: int) -> str:
    """Of a call of this answer: the same when the answer is read again."""
    digest = hashlib.sha256(f"{answer}/{number}".encode()).hexdigest()
    return f"call_{digest[:24]}"


def call_of(entry: Any) -> tuple[str, str] | None:
    """Name and arguments of a call as models write them, {"name": …, "arguments": {…}}."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return None
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if isinstance(arguments, str):
        return entry["name"], arguments
    if not isinstance(arguments, dict):
        return None
    return entry["name"], json.dumps(arguments, ensure_ascii=False)


def tool_use_of(body: Mapping[str, Any]) -> ToolUse | None:
    """What a body says of tools; None where nothing may be called. Raises BadParameter."""
    tools = _tools(body.get("tools"))
    choice, names = _choice(body.get("tool_choice"))
    is_parallel = body.get("parallel_tool_calls")
    if is_parallel is not None and not isinstance(is_parallel, bool):
        raise BadParameter("parallel_tool_calls", "it must be true or false")
    known = {tool.name for tool in tools}
    for name in names or ():
        if name not in known:
            raise BadParameter("tool_choice", f"there is no tool '{name[:64]}'")
    if choice == "required" and not tools:
        raise BadParameter("tool_choice", "there are no tools")
    if names is not None:
        tools = tuple(tool for tool in tools if tool.name in names)
    if choice == "none" or not tools:
        return None
    return ToolUse(tools, choice, is_parallel is not False and len(names or "12") > 1)


def _tools(entries: Any) -> tuple[Tool, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or len(entries) > MOST_TOOLS:
        raise BadParameter("tools", f"it must be a list of at most {MOST_TOOLS} functions")
    found = [_tool(f"tools[{i}]", entry) for i, entry in enumerate(entries)]
    if len({tool.name for tool in found}) < len(found):
        raise BadParameter("tools", "each must have a name of its own")
    if len(json.dumps([tool.shown() for tool in found])) > MOST_TOOL_BYTES:
        raise BadParameter("tools", f"together they have at most {MOST_TOOL_BYTES} bytes")
    return tuple(found)


def _tool(where: str, entry: Any) -> Tool:
    if not isinstance(entry, dict) or entry.get("type") != "function":
        raise BadParameter(f"{where}.type", "only functions are offered to the model")
    function = entry.get("function")
    if not isinstance(function, dict):
        raise BadParameter(f"{where}.function", "it must be an object with a name")
    name, about = function.get("name"), function.get("description") or ""
    if not isinstance(name, str) or not _NAME.match(name):
        why = "it must be 1 to 64 letters, digits, underscores or hyphens"
        raise BadParameter(f"{where}.function.name", why)
    if not isinstance(about, str):
        raise BadParameter(f"{where}.function.description", "it must be a text")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise BadParameter(f"{where}.function.parameters", "it must be a JSON schema")
    return Tool(name, about, parameters)


def _choice(value: Any) -> tuple[Literal["none", "auto", "required"], Sequence[str] | None]:
    """How it is to be called, and the only ones that may be, if some are named."""
    if value is None or value == "auto":
        return "auto", None
    if value == "none":
        return "none", None
    if value == "required":
        return "required", None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function" and isinstance(value.get("function"), dict):
        name = value["function"].get("name")
        if isinstance(name, str):
            return "required", (name,)
    if kind == "allowed_tools" and isinstance(value.get("allowed_tools"), dict):
        allowed = value["allowed_tools"]
        listed, mode = allowed.get("tools"), allowed.get("mode", "auto")
        if isinstance(listed, list) and mode in ("auto", "required"):
            functions = [one.get("function") for one in listed if isinstance(one, dict)]
            names = [one.get("name") for one in functions if isinstance(one, dict)]
            if names and all(isinstance(name, str) for name in names):
                return mode, [str(name) for name in names]
    why = "it must be none, auto, required, or an object that names a function or allowed tools"
    raise BadParameter("tool_choice", why)


def _placed(part: Any, place: str) -> Any:
    """A schema whose own references hold where it stands within another."""
    if isinstance(part, list):
        return [_placed(one, place) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _placed(value, place)
        for key, value in part.items()
    }
