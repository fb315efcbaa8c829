"""What does a request's body ask for? Each field is honoured, ignored with a warning, or refused.

Official clients send more fields every year, so an unknown field is a warning; one that would
change the answer and cannot be honoured is an error.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from client.gateway.errors import BadParameter
from client.gateway.openai.items import ResponseAsked, conversation_of
from client.gateway.openai.tools import MOST_TOOLS, ToolUse, tool_use_of
from client.orders import answer_formats
from client.orders import sampling as sampling_fields
from client.orders.sampling import SamplingInvalid, sampling_of
from core.protocol.errors import UsageError
from core.protocol.foreign import MOST_NAMES, refuse_deep, shown
from core.protocol.types import MICRO, U32, SamplingParams

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
CHAT: Endpoint = "/v1/chat/completions"
COMPLETIONS: Endpoint = "/v1/completions"
RESPONSES: Endpoint = "/v1/responses"
#: Those that a batch may ask.
ENDPOINTS: tuple[Endpoint, ...] = (CHAT, COMPLETIONS)

MOST_CHOICES, MOST_PROMPTS = 4, 128
MOST_TOP_LOGPROBS: dict[str, int] = {CHAT: 20, COMPLETIONS: 5, RESPONSES: 20}
MOST_MESSAGES = 2**14
LEGACY_MAX_TOKENS = 16  # of a text completion that does not say, as that endpoint always had it
_SILENT = frozenset(
    {"model", "messages", "prompt", "n", "stream", "stream_options", "user", "metadata"}
)
_OF_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
_IGNORED = frozenset({"store", "service_tier", "prompt_cache_key", "safety_identifier"})
#: Fields that would change the answer, and the values with which they change nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "use_beam_search": (False,),
}
_REAL = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_ROLES = {"developer": "system", "function": "tool"}


@dataclass(frozen=True)
class RequestBody:
    """A body as values: what the model is told, how tokens are drawn, and the answer's form."""

    endpoint: Endpoint
    model: str
    messages: tuple[Mapping[str, Any], ...]  # of a conversation
    prompts: tuple[str | tuple[int, ...], ...]  # of text completions, as text or token ids
    sampling: SamplingParams
    tools: ToolUse | None  # what the answer may call
    form_param: str  # the field that asks for the sampling's grammar
    response: ResponseAsked | None  # at `/v1/responses`
    said: frozenset[str]  # the fields that say how tokens are drawn
    has_max_tokens: bool
    n: int
    is_stream: bool
    with_usage: bool
    with_running_usage: bool
    warnings: tuple[str, ...]

    def __repr__(self) -> str:  # what people say is private: keep it out of logs and tracebacks
        return f"RequestBody({self.endpoint}, {self.model!r}, n={self.n})"


