"""A process of its own that follows grammars, one question after the other, on its pipes.

Grammars are strangers', and the library that reads them is no safer than any: what makes it die,
or takes all memory, ends this process and none with work to lose. A question is a msgpack list of
its kind and values behind its length; only some kinds are answered.

`python -m core.engine.sampling.grammar_child TOKENIZER_FILE END_ID…`
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO

import llguidance
import msgspec

MOST_MEMORY_BYTES = 4 * 2**30


class Followers:
    """Answers on their way, each a matcher by its number."""

    def __init__(self, tokenizer_file: str, ends: list[int]) -> None:
        """Raises Exception for a tokenizer whose tokens are not known as bytes."""
        self.tokens = llguidance.LLTokenizer(tokenizer_file, eos_token=ends, slices=[])
        self._matchers = dict[int, Any]()
        self._read = lru_cache(maxsize=16)(self._read_anew)  # requests often share a grammar

    def open(self, number: int, text: str, said: list[int]) -> str:
        """Begin an answer after these tokens; "" or why the grammar cannot be read.

        A mask is made at every token, as later limits depend on it.
        """
        matcher = self._read(text)
        if matcher.is_error():
            return str(matcher.get_error()).strip() or "it cannot be read"
        self._matchers[number] = matcher = matcher.deep_copy()
        for token in said:
            matcher.compute_bitmask()
            matcher.consume_token(token)
        return ""

    def mask(self, number: int) -> tuple[bytes | None, bool]:
        """A bit for each token that may come, None where a limit was met; whether it may end."""
        matcher = self._matchers[number]
        bits = matcher.compute_bitmask()
        return (None, False) if matcher.is_error() else (bits, bool(matcher.is_accepting()))

    def whole(self, text: str, said: list[int]) -> bool:
        """Whether these tokens are an answer."""
        matcher = self._read(text).deep_copy()
        return bool(matcher.consume_tokens(said)) and bool(matcher.is_accepting())

    def take(self, number: int, token: int) -> None:
        self._matchers[number].consume_token(token)

    def fork(self, number: int, other: int) -> None:
        self._matchers[other] = self._matchers[number].deep_copy()

    def drop(self, *numbers: int) -> None:
        for number in numbers:
            self._matchers.pop(number, None)

    def _read_anew(self, text: str) -> Any:
        return llguidance.LLMatcher(self.tokens, text, log_level=0, limits=_limits())


def _limits() -> Any:
    """What a grammar may take, in the library's units: a step some ten milliseconds at most."""
    return llguidance.LLParserLimits(
        step_lexer_fuel=100_000,
        step_max_items=10_000,
        max_lexer_states=20_000,
        verbose_errors=False,
    )


def read_frame(pipe: BinaryIO) -> Any:
    """The next list. Raises EOFError."""
    size = pipe.read(4)
    if len(size) < 4:
        raise EOFError
    return msgspec.msgpack.decode(pipe.read(int.from_bytes(size, "big")))


def frame(*values: Any) -> bytes:
    data = msgspec.msgpack.encode(values)
    return len(data).to_bytes(4, "big") + data


def main(tokenizer_file: str, *ends: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asks, answers = sys.stdin.buffer, sys.stdout.buffer

    def answer(*values: Any) -> None:
        answers.write(frame(*values))
        answers.flush()

    try:
        followers = Followers(tokenizer_file, list(map(int, ends)))
    except Exception as error:  # the library raises ValueError and RuntimeError
        answer(0, str(error))
        return
    answer(followers.tokens.vocab_size, "")
    answered: dict[str, Callable[..., Any]] = {
        "open": followers.open,
        "mask": followers.mask,
        "whole": followers.whole,
    }
    told = {"take": followers.take, "fork": followers.fork, "drop": followers.drop}
    while True:
        kind, *values = read_frame(asks)
        if kind in told:
            told[kind](*values)
        else:
            answer(answered[kind](*values))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
