"""Which tokens may come next in an answer that must follow a grammar? (`docs/protocol.md` §5.6)

A pure function of the grammar, the model's tokenizer and the tokens so far, so a stage, a client
and an auditor find the same. llguidance reads grammars, in a process of its own. Its limits count
steps, not time, and some depend on what was worked out before: so every token's mask is worked out,
also where nobody draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from core.engine.sampling.grammar_process import GrammarProcess, Lost, grammar_process
from core.protocol.errors import GrammarInvalid
from core.protocol.foreign import refuse_deep

if TYPE_CHECKING:
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

    Where a token came that may not come, or a limit was met, nothing but an end may come. Every
    method raises GrammarInvalid for a grammar that ends the process which follows it.
    """

    def __init__(self, process: GrammarProcess, text: str, said: Sequence[int] = ()) -> None:
        """Of a text in Lark's notation, after these tokens."""
        self._process, self._text, self._said = process, text, list(said)
        self._number, self._life = process.new_number(), 0
        self._allowed: Flags | None = None  # at the next token, once worked out
        self._is_broken = self._may_end = False

    def __del__(self) -> None:
        self._process.drop(self._number)

    def allowed(self) -> Flags:
        """Which of the tokenizer's tokens may come next, a flag each."""
        if self._allowed is None:
            self._allowed = self._work_out()
        return self._allowed

    @property
    def is_complete(self) -> bool:
        """Whether the tokens so far, ends aside, are all that the grammar asks for."""
        self.allowed()
        return self._may_end

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
        if token in self._process.eos_ids:
            return
        if not self.allows(token):
            self._is_broken = True
        else:
            self._process.tell(self._life, "take", self._number, token)
        self._said.append(token)
        self._allowed = None

    def fork(self) -> Grammar:
        """Another that stands here and goes on by itself."""
        other = Grammar(self._process, self._text, self._said)
        other._allowed, other._may_end = self._allowed, self._may_end
        other._is_broken = self._is_broken
        other._life = self._life
        self._process.tell(self._life, "fork", self._number, other._number)
        return other

    def _work_out(self) -> Flags:
        ends, self._may_end = self._process.ends, False
        if self._is_broken:
            return ends
        bits, self._may_end = self._mask()
        if bits is None:
            return ends
        raw = np.frombuffer(bits, dtype=np.uint8)
        flags = np.unpackbits(raw, count=len(ends), bitorder="little").view(bool)
        flags[self._process.eos_ids] = self._may_end
        return flags if flags.any() else ends

    def _mask(self) -> tuple[bytes | None, bool]:
        """From the process that knows this answer; where that was lost, perhaps over another's
        grammar, from the next one.
        """
        for _ in range(2):
            try:
                if not self._life:
                    self._life = self._process.open(self._number, self._text, self._said)
                return self._process.mask(self._life, self._number)
            except Lost:
                self._life = 0
        raise GrammarInvalid("it ends the program that follows it")


def grammar_of(
    params: SamplingParams, prompt: Sequence[int], tokenizer: Tokenizer | None
) -> Grammar | None:
    """What an answer to this prompt must follow, None without a grammar.

    It stands behind the last `first_step` tokens of the prompt, which are of the answer. It may
    take a second, in which other threads run. Raises GrammarInvalid, ModelUnsupported.
    """
    if not params.grammar:
        return None
    check_grammar(params, tokenizer)
    before = prompt[len(prompt) - min(params.first_step, len(prompt)) :]
    grammar = Grammar(_process_of(tokenizer), _HEAD + _lark_of(params.grammar), before)
    grammar.allowed()  # what takes long is done by then
    return grammar


def check_grammar(params: SamplingParams, tokenizer: Tokenizer | None) -> None:
    """Whether an answer can follow the parameters' grammar, if they have one.

    Raises GrammarInvalid, also for one that takes long or ends the process which follows it, and
    ModelUnsupported.
    """
    if params.grammar:
        _try(_process_of(tokenizer), _HEAD + _lark_of(params.grammar))


@lru_cache(maxsize=1024)
def _try(process: GrammarProcess, text: str) -> None:
    """Once, and where no answer waits for it."""
    try:
        process.trial.attempt(text)
    except Lost:
        raise GrammarInvalid("it takes long, or ends the program that follows it") from None


def is_whole(params: SamplingParams, tokens: Sequence[int], tokenizer: Tokenizer | None) -> bool:
    """Whether these tokens, ends aside, are all that the parameters' grammar asks for."""
    process = _process_of(tokenizer)
    said = [token for token in tokens if token not in process.eos_ids]
    try:
        return process.whole(_HEAD + _lark_of(params.grammar), said)
    except Lost:
        return False


def _process_of(tokenizer: Tokenizer | None) -> GrammarProcess:
    if tokenizer is None:
        raise GrammarInvalid("there is no tokenizer here")
    return grammar_process(tokenizer.model_dir / "tokenizer.json", tokenizer.eos_ids)


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
    except (ValueError, ArithmeticError):  # true is a number to Python, and none to Decimal
        raise GrammarInvalid("a multipleOf is not a finite number") from None