def read_json(data: bytes) -> dict[str, Any]:
    """A body as a dictionary. Raises UsageError, for half characters too.

    A body of more messages than are taken is refused unread: each has its role, unless a name or a
    value of another field is as well.
    """
    if data.count(b'"role"') > 2 * MOST_MESSAGES:
        raise BadParameter("messages", f"it has more than {MOST_MESSAGES} messages")
    try:
        refuse_deep(data)
        body = msgspec.json.decode(data)
        msgspec.json.encode(body)
    except ValueError as error:  # msgspec's and Unicode's are ValueErrors
        raise UsageError("the request is malformed", f"it is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError("the request is malformed", "a JSON object is needed")
    return body


def read_wanted(
    body: Mapping[str, Any], endpoint: Endpoint, earlier: Sequence[dict[str, Any]] = ()
) -> RequestBody:
    """The request that a body makes at an endpoint. Raises BadParameter.

    At `/v1/responses` it goes on from `earlier` items.
    """
    response = None
    if endpoint == RESPONSES:
        body, response = conversation_of(body, earlier)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadParameter("model", "it must be the name of a model; see /v1/models")
    warnings = _warnings(body)
    n = _whole(body, "n", 1, MOST_CHOICES)
    stream, options = _flag(body, "stream"), _options(body)
    is_chat = endpoint != COMPLETIONS
    if is_chat and body.get("prompt") is not None:
        raise BadParameter("prompt", f"conversations have messages; text goes to {COMPLETIONS}")
    if not is_chat and body.get("messages") is not None:
        raise BadParameter("messages", f"text completions have a prompt; messages go to {CHAT}")
    if not is_chat and body.get("tools"):
        raise BadParameter("tools", f"text completions call nothing; conversations do, at {CHAT}")
    tools = tool_use_of(body) if is_chat else None
    form_param = next((name for name in answer_formats.FIELDS if body.get(name)), "tools")
    sampling = _sampling(body, endpoint)
    if tools is not None:
        sampling = _formed(sampling, tools, form_param)
    return RequestBody(
        endpoint=endpoint,
        model=model,
        messages=_messages(body.get("messages")) if is_chat else (),
        prompts=() if is_chat else _prompts(body.get("prompt")),
        sampling=sampling,
        tools=tools,
        form_param=form_param,
        response=response,
        said=frozenset(f for f in sampling_fields.FIELDS if body.get(f) is not None),
        has_max_tokens=any(
            body.get(f) is not None for f in ("max_tokens", "max_completion_tokens")
        ),
        n=n,
        is_stream=stream,
        with_usage=options.get("include_usage") is True,
        with_running_usage=options.get("continuous_usage_stats") is True,
        warnings=tuple(warnings),
    )


def _warnings(body: Mapping[str, Any]) -> list[str]:
    """Fields that are ignored. Raises BadParameter for one that must not be."""
    found, unknown = [], []
    for name, value in body.items():
        if name in _SILENT | _OF_TOOLS or name in sampling_fields.FIELDS or value is None:
            continue
        if name in _REFUSED:
            if value not in _REFUSED[name]:
                raise BadParameter(name, "this gateway does not offer it")
        elif name in _IGNORED:
            found.append(f"'{name}' is ignored")
        else:
            unknown.append(name)
    if len(unknown) > MOST_NAMES:
        return [*found, f"{shown(unknown)} are not known and were ignored"]
    return [*found, *(f"{shown([name])} is not known and was ignored" for name in unknown)]


def _sampling(body: Mapping[str, Any], endpoint: Endpoint) -> SamplingParams:
    said = {name: value for name, value in body.items() if name in sampling_fields.FIELDS}
    for name in _REAL:  # to the nearest millionth: nobody means more digits than that
        value = said.get(name)
        if isinstance(value, float) and abs(value) < MICRO:
            said[name] = round(value * MICRO) / MICRO
    seed = said.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and -(2**63) <= seed < 0:
        said["seed"] = seed + 2**63
    if said.get("seed") is None:
        said["seed"] = secrets.randbits(63)
    if said.get("stop") == []:
        del said["stop"]
    if endpoint != COMPLETIONS and said.get("logprobs") is not None:
        if not isinstance(said["logprobs"], bool):
            raise BadParameter("logprobs", "it must be true or false")
        if said["logprobs"] is False and said.get("top_logprobs") in (None, 0):
            said.pop("top_logprobs", None)
    if endpoint == COMPLETIONS:
        if said.get("logprobs") is False:
            del said["logprobs"]
        if said.pop("top_logprobs", None) is not None:
            raise BadParameter("top_logprobs", "text completions have a number as logprobs")
    base = SamplingParams(
        temperature_micro=MICRO, max_new_tokens=LEGACY_MAX_TOKENS if endpoint == COMPLETIONS else 1
    )
    try:
        params = sampling_of(said, base)
    except SamplingInvalid as error:
        raise BadParameter(error.field, f"it {error.why}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise BadParameter("sampling", str(error)) from None
    if (params.n_logprobs or 0) > MOST_TOP_LOGPROBS[endpoint]:
        name = "logprobs" if endpoint == COMPLETIONS else "top_logprobs"
        raise BadParameter(name, f"it must be at most {MOST_TOP_LOGPROBS[endpoint]}")
    return params


def _formed(sampling: SamplingParams, tools: ToolUse, form_param: str) -> SamplingParams:
    """Sampling under which an answer calls, or may call, beside the form that is asked for."""
    asked = sampling.grammar
    if tools.choice == "auto" and not asked:
        return sampling
    if tools.choice == "auto" and not asked.startswith("{"):
        raise BadParameter(form_param, "with tools, only a JSON schema can be asked for")
    schema = tools.schema(json.loads(asked) if tools.choice == "auto" else None)
    grammar = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    try:
        return msgspec.structs.replace(sampling, grammar=grammar)
    except ValueError as error:
        raise BadParameter("tools", f"together they cannot be a format: {error}") from None


def _messages(entries: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(entries, list) or not entries:
        raise BadParameter("messages", "it must be a list of at least one message")
    if len(entries) > MOST_MESSAGES:
        raise BadParameter("messages", f"at most {MOST_MESSAGES} in one request")
    return tuple(_message(f"messages[{i}]", entry) for i, entry in enumerate(entries))


def _message(where: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise BadParameter(where, "it must be an object with role and content")
    role = entry.get("role")
    if not isinstance(role, str) or role not in ("system", "user", "assistant", "tool", *_ROLES):
        raise BadParameter(f"{where}.role", "it must be system, developer, user, assistant or tool")
    for name in ("function_call", "audio"):
        if entry.get(name):
            raise BadParameter(f"{where}.{name}", "this gateway does not offer it")
    calls, content = entry.get("tool_calls"), entry.get("content")
    if calls and role != "assistant":
        raise BadParameter(f"{where}.tool_calls", "only an assistant calls")
    said = "" if calls and content is None else _content(where, content)
    found: dict[str, Any] = {"role": _ROLES.get(role, role), "content": said}
    if calls:
        found["tool_calls"] = _calls(f"{where}.tool_calls", calls)
    for name in ("name", "tool_call_id"):
        if isinstance(entry.get(name), str):
            found[name] = entry[name]
    return found


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Calls of an earlier answer, as it had them."""
    if not isinstance(calls, list) or len(calls) > MOST_TOOLS:
        raise BadParameter(where, f"it must be a list of at most {MOST_TOOLS} calls")
    found = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        said = function if isinstance(function, dict) else {}
        name, arguments = said.get("name"), said.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise BadParameter(
                f"{where}[{i}].function", "it must have a name and arguments as text"
            )
        function = {"name": name, "arguments": arguments}
        found.append({"id": str(call.get("id", "")), "type": "function", "function": function})
    return found


def _content(where: str, content: Any) -> str:
    """Text, or typed parts of text, which are joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadParameter(f"{where}.content", "it must be a text, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        place = f"{where}.content[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise BadParameter(f"{place}.type", "only parts of type text are read by this model")
        if not isinstance(part.get("text"), str):
            raise BadParameter(f"{place}.text", "it must be a text")
        texts.append(part["text"])
    return "\n".join(texts)


def _prompts(prompt: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    if isinstance(prompt, str):
        found: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt and _is_ids(prompt):
        found = [prompt]
    elif isinstance(prompt, list) and prompt:
        found = prompt
    else:
        raise BadParameter("prompt", "it must be a text, token ids, or a list of one or the other")
    if len(found) > MOST_PROMPTS:
        raise BadParameter("prompt", f"at most {MOST_PROMPTS} in one request; use a batch for more")
    if not all((isinstance(one, str) and one) or (_is_ids(one) and one) for one in found):
        raise BadParameter("prompt", "each must be a text or token ids, and not empty")
    return tuple(one if isinstance(one, str) else tuple(one) for one in found)


def _is_ids(value: Any) -> bool:
    try:
        msgspec.convert(value, list[U32])
    except msgspec.ValidationError:
        return False
    return True


def _options(body: Mapping[str, Any]) -> Mapping[str, Any]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise BadParameter("stream_options", "it must be an object")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name, False), bool | None):
            raise BadParameter(f"stream_options.{name}", "it must be true or false")
    return options


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadParameter(name, "it must be true or false")
    return bool(value)


def _whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = body.get(name)
    if value is None:
        return low
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadParameter(name, f"it must be a whole number from {low} to {high}")
    return value
