"""Which requests a JSONL file asks for: the OpenAI batch format, line by line, good lines kept beside bad ones.

A line is `{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}`; the body alone is accepted too. A body has
either `messages` or `prompt`, and optionally `max_tokens` / `max_completion_tokens`, `temperature`, `top_k`, `min_p`, `seed`. A
`prompt` is one message of the user; at the URL `/v1/completions` it goes to the model as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from core.protocol.errors import LineInvalid
from core.protocol.types import SamplingParams

MAX_LINE_BYTES = 4 * 2**20
MAX_NEW_TOKENS = 2**20
CHAT_URL, COMPLETION_URL = "/v1/chat/completions", "/v1/completions"
_ENVELOPE = {"custom_id", "method", "url"}
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
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One prompt as a person wrote it. `is_plain`: the one message is text for the model, not a turn of a conversation."""

    line_number: int
    custom_id: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    is_plain: bool = False


@dataclass(frozen=True)
class Defaults:
    """What a line that does not say otherwise gets."""

    max_new_tokens: int = 128
    temperature_micro: int = 0
    seed: int = 0


def read_requests(
    lines: Iterable[str | bytes], defaults: Defaults | None = None
) -> tuple[list[ChatRequest], list[LineInvalid]]:
    """Requests of the good lines, and why each bad line is not one. Blank lines are skipped. Never raises for content."""
    good, bad, seen = [], [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = parse_line(number, line, defaults or Defaults())
            if request.custom_id in seen:
                raise LineInvalid(
                    number, "its custom_id was used before", custom_id=request.custom_id
                )
        except LineInvalid as error:
            bad.append(error)
            continue
        seen.add(request.custom_id)
        good.append(request)
    return good, bad


def parse_line(number: int, line: str | bytes, defaults: Defaults) -> ChatRequest:
    """The request on one line. Raises LineInvalid."""
    entry = _read_object(number, line)
    custom_id = entry.get("custom_id", f"line-{number}")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 200:
        raise LineInvalid(number, "custom_id must be a string of 1 to 200 characters")
    try:
        return _request(number, custom_id, entry, defaults)
    except _Wrong as error:
        raise LineInvalid(number, str(error), custom_id=custom_id) from None


class _Wrong(Exception):
    """Why a line whose custom_id is known is not a request."""


def _read_object(number: int, line: str | bytes) -> dict[str, Any]:
    try:
        data = line if isinstance(line, bytes) else line.encode()
        if len(data) > MAX_LINE_BYTES:
            raise LineInvalid(number, f"the line is longer than {MAX_LINE_BYTES} bytes")
        entry = json.loads(data.decode())
        # JSON may spell half a character ("\\ud800"), which can be neither tokenised, printed nor stored.
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise LineInvalid(number, f"not UTF-8 text: byte {error.start + 1}") from None
    except UnicodeEncodeError:
        raise LineInvalid(number, "it holds half of a surrogate pair") from None
    except RecursionError:
        raise LineInvalid(number, "it is nested too deeply") from None
    except ValueError as error:  # malformed, or a number of thousands of digits
        raise LineInvalid(number, f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise LineInvalid(number, f"a JSON object is needed, this is a {type(entry).__name__}")
    return entry


def _request(
    number: int, custom_id: str, entry: Mapping[str, Any], defaults: Defaults
) -> ChatRequest:
    url = entry.get("url", CHAT_URL)
    if url not in (CHAT_URL, COMPLETION_URL):
        raise _Wrong(f"url {_shown(url)} is not served, only {CHAT_URL} and {COMPLETION_URL}")
    if entry.get("method", "POST") != "POST":
        raise _Wrong(f"method {_shown(entry['method'])} is not POST")
    body = entry.get("body", entry)
    if not isinstance(body, dict):
        raise _Wrong("there is no body object")
    unknown = sorted(body.keys() - _KNOWN - (_ENVELOPE if body is entry else set()))
    if unknown:
        raise _Wrong(f"not supported: {', '.join(map(_shown, unknown[:5]))}")
    if body.get("n") not in (None, 1):
        raise _Wrong("n must be 1: one answer per request")
    return ChatRequest(
        number,
        custom_id,
        _messages(body),
        _sampling(body, defaults),
        is_plain=url == COMPLETION_URL and "prompt" in body,
    )


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    if ("prompt" in body) == ("messages" in body):
        raise _Wrong("either messages or prompt is needed")
    if "prompt" in body:
        prompt = body["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise _Wrong("prompt must be a non-empty string")
        return (Message("user", prompt),)
    entries = body["messages"]
    if not isinstance(entries, list) or not entries:
        raise _Wrong("messages must be a non-empty list")
    return tuple(_message(entry) for entry in entries)


def _message(entry: Any) -> Message:
    role, content = (
        (entry.get("role"), entry.get("content")) if isinstance(entry, dict) else (None, None)
    )
    if role not in _ROLES or not isinstance(content, str):
        raise _Wrong("each message needs a role (system, user, assistant) and a string content")
    return Message(role, content)


def _sampling(body: Mapping[str, Any], defaults: Defaults) -> SamplingParams:
    def given(*names: str, default: int) -> Any:
        return next((body[n] for n in names if body.get(n) is not None), default)

    most = given("max_completion_tokens", "max_tokens", default=defaults.max_new_tokens)
    return SamplingParams(
        temperature_micro=defaults.temperature_micro
        if body.get("temperature") is None
        else _micro("temperature", body["temperature"], 100),
        top_k=_whole("top_k", given("top_k", default=0), 0, 2**31),
        min_p_micro=_micro("min_p", given("min_p", default=0), 1),
        max_new_tokens=_whole("max_tokens", most, 1, MAX_NEW_TOKENS),
        seed=_whole("seed", given("seed", default=defaults.seed), 0, 2**63 - 1),
    )


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _Wrong(f"{name} must be a whole number from {low} to {high}")
    return value


def _micro(name: str, value: Any, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(f"{name} must be a number")
    if not 0 <= value <= high:  # also false for NaN
        raise _Wrong(f"{name} must be from 0 to {high}")
    scaled = Decimal(str(value)) * 10**6
    if scaled != scaled.to_integral_value():
        raise _Wrong(f"{name} must be in steps of a millionth")
    return int(scaled)


def _shown(value: Any) -> str:
    text = str(value)
    return f"'{text[:40]}…'" if len(text) > 40 else f"'{text}'"
