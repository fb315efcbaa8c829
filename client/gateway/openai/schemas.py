"""What does `/openapi.json` say of bodies and answers? JSON schemas of the fields we honour."""

from __future__ import annotations

from typing import Any

from client.gateway.openai.fields import ENDPOINTS, MOST_CHOICES

Json = dict[str, Any]


def _real(low: float, high: float) -> Json:
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def _whole(low: int, high: int) -> Json:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


_TEXTS: Json = {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 16}
_SAMPLING: Json = {
    "model": {"type": "string", "minLength": 1},
    "max_tokens": _whole(1, 2**20),
    "temperature": _real(0, 100),
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "top_k": _whole(0, 2**31),
    "min_p": _real(0, 1),
    "seed": _whole(-(2**63), 2**63 - 1),
    "stop": {"anyOf": [{"type": "string", "minLength": 1}, _TEXTS, {"type": "null"}]},
    "n": _whole(1, MOST_CHOICES),
    "stream": {"type": ["boolean", "null"]},
    "stream_options": {
        "type": ["object", "null"],
        "properties": {
            "include_usage": {"type": "boolean"},
            "continuous_usage_stats": {"type": "boolean"},
        },
    },
    "logit_bias": {
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "presence_penalty": _real(-2, 2),
    "frequency_penalty": _real(-2, 2),
    "repetition_penalty": _real(0.1, 10),
    "min_tokens": _whole(0, 2**20),
    "ignore_eos": {"type": ["boolean", "null"]},
    "user": {"type": ["string", "null"]},
}
_MESSAGE: Json = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        },
    },
}
CHAT_BODY: Json = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        **_SAMPLING,
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "max_completion_tokens": _whole(1, 2**20),
        "logprobs": {"type": ["boolean", "null"]},
        "top_logprobs": _whole(0, 20),
    },
}
_IDS: Json = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
COMPLETION_BODY: Json = {
    "type": "object",
    "required": ["model", "prompt"],
    "properties": {
        **_SAMPLING,
        "prompt": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                _IDS,
                {"type": "array", "minItems": 1, "items": _IDS},
            ]
        },
        "logprobs": _whole(0, 5),
    },
}
BATCH_BODY: Json = {
    "type": "object",
    "required": ["input_file_id", "endpoint", "completion_window"],
    "properties": {
        "input_file_id": {"type": "string"},
        "endpoint": {"enum": list(ENDPOINTS)},
        "completion_window": {"const": "24h"},
        "metadata": {
            "type": ["object", "null"],
            "maxProperties": 16,
            "additionalProperties": {"type": "string", "maxLength": 512},
        },
    },
}
FILE_BODY: Json = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": ["batch", "batch_output"]},
    },
}
ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_USAGE: Json = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
}
COMPLETION: Json = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"enum": ["chat.completion", "text_completion"]},
        "choices": {"type": "array", "minItems": 1},
        "usage": _USAGE,
    },
}
LIST: Json = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array"}},
}


def object_of(kind: str) -> Json:
    """An object that says what it is."""
    return {
        "type": "object",
        "required": ["id", "object"],
        "properties": {"id": {"type": "string"}, "object": {"const": kind}},
    }


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
