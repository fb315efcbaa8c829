"""What is every form of answers made of: usage, finished answers, pieces and their end?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from client.gateway.openai.tools import ToolCall
from client.gateway.openai.writing import TextPiece, TokenTold

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

    def of_response(self) -> Json:
        """As `/v1/responses` tells it."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
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


class AnswerForm(Protocol):
    """How answers are told: as events of a stream, or whole. Calls come in the order of a stream.

    `used` is the usage so far, `paid` what the answer cost and where to look it up.
    """

    def opening(self, choices: int, used: Usage) -> bytes:
        """What a stream begins with, before the first piece of any of its answers."""

    def piece(
        self, index: int, piece: TextPiece, offset: int, used: Usage, finish: str | None = None
    ) -> bytes:
        """A piece of one answer, whose text began at this offset; with `finish` its last."""

    def ending(
        self, index: int, rest: TextPiece, offset: int, used: Usage, end: StreamEnd
    ) -> bytes:
        """What a stream ends with: the last piece of its last answer, and all that follows."""

    def whole(self, choices: Sequence[ChoiceText], used: Usage, paid: Json) -> Json:
        """All of it, without a stream."""


@dataclass(frozen=True)
class StreamEnd:
    """How a stream ended: why its last answer did, and what all cost."""

    finish: str
    paid: Json
