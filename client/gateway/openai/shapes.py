"""What do OpenAI's objects look like: completions, their chunks and their usage?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from client.gateway.openai.answer_form import AnswerForm, ChoiceText, StreamEnd, Usage
from client.gateway.openai.fields import CHAT, Endpoint
from client.gateway.openai.response_form import ResponseForm
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
class ResponseHead:
    """What is the same in a response and in every chunk of it: an `AnswerForm`."""

    endpoint: Endpoint
    request_id: str
    created: int
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    with_logprobs: bool
    with_usage: bool = False
    with_running_usage: bool = False
    warnings: tuple[str, ...] = ()

    def opening(self, choices: int, used: Usage) -> bytes:
        """A conversation's answers each begin with their role."""
        if self.endpoint != CHAT:
            return b""
        more = self._warned() | self._usage(used)
        return b"".join(event(self.first(index, **more)) for index in range(choices))

    def piece(
        self, index: int, piece: TextPiece, offset: int, used: Usage, finish: str | None = None
    ) -> bytes:
        return event(self.chunk(index, piece, finish=finish, offset=offset, **self._usage(used)))

    def ending(
        self, index: int, rest: TextPiece, offset: int, used: Usage, end: StreamEnd
    ) -> bytes:
        """The last chunk, and the usage after it where that was asked for."""
        if self.with_usage:
            last = self.piece(index, rest, offset, used, end.finish)
            return last + event(self.last(used, headrace=end.paid)) + DONE_EVENT
        more: Json = {"headrace": end.paid} | self._usage(used)
        return event(self.chunk(index, rest, finish=end.finish, offset=offset, **more)) + DONE_EVENT

    def whole(self, choices: Sequence[ChoiceText], used: Usage, paid: Json) -> Json:
        return self.body(choices, used, **self._warned(), headrace=paid)

    def _usage(self, used: Usage) -> Json:
        """The `usage` of a chunk before the last."""
        if self.with_running_usage:
            return {"usage": used.json()}
        return {"usage": None} if self.with_usage else {}

    def _warned(self) -> Json:
        return {"warnings": list(self.warnings)} if self.warnings else {}

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
        wanted.with_usage,
        wanted.with_running_usage,
        wanted.warnings,
    )


def form_of(wanted: RequestBody, served: ServedModel, request_id: str, created: int) -> AnswerForm:
    """The form of the answers to a request of this model. `created`: seconds since 1970."""
    if wanted.response is None:
        return head_of(wanted, served, request_id, created)
    return ResponseForm(wanted, wanted.response, served, request_id, created)


def event(value: Any) -> bytes:
    """A value as one server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def receipt_of(request_id: str) -> str:
    """The id of a request's receipt, known before there is one."""
    return ids.full(ids.Kind.RECEIPT, hashlib.sha256(request_id.encode()).digest())


def route_shown(operators: Sequence[str]) -> str:
    """`mnr_…,mnr_…`, first stage first."""
    return ",".join(ids.short(ids.Kind.MINER, operator) for operator in operators)
