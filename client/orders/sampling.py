"""Which sampling parameters does a request or a command line ask for, in OpenAI's words?

What is not said is taken from a base. Beside OpenAI's fields there are `top_k`, `min_p`,
`repetition_penalty`, `min_tokens`, `ignore_eos` and `structured_outputs`, as other servers name
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from client.orders import answer_formats
from core.protocol.errors import UsageError
from core.protocol.types import (
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_BYTES,
    MAX_STOPS,
    MICRO,
    SamplingParams,
)

MAX_NEW_TOKENS = 2**20
MAX_TEMPERATURE = 100
#: Field → field of `SamplingParams`, lowest and highest value.
_WHOLE = {
    "max_tokens": ("max_new_tokens", 1, MAX_NEW_TOKENS),
    "min_tokens": ("min_new_tokens", 0, MAX_NEW_TOKENS),
    "top_k": ("top_k", 0, 2**31),
    "seed": ("seed", 0, 2**63 - 1),
}
#: The same in millionths.
_MICRO = {
    "temperature": ("temperature_micro", 0, MAX_TEMPERATURE * MICRO),
    "top_p": ("top_p_micro", 1, MICRO),
    "min_p": ("min_p_micro", 0, MICRO),
    "repetition_penalty": ("repetition_penalty_micro", MICRO // 10, 10 * MICRO),
    "frequency_penalty": ("frequency_penalty_micro", -2 * MICRO, 2 * MICRO),
    "presence_penalty": ("presence_penalty_micro", -2 * MICRO, 2 * MICRO),
}
_OTHER = ("max_completion_tokens", "ignore_eos", "logit_bias", "stop", "logprobs", "top_logprobs")
FIELDS = frozenset((*_WHOLE, *_MICRO, *_OTHER, *answer_formats.FIELDS))


class SamplingInvalid(Exception):
    """A field that cannot be honoured: its name, and what it must be."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field} {why}")
        self.field, self.why = field, why


def sampling_of(body: Mapping[str, Any], base: SamplingParams) -> SamplingParams:
    """The parameters that a request's `FIELDS` say; the base where they say nothing, or null.

    Raises SamplingInvalid.
    """
    said = {name: body[name] for name in FIELDS if body.get(name) is not None}
    if "max_completion_tokens" in said:
        said["max_tokens"] = said.pop("max_completion_tokens")
    changes: dict[str, Any] = {}
    for table, check in ((_WHOLE, _whole), (_MICRO, _micro)):
        for name, (field, *limits) in table.items():
            if name in said:
                changes[field] = check(name, said[name], *limits)
    if "ignore_eos" in said:
        changes["ignore_eos"] = _flag("ignore_eos", said["ignore_eos"])
    if "stop" in said:
        changes["stop"] = _stops(said["stop"])
    if "logit_bias" in said:
        changes["logit_bias"] = _biases(said["logit_bias"])
    if "logprobs" in said or "top_logprobs" in said:
        changes["n_logprobs"] = _logprobs(said, base)
    if said.keys() & set(answer_formats.FIELDS):
        changes["grammar"] = _grammar(said)
    return _replaced(base, changes)


def _grammar(said: Mapping[str, Any]) -> str:
    try:
        grammar = answer_formats.grammar_asked(said)
    except ValueError as error:
        raise SamplingInvalid(*error.args) from None
    if len(grammar.encode(errors="replace")) > MAX_GRAMMAR_BYTES:
        name = next(name for name in answer_formats.FIELDS if name in said)
        raise SamplingInvalid(name, f"must come to at most {MAX_GRAMMAR_BYTES} bytes")
    return grammar


def _replaced(base: SamplingParams, changes: Mapping[str, Any]) -> SamplingParams:
    for field, name in (("ignore_eos", "ignore_eos"), ("min_new_tokens", "min_tokens")):
        if changes.get("grammar", base.grammar) and changes.get(field, getattr(base, field)):
            raise SamplingInvalid(name, "must be left out: the answer ends where its format does")
    return msgspec.structs.replace(base, **changes)


def sampling_of_flags(flags: Mapping[str, Any], base: SamplingParams) -> SamplingParams:
    """The same from options named like the fields. Raises UsageError that names the option."""
    said = dict(flags)
    if said.get("logit_bias"):
        said["logit_bias"] = _bias_pairs(said["logit_bias"])
    try:
        return sampling_of({k: v for k, v in said.items() if v not in ([], {}, ())}, base)
    except SamplingInvalid as error:
        option = error.field.replace("_", "-")
        raise UsageError(f"--{option} cannot be used", f"it {error.why}") from None


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SamplingInvalid(name, f"must be a whole number from {low} to {high}")
    return value


def _micro(name: str, value: Any, low_micro: int, high_micro: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SamplingInvalid(name, "must be a number")
    low, high = low_micro / MICRO, high_micro / MICRO
    if not low <= value <= high:  # also false for NaN
        raise SamplingInvalid(name, f"must be from {low:g} to {high:g}")
    scaled = Decimal(str(value)) * MICRO
    if scaled != scaled.to_integral_value():
        raise SamplingInvalid(name, "must be in steps of a millionth")
    return int(scaled)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SamplingInvalid(name, "must be true or false")
    return value


def _stops(value: Any) -> tuple[bytes, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise SamplingInvalid("stop", "must be a text, or a list of texts, none of them empty")
    if len(stops) > MAX_STOPS:
        raise SamplingInvalid("stop", f"must hold at most {MAX_STOPS} texts")
    try:
        encoded = tuple(sorted({one.encode() for one in stops}))
    except UnicodeEncodeError:
        raise SamplingInvalid("stop", "must not hold half of a surrogate pair") from None
    if any(len(one) > MAX_STOP_BYTES for one in encoded):
        raise SamplingInvalid("stop", f"must hold texts of at most {MAX_STOP_BYTES} bytes")
    return encoded


def _biases(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, Mapping) or len(value) > MAX_LOGIT_BIASES:
        why = f"must give at most {MAX_LOGIT_BIASES} token ids a number each"
        raise SamplingInvalid("logit_bias", why)
    found: dict[int, int] = {}
    for token, bias in value.items():
        text = str(token)
        is_id = text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32
        if not is_id or int(text) in found:
            raise SamplingInvalid("logit_bias", "must name token ids, each once")
        found[int(text)] = _micro("logit_bias", bias, -100 * MICRO, 100 * MICRO)
    return tuple(sorted(found.items()))


def _logprobs(said: Mapping[str, Any], base: SamplingParams) -> int | None:
    """`logprobs` is a truth value beside `top_logprobs`, or the number itself (plain prompts)."""
    wanted = said.get("logprobs", base.n_logprobs is not None or None)
    if wanted is not None and not isinstance(wanted, bool):
        most = _whole("logprobs", wanted, 0, MAX_LOGPROBS)
        if "top_logprobs" not in said:
            return most
    if "top_logprobs" in said:
        if wanted is None or wanted is False:
            raise SamplingInvalid("top_logprobs", "needs logprobs")
        return _whole("top_logprobs", said["top_logprobs"], 0, MAX_LOGPROBS)
    return (base.n_logprobs or 0) if wanted else None


def _bias_pairs(pairs: Sequence[str]) -> dict[str, float]:
    """`ID=BIAS` of the command line."""
    found: dict[str, float] = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            number = float(bias)
        except ValueError:
            raise UsageError(f"--logit-bias {pair}", "it is ID=BIAS, such as 1234=-100") from None
        if token in found:
            raise UsageError(f"--logit-bias {pair}", f"token {token} has a bias already")
        found[token] = number
    return found
