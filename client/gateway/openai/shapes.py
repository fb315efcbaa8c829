"""What do OpenAI's objects look like: completions, their chunks and their usage?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from client.gateway.openai.fields import CHAT, Endpoint
from client.gateway.openai.tools import ToolCall
from client.gateway.openai.writing import TextPiece, TokenTold, chat_logprobs, text_logprobs
from core.protocol import ids

if TYPE_CHECKING:
    from client.gateway.openai.fields import RequestBody
    from client.gateway.openai.models import ServedModel
    from core.engine.weights.tokenizer import Tokenizer

DONE_EVENT = b"data: [DONE]\n\n"
PING = b": ping\n\n"
Json = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """Tokens of a response: of every prompt once, of all answers."""

    prompt_tokens: int
    completion_tokens: int

    def json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


@dataclass(frozen=True)
class ChoiceText:
    """One finished answer of a response."""

    index: int
    text: str
    finish: str
    tokens: tuple[TokenTold, ...] = ()
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ResponseHead:
    """What is the same in a response and in every chunk of it."""

    endpoint: Endpoint
    request_id: str
    created: int
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    with_logprobs: bool

    @property
    def object_id(self) -> str:
        prefix = "chatcmpl-" if self.endpoint == CHAT else "cmpl-"
        return prefix + self.request_id.removeprefix("req_")

    def body(self, choices: Sequence[ChoiceText], usage: Usage, **more: Any) -> Json:
        """A whole response."""
        kind = "chat.completion" if self.endpoint == CHAT else "text_completion"
        shown = [self._choice(choice) for choice in choices]
        return {**self._head(kind), "choices": shown, "usage": usage.json(), **more}

    def chunk(
        self,
        index: int,
        piece: TextPiece,
        *,
        finish: str | None = None,
        offset: int = 0,
        **more: Any,
    ) -> Json:
        """A piece of one answer of a stream."""
        choice: Json = {"index": index, "finish_reason": finish, "logprobs": None}
        if self.endpoint == CHAT:
            choice["delta"] = _delta(piece, is_last=bool(finish))
        else:
            choice["text"] = piece.text
        if self.with_logprobs and piece.tokens:
            choice["logprobs"] = self._logprobs(piece.tokens, offset)
        return {**self._head(self._chunk_kind), "choices": [choice], **more}

    def first(self, index: int, **more: Any) -> Json:
        """What a conversation's answer begins with."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._head(self._chunk_kind), "choices": [choice], **more}

    def last(self, usage: Usage, **more: Any) -> Json:
        """The chunk that only tells the usage."""
        return {**self._head(self._chunk_kind), "choices": [], "usage": usage.json(), **more}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.endpoint == CHAT else "text_completion"

    def _head(self, kind: str) -> Json:
        return {
            "id": self.object_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _choice(self, choice: ChoiceText) -> Json:
        logprobs = self._logprobs(choice.tokens, 0) if self.with_logprobs else None
        shown: Json = {"index": choice.index, "finish_reason": choice.finish, "logprobs": logprobs}
        if self.endpoint == CHAT:
            content = None if choice.calls and not choice.text else choice.text
            message: Json = {"role": "assistant", "content": content, "refusal": None}
            if choice.thought:
                message["reasoning_content"] = choice.thought
            if choice.calls:
                message["tool_calls"] = [call.json() for call in choice.calls]
            return shown | {"message": message}
        return shown | {"text": choice.text}

    def _logprobs(self, tokens: Sequence[TokenTold], offset: int) -> Json:
        if self.endpoint == CHAT:
            return chat_logprobs(tokens, self.tokenizer)
        return text_logprobs(tokens, self.tokenizer, offset)


def choice_of(index: int, pieces: Sequence[TextPiece], finish: str) -> ChoiceText:
    """One answer of its pieces."""
    return ChoiceText(
        index,
        "".join(piece.text for piece in pieces),
        finish,
        tuple(told for piece in pieces for told in piece.tokens),
        "".join(piece.thought for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
    )


def _delta(piece: TextPiece, *, is_last: bool) -> Json:
    """What a piece adds to a message."""
    found: Json = {}
    if piece.thought:
        found["reasoning_content"] = piece.thought
    if piece.calls:
        numbered = enumerate(piece.calls, piece.first_call)
        found["tool_calls"] = [{"index": number, **call.json()} for number, call in numbered]
    if piece.text or not (found or is_last):
        found["content"] = piece.text
    return found


def head_of(
    wanted: RequestBody, served: ServedModel, request_id: str, created: int
) -> ResponseHead:
    """The head of the response to a request of this model. `created`: seconds since 1970."""
    return ResponseHead(
        wanted.endpoint,
        request_id,
        created,
        served.name,
        served.fingerprint,
        served.tokenizer,
        wanted.sampling.n_logprobs is not None,
    )


def event(value: Any) -> bytes:
    """A value as one server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def receipt_of(request_id: str) -> str:
    """The id of a request's receipt, known before there is one."""
    return ids.full(ids.Kind.RECEIPT, hashlib.sha256(request_id.encode()).digest())


def route_shown(operators: Sequence[str]) -> str:
    """`mnr_…,mnr_…`, first stage first."""
    return ",".join(ids.short(ids.Kind.MINER, operator) for operator in operators)
