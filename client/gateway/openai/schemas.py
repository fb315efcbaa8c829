"""What does `/openapi.json` say of bodies and answers? JSON schemas of the fields we honour."""

from __future__ import annotations

from typing import Any

from client.gateway.openai.fields import ENDPOINTS, MOST_CHOICES
from client.gateway.openai.tools import MOST_TOOLS

Json = dict[str, Any]


def _kind(name: str, *, nullable: bool = False, **more: Any) -> Json:
    return {"type": [name, "null"] if nullable else name, **more}


def _real(low: float, high: float) -> Json:
    return _kind("number", nullable=True, minimum=low, maximum=high)


def _whole(low: int, high: int) -> Json:
    return _kind("integer", nullable=True, minimum=low, maximum=high)


def _object(*required: str, **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


_TEXT, _WORD = _kind("string"), _kind("string", minLength=1)
_FLAG = _kind("boolean", nullable=True)
_TEXTS = _kind("array", items=_WORD, maxItems=16)
_BIASES: Json = {
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": _kind("number", minimum=-100, maximum=100),
}
_STREAM_OPTIONS = {
    "include_usage": _kind("boolean"),
    "continuous_usage_stats": _kind("boolean"),
}
_JSON_SCHEMA = _object("schema", schema=_kind("object"))
_FORMAT: Json = {
    "anyOf": [
        _object("type", type={"enum": ["text", "json_object"]}),
        _object("type", "json_schema", type={"const": "json_schema"}, json_schema=_JSON_SCHEMA),
        {"type": "null"},
    ]
}
_OUTPUTS = _kind(
    "object",
    nullable=True,
    properties={
        "json": {"type": ["object", "string"]},
        "regex": _WORD,
        "choice": _kind("array", minItems=1, items=_WORD),
        "grammar": _WORD,
    },
    minProperties=1,
    maxProperties=1,
    additionalProperties=False,
)
_SAMPLING: Json = {
    "model": _WORD,
    "max_tokens": _whole(1, 2**20),
    "temperature": _real(0, 100),
    "top_p": _kind("number", nullable=True, exclusiveMinimum=0, maximum=1),
    "top_k": _whole(0, 2**31),
    "min_p": _real(0, 1),
    "seed": _whole(-(2**63), 2**63 - 1),
    "stop": {"anyOf": [_WORD, _TEXTS, {"type": "null"}]},
    "n": _whole(1, MOST_CHOICES),
    "stream": _FLAG,
    "stream_options": _kind("object", nullable=True, properties=_STREAM_OPTIONS),
    "logit_bias": _kind("object", nullable=True, **_BIASES),
    "presence_penalty": _real(-2, 2),
    "frequency_penalty": _real(-2, 2),
    "repetition_penalty": _real(0.1, 10),
    "min_tokens": _whole(0, 2**20),
    "ignore_eos": _FLAG,
    "response_format": _FORMAT,
    "structured_outputs": _OUTPUTS,
    "user": _kind("string", nullable=True),
}
_PART = _object("type", "text", type={"const": "text"}, text=_TEXT)
_CALLED = _object("name", "arguments", name=_TEXT, arguments=_TEXT)
_CALL = _object("function", function=_CALLED)
_SPEAKER = _object(
    "role",
    "content",
    role={"enum": ["system", "developer", "user", "assistant", "tool"]},
    content={"anyOf": [_TEXT, _kind("array", minItems=1, items=_PART)]},
)
_CALLER = _object(
    "role",
    "tool_calls",
    role={"const": "assistant"},
    tool_calls=_kind("array", minItems=1, maxItems=MOST_TOOLS, items=_CALL),
)
_MESSAGE: Json = {"anyOf": [_SPEAKER, _CALLER]}
_FUNCTION = _object(
    "name",
    name=_kind("string", pattern="^[a-zA-Z0-9_-]{1,64}$"),
    description=_kind("string", nullable=True),
    parameters=_kind("object", nullable=True),
)
_TOOL = _object("type", "function", type={"const": "function"}, function=_FUNCTION)
_NAMED = _object(
    "type", "function", type={"const": "function"}, function=_object("name", name=_WORD)
)
CHAT_BODY = _object(
    "model",
    "messages",
    **_SAMPLING,
    messages=_kind("array", minItems=1, items=_MESSAGE),
    max_completion_tokens=_whole(1, 2**20),
    logprobs=_FLAG,
    top_logprobs=_whole(0, 20),
    tools=_kind("array", nullable=True, maxItems=MOST_TOOLS, items=_TOOL),
    tool_choice={"anyOf": [{"enum": ["none", "auto", "required", None]}, _NAMED]},
    parallel_tool_calls=_FLAG,
)
_IDS = _kind("array", minItems=1, items=_kind("integer", minimum=0))
_LISTS = [_kind("array", minItems=1, items=items) for items in (_WORD, _IDS)]
COMPLETION_BODY = _object(
    "model",
    "prompt",
    **_SAMPLING,
    prompt={"anyOf": [_WORD, _LISTS[0], _IDS, _LISTS[1]]},
    logprobs=_whole(0, 5),
)
_ITEM = _kind("object", properties={"type": _kind("string")})
_FLAT_TOOL = _object(
    "type",
    "name",
    type={"const": "function"},
    name=_kind("string", pattern="^[a-zA-Z0-9_-]{1,64}$"),
    description=_kind("string", nullable=True),
    parameters=_kind("object", nullable=True),
)
RESPONSE_BODY = _object(
    "model",
    "input",
    model=_WORD,
    input={"anyOf": [_WORD, _kind("array", minItems=1, items=_ITEM)]},
    instructions=_kind("string", nullable=True),
    max_output_tokens=_whole(1, 2**20),
    temperature=_real(0, 100),
    top_p=_kind("number", nullable=True, exclusiveMinimum=0, maximum=1),
    tools=_kind("array", nullable=True, maxItems=MOST_TOOLS, items=_FLAT_TOOL),
    text=_kind("object", nullable=True),
    previous_response_id=_kind("string", nullable=True),
    store=_FLAG,
    stream=_FLAG,
)
_METADATA: Json = {"maxProperties": 16, "additionalProperties": _kind("string", maxLength=512)}
BATCH_BODY = _object(
    "input_file_id",
    "endpoint",
    "completion_window",
    input_file_id=_TEXT,
    endpoint={"enum": list(ENDPOINTS)},
    completion_window={"const": "24h"},
    metadata=_kind("object", nullable=True, **_METADATA),
)
FILE_BODY = _object(
    "file",
    "purpose",
    file=_kind("string", format="binary"),
    purpose={"enum": ["batch", "batch_output"]},
)
_PARAM = _kind("string", nullable=True)
ERROR = _object(
    "error",
    error=_object(
        "message",
        "type",
        "param",
        "code",
        **{"message": _TEXT, "type": _TEXT, "param": _PARAM, "code": _TEXT},
    ),
)
_USAGE: Json = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
}
COMPLETION = _object(
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    id=_TEXT,
    object={"enum": ["chat.completion", "text_completion"]},
    choices=_kind("array", minItems=1),
    usage=_USAGE,
)
LIST = _object("object", "data", object={"const": "list"}, data=_kind("array"))


