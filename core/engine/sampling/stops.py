"""Where does an answer end, and where is its text cut? (`docs/protocol.md` §5)

The last stage, the client and an auditor all decide it here, by the text that is complete after
each token: half a character completes nothing, and a stop string may begin in one token and end in
another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from core.protocol.errors import CheckFailed
from core.protocol.types import SamplingParams

if TYPE_CHECKING:
    from core.engine.sampling.grammar import Grammar
    from core.engine.weights.tokenizer import Tokenizer

Finish = Literal["", "stop", "length"]


class AnswerEnding:
    """Decides for one answer, token by token, whether it is over."""

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Collection[int],
        tokenizer: Tokenizer | None,
        prompt: Sequence[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """Stop strings need `tokenizer`, an answer that began elsewhere its `prompt`.

        With `grammar`, as it stands at the first token, each token is held to it.
        """
        self._params = params
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._grammar, self._produced = grammar, 0
        self._scan: StopScan | None = None
        if params.stop:
            assert tokenizer is not None, "stop strings need a tokenizer"
            before = prompt[len(prompt) - min(params.first_step, len(prompt)) :]
            self._scan = StopScan(tokenizer, stop_strings(params), before)

    def push(self, token: int) -> Finish:
        """Whether this token ends the answer, and why: a stop goes before the length.

        Raises CheckFailed for a token that the grammar does not let come.
        """
        if self._grammar is not None:
            if not self._grammar.allows(token):
                step = self._params.first_step + self._produced
                raise CheckFailed("the answer leaves its grammar", f"at token {step} ({token})")
            self._grammar.take(token)
        self._produced += 1
        is_stopped = self._scan is not None and self._scan.push(token)
        if is_stopped or token in self._eos_ids:
            return "stop"
        return "length" if self._produced >= self._params.max_new_tokens else ""


class StopScan:
    """Watches the text of an answer for stop strings."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], before: Sequence[int]) -> None:
        """`before` are tokens of the answer from elsewhere: a stop string may begin in them."""
        self._stream, self._stops = tokenizer.stream(), stops
        self._tail_length = max(map(len, stops)) - 1
        text = "".join(map(self._stream.push, before))
        self._tail = text[max(0, len(text) - self._tail_length) :]

    def push(self, token: int) -> bool:
        """Whether a stop string ends in the text that this token completes."""
        before = len(self._tail)
        text = self._tail + self._stream.push(token)
        self._tail = text[max(0, len(text) - self._tail_length) :]
        return any(text.find(stop, max(0, before - len(stop) + 1)) >= 0 for stop in self._stops)


class ShownText:
    """The text of an answer that may be shown: no stop string, nor what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._is_over = False

    def push(self, text: str) -> str:
        """What can be shown now that this text has come."""
        if self._is_over:
            return ""
        text = self._held + text
        shown = cut_at_stop(text, self._stops)
        if len(shown) < len(text):
            self._is_over, self._held = True, ""
            return shown
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: no more is coming that could make a stop string of it."""
        rest, self._held = self._held, ""
        return rest


def stop_strings(params: SamplingParams) -> tuple[str, ...]:
    """The stop strings as text."""
    return tuple(stop.decode() for stop in params.stop)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first place at which a stop string begins; all of it if none does."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[len(text) - n :])), 0)
