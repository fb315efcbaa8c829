"""How do tokens become text that may be sent: whole characters, and nothing of a stop string?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from client.gateway.openai.dialects import AnswerParts, PlainParts, TextParts, WrittenParts
from client.gateway.openai.tools import ToolCall, call_id
from core.engine.sampling.stops import ShownText

if TYPE_CHECKING:
    from client.pipeline.pipeline import Logprobs
    from client.sessions.answering import Said
    from core.engine.weights.tokenizer import Tokenizer

_BROKEN = "�"


@dataclass(frozen=True)
class TokenTold:
    """One token of a piece of text, with what the last stage told of it."""

    token: int
    logprobs: Logprobs | None


@dataclass(frozen=True)
class TextPiece:
    """Text that is complete, and the tokens it is made of (only where logprobs were asked for);
    thoughts and calls beside it.
    """

    text: str
    tokens: tuple[TokenTold, ...] = ()
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    first_call: int = 0  # the number of the first of these calls in the answer

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.thought or self.calls)


@dataclass
class Writer:
    """One answer as it is written."""

    tokenizer: Tokenizer
    stops: Sequence[str]
    with_logprobs: bool
    parts: AnswerParts = field(default_factory=PlainParts)
    name: str = ""  # of the answer: its calls are numbered under it
    is_whole: Callable[[Sequence[int]], bool] | None = None  # where the answer has a form
    tokens: int = 0
    calls: int = 0
    _ids: list[int] = field(default_factory=list)  # of an answer that has a form
    _pending: list[TokenTold] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_marked = isinstance(self.parts, WrittenParts)
        self._stream = self.tokenizer.stream(keep_special=self._is_marked)
        self._shown = ShownText(self.stops)

    def push(self, said: Said) -> TextPiece:
        """What this token completes; nothing while a character or a stop string may go on."""
        self.tokens += 1
        if self.is_whole is not None:
            self._ids.append(said.token)
        is_end = self._is_marked and said.token in self.tokenizer.eos_ids
        text = "" if is_end else self._stream.push(said.token)
        if self.stops:
            text = self._shown.push(text)
        piece = self._piece(self.parts.push(text))
        if not self.with_logprobs:
            return piece
        self._pending.append(TokenTold(said.token, said.logprobs))
        return self._with_tokens(piece) if piece else piece

    def finish(self, reason: str) -> TextPiece:
        """The rest. What only said that the answer ends is not part of it."""
        text = self._stream.finish()
        if self.stops:
            text = self._shown.push(text) + self._shown.finish()
        said, rest = self._piece(self.parts.push(text)), self._piece(self.parts.finish())
        piece = replace(
            said if said.calls else rest,
            text=said.text + rest.text,
            thought=said.thought + rest.thought,
            calls=said.calls + rest.calls,
        )
        return self._with_tokens(piece) if piece or reason == "length" else piece

    def end_shown(self, reason: str) -> str:
        """Why the answer ended, as its reader is told: one whose form took too much to follow
        was cut.
        """
        if reason != "stop":
            return reason
        if self.is_whole is not None and not self.stops and not self.is_whole(self._ids):
            return "length"
        return "tool_calls" if self.calls else reason

    def _piece(self, found: TextParts) -> TextPiece:
        first, self.calls = self.calls, self.calls + len(found.calls)
        calls = tuple(
            ToolCall(call_id(self.name, first + i), *call) for i, call in enumerate(found.calls)
        )
        return TextPiece(found.text, (), found.thought, calls, first)

    def _with_tokens(self, piece: TextPiece) -> TextPiece:
        told, self._pending = tuple(self._pending), []
        return replace(piece, tokens=told)


def chat_logprobs(tokens: Sequence[TokenTold], tokenizer: Tokenizer) -> dict[str, Any]:
    """`logprobs` of a conversation's answer. A token that is no whole character has no bytes."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token], keep_special=True)
        raw = None if _BROKEN in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": raw}

    return {
        "content": [
            entry(told.token, told.logprobs.logprob)
            | {"top_logprobs": [entry(*pair) for pair in told.logprobs.top]}
            for told in tokens
            if told.logprobs is not None
        ],
        "refusal": None,
    }


def text_logprobs(tokens: Sequence[TokenTold], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
    """`logprobs` of a text completion, whose text began at this offset."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    shown: dict[str, Any] = {name: [] for name in names}
    for told in tokens:
        text = tokenizer.decode([told.token], keep_special=True)
        known = told.logprobs
        shown["tokens"].append(text)
        shown["token_logprobs"].append(known.logprob if known is not None else None)
        top = {tokenizer.decode([i], keep_special=True): p for i, p in known.top} if known else {}
        shown["top_logprobs"].append(top)
        shown["text_offset"].append(offset)
        offset += len(text)
    return shown
