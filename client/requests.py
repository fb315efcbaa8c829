"""Which requests a JSONL file asks for: the OpenAI batch format, line by line, good lines kept beside bad ones.

A line is `{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}`; the body alone is accepted too. A body has
`messages` or `prompt`, and optionally `max_tokens` / `max_completion_tokens`, `temperature`, `top_k`, `min_p`, `seed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from core.protocol.errors import LineInvalid
from core.protocol.types import SamplingParams

MAX_LINE_BYTES = 4 * 2**20
MAX_NEW_TOKENS = 2**20
_IGNORED = {"model", "stream", "user", "metadata", "n"}
_KNOWN = _IGNORED | {
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_k",
    "min_p",
    "seed",
}
_ROLES = {"system", "user", "assistant"}


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One prompt as a person wrote it."""

    line_number: int
    custom_id: str
    messages: tuple[Message, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Defaults:
    """What a line that does not say otherwise gets."""

    max_new_tokens: int = 128
    temperature_micro: int = 0
    seed: int = 0


def read_requests(
    lines: Iterable[str], defaults: Defaults | None = None
) -> tuple[list[ChatRequest], list[LineInvalid]]:
    """Requests of the good lines, and why each bad line is not one. Blank lines are skipped. Never raises for content."""
    good, bad, seen = [], [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = parse_line(number, line, defaults or Defaults())
            if request.custom_id in seen:
                raise LineInvalid(number, f"custom_id '{request.custom_id}' was used before")
        except LineInvalid as error:
            bad.append(error)
            continue
        seen.add(request.custom_id)
        good.append(request)
    return good, bad


def parse_line(number: int, line: str, defaults: Defaults) -> ChatRequest:
    """The request on one line. Raises LineInvalid."""
    if len(line.encode(errors="replace")) > MAX_LINE_BYTES:
        raise LineInvalid(number, f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LineInvalid(number, f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise LineInvalid(number, f"a JSON object is needed, this is a {type(entry).__name__}")
    custom_id = entry.get("custom_id", f"line-{number}")
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > 200:
        raise LineInvalid(number, "custom_id must be a string of 1 to 200 characters")
    url = entry.get("url", "/v1/chat/completions")
    if url not in ("/v1/chat/completions", "/v1/completions"):
        raise LineInvalid(number, f"url '{url}' is not served", custom_id=custom_id)
    body = entry.get("body", None if "custom_id" in entry and "url" in entry else entry)
    if not isinstance(body, dict):
        raise LineInvalid(number, "there is no body object", custom_id=custom_id)
    unknown = sorted(set(body) - _KNOWN - {"custom_id", "method", "url"})
    if unknown:
        raise LineInvalid(
            number, f"not supported: {', '.join(map(str, unknown))}", custom_id=custom_id
        )
    return ChatRequest(
        number, custom_id, _messages(number, custom_id, body), _sampling(number, body, defaults)
    )


def _messages(number: int, custom_id: str, body: Mapping[str, Any]) -> tuple[Message, ...]:
    if "prompt" in body and "messages" not in body:
        prompt = body["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise LineInvalid(number, "prompt must be a non-empty string", custom_id=custom_id)
        return (Message("user", prompt),)
    entries = body.get("messages")
    if not isinstance(entries, list) or not entries:
        raise LineInvalid(number, "messages must be a non-empty list", custom_id=custom_id)
    messages = []
    for entry in entries:
        role = entry.get("role") if isinstance(entry, dict) else None
        content = entry.get("content") if isinstance(entry, dict) else None
        if role not in _ROLES or not isinstance(content, str):
            raise LineInvalid(
                number,
                "each message needs a role (system, user, assistant) and a string content",
                custom_id=custom_id,
            )
        messages.append(Message(role, content))
    return tuple(messages)


def _sampling(number: int, body: Mapping[str, Any], defaults: Defaults) -> SamplingParams:
    limit = body.get("max_completion_tokens", body.get("max_tokens", defaults.max_new_tokens))
    temperature = defaults.temperature_micro
    if body.get("temperature") is not None:
        temperature = _micro(number, "temperature", body["temperature"], 100)
    return SamplingParams(
        temperature_micro=temperature,
        top_k=_whole(number, "top_k", body.get("top_k") or 0, 0, 2**31),
        min_p_micro=_micro(number, "min_p", body.get("min_p") or 0, 1),
        max_new_tokens=_whole(number, "max_tokens", limit, 1, MAX_NEW_TOKENS),
        seed=_whole(
            number,
            "seed",
            defaults.seed if body.get("seed") is None else body["seed"],
            0,
            2**63 - 1,
        ),
    )


def _whole(number: int, name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise LineInvalid(number, f"{name} must be a whole number from {low} to {high}")
    return value


def _micro(number: int, name: str, value: Any, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LineInvalid(number, f"{name} must be a number")
    try:
        scaled = Decimal(str(value)) * 10**6
        exact = scaled == scaled.to_integral_value()
    except InvalidOperation:
        exact = False
    if not exact or not 0 <= scaled <= high * 10**6:
        raise LineInvalid(number, f"{name} must be 0 to {high} in steps of a millionth")
    return int(scaled)
