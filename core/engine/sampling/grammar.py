"""Which tokens may come next in an answer that must follow a grammar? (`docs/protocol.md` §5.2)

A pure function of the grammar, the model's tokenizer and the tokens so far, so a stage, a client
and an auditor find the same. llguidance reads grammars. Its limits count steps, not time, and some
depend on what was worked out before: so every token's mask is worked out, also where nobody draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from core.protocol.errors import GrammarInvalid
from core.protocol.foreign import refuse_deep

if TYPE_CHECKING:
    from core.engine.weights.grammar_tokens import GrammarTokens
    from core.engine.weights.tokenizer import Tokenizer
    from core.protocol.types import SamplingParams

Flags = npt.NDArray[np.bool_]
#: All tokens that fit may come, not only those into which the tokenizer would cut a forced text.
_HEAD = '%llguidance {"no_forcing": true}\n'
#: JSON is written in one line, so that no answer is all blanks.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: Keywords of a schema whose values are none.
_VALUES = frozenset({"const", "enum", "default", "examples"})
_IN_A_MINUTE = {"pattern": r"^(\d{4}-\d\d-\d\d[Tt])?\d\d:\d\d:[0-5]"}
#: A Lark grammar is ambiguous at will: the time that a step takes grows with its square.
MOST_LARK_BYTES = 4096
#: What follows multiples is a machine with as many states.
MOST_MULTIPLE = 100_000


class Grammar:
    """One answer on its way.

    Where a token came that may not come, or a limit was met, nothing but an end may come.
    """

    def __init__(self, matcher: Any, tokens: GrammarTokens) -> None:
        self._matcher, self._tokens = matcher, tokens
        self._allowed: Flags | None = None  # at the next token, once worked out
        self._is_broken = False

    @property
    def is_complete(self) -> bool:
        """Whether the tokens so far, ends aside, are all that the grammar asks for."""
        is_sound = not self._is_broken and not self._matcher.is_error()
        return is_sound and bool(self._matcher.is_accepting())

    def allowed(self) -> Flags:
        """Which of the tokenizer's tokens may come next, a flag each."""
        if self._allowed is None:
            self._allowed = self._work_out()
        return self._allowed

    def allows(self, token: int) -> bool:
        """Whether the next token may be this one."""
        allowed = self.allowed()
        return 0 <= token < len(allowed) and bool(allowed[token])

    def apply(self, row: npt.NDArray[Any]) -> None:
        """Make logits [V] of all tokens that may not come −∞, in place."""
        allowed = self.allowed()[: len(row)]
        row[: len(allowed)][~allowed] = -np.inf
        row[len(allowed) :] = -np.inf

    def take(self, token: int) -> None:
        """The next token is this one."""
        if token in self._tokens.eos_ids:
            return
        if not self.allows(token) or not self._matcher.consume_token(token):
            self._is_broken = True
        self._allowed = None

    def fork(self) -> Grammar:
        """Another that stands here and goes on by itself."""
        other = Grammar(self._matcher.deep_copy(), self._tokens)
        other._allowed, other._is_broken = self._allowed, self._is_broken
        return other

    def _work_out(self) -> Flags:
        if self._is_broken:
            return self._tokens.ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return self._tokens.ends
        size = len(self._tokens.ends)
        flags = np.unpackbits(bits, count=size, bitorder="little").view(bool)
        flags[self._tokens.eos_ids] = self._matcher.is_accepting()
        return flags if flags.any() else self._tokens.ends


def grammar_of(
    params: SamplingParams, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> Grammar | None:
    """What an answer to this prompt must follow, None without a grammar.

    It stands behind the last `first_step` tokens of the prompt, which are of the answer. It may
    take a second, in which other threads run. Raises GrammarInvalid, ModelUnsupported.
    """
    if not params.grammar:
        return None
    if tokenizer is None:
        raise GrammarInvalid("there is no tokenizer here")
    tokens = tokenizer.grammar_tokens
    grammar = Grammar(_read(params.grammar, tokens).deep_copy(), tokens)
    for token in prompt[len(prompt) - min(params.first_step, len(prompt)) :]:
        grammar.take(token)
    return grammar


@lru_cache(maxsize=16)
def _read(grammar: str, tokens: GrammarTokens) -> Any:
    """A matcher at the beginning of an answer, to be copied: requests often share a grammar."""
    import llguidance

    text = _HEAD + _lark_of(grammar)
    matcher = llguidance.LLMatcher(tokens.library, text, log_level=0, limits=_limits())
    if matcher.is_error():
        raise GrammarInvalid(str(matcher.get_error()).strip()[:500])
    return matcher


def _lark_of(grammar: str) -> str:
    """A grammar in Lark's notation: that of a JSON schema, or one that is written so."""
    if not grammar.startswith("{"):
        if len(grammar.encode()) > MOST_LARK_BYTES:
            raise GrammarInvalid(f"without a JSON schema it has at most {MOST_LARK_BYTES} bytes")
        for word in ("%llguidance", "%json"):
            if word in grammar:
                raise GrammarInvalid(f"{word} is not for a grammar to say")
        return grammar
    try:
        refuse_deep(grammar.encode())
        schema = json.loads(grammar)
    except ValueError as error:
        raise GrammarInvalid(f"the schema is not JSON: {error}") from None
    multiple = math.lcm(*map(_numerator, _multiples(schema)))
    if multiple > MOST_MULTIPLE:
        raise GrammarInvalid(f"its multipleOf come to {multiple}, at most {MOST_MULTIPLE}")
    return "start: %json " + json.dumps(_without_leap_seconds(schema) | {"x-guidance": _JSON})


def _without_leap_seconds(part: Any) -> Any:
    """The library's times may have a 61st second in any minute, which few readers take."""
    if isinstance(part, list):
        return [_without_leap_seconds(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {
        key: value if key in _VALUES else _without_leap_seconds(value)
        for key, value in part.items()
    }
    if part.get("format") in ("date-time", "time"):
        known = found.get("allOf")
        found["allOf"] = [*(known if isinstance(known, list) else []), _IN_A_MINUTE]
    return found


def _multiples(part: Any) -> Iterator[int | float]:
    """Every `multipleOf` in a schema."""
    if isinstance(part, dict):
        value = part.get("multipleOf")
        if isinstance(value, int | float):
            yield value
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            yield from _multiples(inner)


def _numerator(value: float) -> int:
    try:
        return abs(Decimal(str(value)).as_integer_ratio()[0]) or 1
    except (ValueError, OverflowError):
        raise GrammarInvalid("a multipleOf is not a finite number") from None


@cache
def _limits() -> Any:
    """What a grammar may take, in the library's units: a step some ten milliseconds at most."""
    import llguidance

    return llguidance.LLParserLimits(
        step_lexer_fuel=100_000,
        step_max_items=10_000,
        max_lexer_states=20_000,
        verbose_errors=False,
    )
