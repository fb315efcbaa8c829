"""Which requests does a JSONL file in the OpenAI batch format ask for, beside its bad lines?

A line is `{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}`, or the
body alone. A body has either `messages` or `prompt`, and any fields of `client/orders/sampling.py`.
A `prompt` is one message of the user; at the URL `/v1/completions` it goes to the model as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from client.orders import sampling
from client.orders.sampling import SamplingInvalid, sampling_of
from core.protocol.errors import LineInvalid
from core.protocol.types import SamplingParams

MAX_LINE_BYTES = 4 * 2**20
CHAT_URL, COMPLETION_URL = "/v1/chat/completions", "/v1/completions"
_ENVELOPE = {"custom_id", "method", "url"}
_IGNORED = {"model", "stream", "user", "metadata", "n"}
_KNOWN = _IGNORED | {"messages", "prompt"} | sampling.FIELDS
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """One prompt as it was written. `is_plain`: its one message goes to the model as it is."""

    line_number: int
    custom_id: str
    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    is_plain: bool = False


def read_requests(
    lines: Iterable[str | bytes], defaults: SamplingParams
) -> tuple[list[ChatRequest], list[LineInvalid]]:
    """Requests of the good lines, and why each bad line is not one; blank lines are skipped.

    A line that does not say how to sample gets the `defaults`. Raises for no content.
    """
    good, bad, seen = [], [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = parse_line(number, line, defaults)
            if request.custom_id in seen:
                why = "its custom_id was used before"
                raise LineInvalid(number, why, custom_id=request.custom_id)
        except LineInvalid as error:
            bad.append(error)
            continue
        seen.add(request.custom_id)
        good.append(request)
    return good, bad


def parse_line(number: int, line: str | bytes, defaults: SamplingParams) -> ChatRequest:
    """The request on one line. Raises LineInvalid."""
    entry = _read_object(number, line)
    custom_id = entry.get("custom_id", f"line-{number}")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 200:
        raise LineInvalid(number, "custom_id must be a string of 1 to 200 characters")
    try:
        return _request(number, custom_id, entry, defaults)
    except (_Wrong, SamplingInvalid) as error:
        raise LineInvalid(number, str(error), custom_id=custom_id) from None


class _Wrong(Exception):
    """Why a line whose custom_id is known is not a request."""


def _read_object(number: int, line: str | bytes) -> dict[str, Any]:
    try:
        data = line if isinstance(line, bytes) else line.encode()
        if len(data) > MAX_LINE_BYTES:
            raise LineInvalid(number, f"the line is longer than {MAX_LINE_BYTES} bytes")
        entry = json.loads(data.decode())
        # JSON may spell half a character ("\\ud800"), which cannot be tokenised or stored.
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
    number: int, custom_id: str, entry: Mapping[str, Any], defaults: SamplingParams
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
        sampling_of(body, defaults),
        is_plain=url == COMPLETION_URL and "prompt" in body,
    )


def _messages(body: Mapping[str, Any]) -> tuple[ChatMessage, ...]:
    if ("prompt" in body) == ("messages" in body):
        raise _Wrong("either messages or prompt is needed")
    if "prompt" in body:
        prompt = body["prompt"]
        if not isinstance(prompt, str) or not prompt.strip():
            raise _Wrong("prompt must be a non-empty string")
        return (ChatMessage("user", prompt),)
    entries = body["messages"]
    if not isinstance(entries, list) or not entries:
        raise _Wrong("messages must be a non-empty list")
    return tuple(_message(entry) for entry in entries)


def _message(entry: Any) -> ChatMessage:
    role, content = (
        (entry.get("role"), entry.get("content")) if isinstance(entry, dict) else (None, None)
    )
    if role not in _ROLES or not isinstance(content, str):
        raise _Wrong("each message needs a role (system, user, assistant) and a string content")
    return ChatMessage(role, content)


def _shown(value: Any) -> str:
    text = str(value)
    return f"'{text[:40]}…'" if len(text) > 40 else f"'{text}'"