def object_of(kind: str) -> Json:
    """An object that says what it is."""
    return _object("id", "object", id=_TEXT, object={"const": kind})


def body_of(schema: Json, content_type: str = "application/json") -> Json:
    """`openapi_extra` of an operation that takes this body."""
    content = {content_type: {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


_MEANING = {
    400: "A field cannot be honoured; `error.param` names it.",
    401: "No such key, or it is expired or revoked.",
    402: "Not enough money or budget; nothing was spent.",
    403: "The key may not use this model.",
    404: "No such object.",
    405: "The endpoint has other methods.",
    409: "A twin of the request is being answered, or was broken off.",
    413: "The body is too large.",
    422: "The Idempotency-Key was used for another request, or an answer failed its checks.",
    429: "Too many requests; `Retry-After` says when.",
    500: "A bug on the gateway's side.",
    502: "Miners misbehaved.",
    503: "Nobody serves this now, or the chain does not answer.",
    504: "The deadline passed.",
}


def responses(ok: Json, *codes: int) -> dict[int | str, Json]:
    """What an operation answers: this when it succeeds, and an error of each of these."""
    found: dict[int | str, Json] = {
        200: {"description": "Done.", "content": {"application/json": {"schema": ok}}}
    }
    for code in codes:
        found[code] = {
            "description": _MEANING[code],
            "content": {"application/json": {"schema": ERROR}},
        }
    return found
